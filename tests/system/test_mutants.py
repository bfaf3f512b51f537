"""The script that changes the library: what it changes, and that it tells what tests notice from what they do not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from environment import ROOT

TOOLS = ROOT / "tools"
sys.path.insert(0, str(TOOLS))

from mutants import PARTS, Project, collect, judge_all, report, sample  # noqa: E402
from mutations import mutants  # noqa: E402

SOURCE = '''
"""Three functions; a test calls the first alone, and looks at one of its answers."""

LIMIT = 3


def noticed(a: int = 1, b: int = 2) -> int:
    """A sum."""
    return a + b


def unnoticed(a: int) -> int:
    return a - 10


def looked_over(a: int) -> bool:
    return a > 5
'''
SETTINGS = "[tool.pytest.ini_options]\npythonpath = ['src']\n"
TEST = """
from small import looked_over, noticed

def test_sum():
    assert noticed(2) == 4

def test_comparison():
    assert looked_over(7)
"""


def project_in(folder: Path) -> Project:
    """A package of one module with two tests."""
    for name, text in {"src/small.py": SOURCE, "tests/test_small.py": TEST, "pyproject.toml": SETTINGS}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return Project(folder, {"all": ["small.py"]})


def changed(source: str) -> set[str]:
    """The files that one change makes of a line."""
    return {each.apply(source.encode()).decode() for each in mutants("a.py", source)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("c - a * b", {"(c + a * b)", "c - (a / b)"}),
        ("x = a <= b", {"x = (a < b)"}),
        ("x = a and not b", {"x = (a or not b)", "x = a and b"}),
        ("x = y.sum(-1)", {"x = y.mean(-1)", "x = y.sum(1)", "x = y.sum(-2)", "x = y.sum(-0)"}),
        ("x = f(a, low=b, device=c)", {"x = f(a, device=c)"}),
        ("x = min(a, b)", {"x = max(a, b)"}),
        (
            "def f(a: int = 3) -> 'b':\n    '''Say 4.'''",
            {f"def f(a: int = {n}) -> 'b':\n    '''Say 4.'''" for n in "24"},
        ),
        ("if a: raise b", {"if (not a): raise b", "if a: pass"}),
        ("é = 'ü'; a += True", {"é = 'ü'; a -= True", "é = 'ü'; a += False"}),
        ("def f(b):\n    each = 4 * a\n    for own in b.slices(n, each): pass", set()),
        ("x = f'{a + 1}'\nassert a > 2\nSIZE = 7  # bytes", set()),
        ("Both = int | float\nPair = tuple[int | None, str]", set()),
    ],
)
def test_changes_of_a_line(source: str, expected: set[str]) -> None:
    """Each change is one thing; texts, annotations, asserts and numbers about memory stay."""
    assert changed(source) == expected


def test_a_seed_names_a_sample(tmp_path: Path) -> None:
    """The same seed takes the same mutants, another seed others, and the allow-list takes some out."""
    project = project_in(tmp_path)
    every = sample(project, "all", 0, 1000)
    assert sample(project, "all", 1, 5) == sample(project, "all", 1, 5) != sample(project, "all", 2, 5)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/mutants_allowed.txt").write_text(f"# why\n{every[0].name}  # speed: a cache\n")
    assert sample(project, "all", 0, 5) == every[1:6]
    (tmp_path / "tools/mutants_allowed.txt").write_text("small.py::unnoticed::*  # speed: all of a function\n")
    assert sample(project, "all", 0, 1000) == [each for each in every if each.function != "unnoticed"]
    (tmp_path / "tools/mutants_allowed.txt").write_text(f"{every[0].name}  # because\n")
    with pytest.raises(SystemExit, match=r"expected 'path::function::change  # reason'"):
        project.allowed()


def test_what_the_script_names_exists() -> None:
    """Patterns of parts match files of the library, and each line of the allow-list names a mutant or a function."""
    project = Project(ROOT, PARTS)
    assert all(list(project.source.glob(pattern)) for patterns in PARTS.values() for pattern in patterns)
    paths = {path for part in PARTS for path in project.files(part)}
    every = [each for path in paths for each in mutants(path, (project.source / path).read_text())]
    names = {each.name for each in every} | {each.whole_function for each in every}
    assert [name for name in project.allowed() if name not in names] == []


def test_what_tests_notice_is_told_from_what_they_do_not(tmp_path: Path) -> None:
    """A wrong sum is caught; a limit that no test looks at survives; a line that no test runs is untested."""
    pytest.importorskip("coverage")
    project = project_in(tmp_path)
    collect(project, 1, [])
    verdicts, broken = judge_all(project, {"all": sample(project, "all", 0, 1000)}, 1)
    outcomes = {each.mutant.change: each.outcome for each in verdicts["all"]}
    assert outcomes["return a + b -> return (a - b)"] == "caught"
    assert {each.outcome for each in verdicts["all"] if "b: int = 3" in each.mutant.change} == {"caught"}
    assert outcomes["return a > 5 -> return (a >= 5)"] == "survived"
    assert outcomes["return a - 10 -> return (a + 10)"] == "untested"
    assert {each.by for each in verdicts["all"] if each.outcome == "caught"} == {"tests/test_small.py::test_sum"}
    assert not broken
    text, fine = report(project, verdicts, seed=0)
    assert not fine
    line = SOURCE.splitlines().index("    return a > 5") + 1
    assert f"small.py:{line} (survived, 1 tests)" in text
    assert (project.source / "small.py").read_text() == SOURCE
