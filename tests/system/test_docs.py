"""The code in README.md and docs/ runs: the blocks of a page one after the other, in one namespace.

A block that opens with ```` ```python no-run ```` is left out.
"""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest

from environment import ROOT

PAGES = [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))] if page.is_file()]
# What a page cannot do without, and the library can.
NEEDED = {"gallery.md": "plotly", "text.md": "peft", "serving.md": "onnxruntime"}
NEEDED["learning_frameworks.md"] = "lightning transformers accelerate"
FENCE = re.compile(r"^(?P<indent> *)```python(?P<info>[^\n]*)\n(?P<code>.*?)^(?P=indent)```[ ]*$", re.M | re.S)


def printed_blocks(text: str) -> dict[int, str]:
    """What a page says that its Python blocks print, by the number of lines before each of them."""
    return {
        text.count("\n", 0, match.start("code")): follows["text"]
        for match in FENCE.finditer(text)
        if (follows := PRINTED.match(text, match.end()))
    }


def words_of(printed: str) -> list[str]:
    """Lines without their numbers and spaces: numbers depend on the machine."""
    return [re.sub(r"[-+]?\d[\d.,]*(e[-+]?\d+)?", "#", "".join(line.split())) for line in printed.splitlines()]


def code_blocks(text: str) -> list[tuple[int, str]]:
    """The Python blocks of a page that are meant to run, each with the number of lines before it."""
    return [
        (text.count("\n", 0, match.start("code")), textwrap.dedent(match["code"]))
        for match in FENCE.finditer(text)
        if "no-run" not in match["info"].split()
    ]


PRINTED = re.compile(r"\n+```text\n(?P<text>.*?)^```", re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No block raises or warns, and what a page says that they print is there but for its numbers.

    Files that a page writes land in a temporary folder.
    """
    for package in NEEDED.get(page.name, "").split():
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    # Blocks run in a real module, since dataclasses and pickle look up the module of a class by its name.
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    text = page.read_text(encoding="utf-8")
    expected = printed_blocks(text)
    for lines_before, code in code_blocks(text):
        # The empty lines in front make tracebacks name the line of the page.
        exec(compile("\n" * lines_before + code, str(page), "exec"), module.__dict__)
        printed = words_of(capsys.readouterr().out)
        missing = [line for line in words_of(expected.get(lines_before, "")) if line and line not in printed]
        assert not missing, f"line {lines_before} of {page.name} does not print {missing}, but {printed}"


def test_code_blocks_are_found() -> None:
    """Plain, indented and skipped blocks, and blocks of other languages, are told apart."""
    page = (
        "text\n```python\na = 1\n```\n- item\n  ```python\n  b = 2\n  ```\n```python no-run\nc\n```\n```bash\nd\n```\n"
    )
    assert code_blocks(page) == [(2, "a = 1\n"), (6, "b = 2\n")]


def test_what_a_page_prints_is_found() -> None:
    """The block of text that follows the code; numbers and spaces count for nothing."""
    page = "```python\nprint(1.5)\n```\n\n```text\n1.5 s,  N=3\n```\n```python\n2\n```\nand\n```text\nno\n```\n"
    assert printed_blocks(page) == {1: "1.5 s,  N=3\n"}
    assert words_of("1.25e-3 s,  N=1,303\n") == words_of("7.5 s, N=4\n") == ["#s,N=#"]
    assert words_of("one") != words_of("two")


# Names in signatures that the reference need not explain: Python's, torch's, numpy's and plotly's.
ELSEWHERE = {
    *("Any", "Callable", "False", "Iterable", "Literal", "Mapping", "None", "Path", "PathLike", "Sequence", "True"),
    *(
        "DataFrame",
        "Dataset",
        "Distribution",
        "ExportedProgram",
        "Generator",
        "Module",
        "Optimizer",
        "Tensor",
        "NDArray",
        "RandomState",
        "Figure",
    ),
}


def test_the_reference_explains_the_types_in_signatures() -> None:
    """Every name in a signature has a section, and every type of the page of types stands in a signature there."""
    pages = runpy.run_path(str(ROOT / "tools" / "api.py"))["reference"]()
    named, explained = set[str](), set[str]()
    for page in pages.values():
        explained |= set(re.findall(r"^## (?:class )?`(?:\w+\.)*(\w+)`$", page, re.M))
        for block in re.findall(r"^```text\n(.*?)\n```$", page, re.M | re.S):
            named |= set(re.findall(r"\b[A-Z]\w*[a-z]\w*\b", re.sub(r"'[^']*'", "", block)))
    assert {"Data", "Weights", "LinkName"} < named
    assert named - explained - ELSEWHERE == set()
    types = set(re.findall(r"^## (?:class )?`(\w+)`$", pages["api/types.md"], re.M))
    assert types - named == set()


def test_the_reference_is_up_to_date() -> None:
    """The reference says what the docstrings say, and the glossary what the report says."""
    made = subprocess.run([sys.executable, ROOT / "tools" / "api.py", "--check"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
