"""Names of the package: each stands for one class, something uses it, and values of many fields are built by name."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from environment import ROOT

PACKAGE = ROOT / "src" / "peewit"
MOST_FIELDS = 4  # of a dataclass that may be built by position
# Names that torch, Triton or a protocol of Python asks for.
ASKED_FOR = re.compile(r"__\w+__|forward|backward|setup_context|vmap|jvp")


def trees(package: Path) -> dict[str, ast.Module]:
    """Every file of a package, by its path below it."""
    return {str(path.relative_to(package)): ast.parse(path.read_text()) for path in sorted(package.rglob("*.py"))}


def crowded(package: Path) -> set[str]:
    """Dataclasses with many fields that are not `kw_only`."""
    return {
        node.name
        for tree in trees(package).values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for decorator in node.decorator_list
        if "dataclass" in ast.unparse(decorator) and "kw_only=True" not in ast.unparse(decorator)
        if sum(isinstance(each, ast.AnnAssign) and "ClassVar" not in ast.unparse(each) for each in node.body)
        > MOST_FIELDS
    }


def defined_twice(package: Path) -> set[str]:
    """Public classes of one name."""
    names = Counter(
        node.name for tree in trees(package).values() for node in tree.body if isinstance(node, ast.ClassDef)
    )
    return {name for name, count in names.items() if count > 1 and not name.startswith("_")}


def definitions(tree: ast.Module) -> Iterator[str]:
    """Functions, classes and methods, unless a decorator registers them or something outside asks for them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not ASKED_FOR.fullmatch(node.name):
            registered = any(isinstance(each, ast.Call) for each in node.decorator_list)
            if isinstance(node, ast.ClassDef) or not registered:
                yield node.name


def mentions(tree: ast.Module) -> Iterator[str]:
    """Names, attributes and texts that are one word."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            yield node.value


def unused(package: Path, pages: str) -> list[str]:
    """Functions, classes and methods that no line of the package mentions, nor code on a page for users."""
    files = trees(package)
    code = re.findall(r"```.*?```|`[^`]+`", pages, re.DOTALL)
    used = {name for tree in files.values() for name in mentions(tree)} | set(re.findall(r"\w+", " ".join(code)))
    return [f"{path}: {name}" for path, tree in files.items() for name in definitions(tree) if name not in used]


def test_values_of_many_fields_are_built_by_name() -> None:
    assert crowded(PACKAGE) == set()


def test_a_name_is_one_class() -> None:
    assert defined_twice(PACKAGE) == set()


def test_every_name_is_used() -> None:
    """By the package itself or by its users: a test alone is no use."""
    pages = [path for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")] if path.name != "CHANGELOG.md"]
    assert unused(PACKAGE, "\n".join(path.read_text() for path in pages)) == []


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("@dataclass\nclass Five:\n    a: int\n    b: int\n    c: int\n    d: int\n    e: int", (1, 0, 1)),
        (
            "@dataclass(kw_only=True)\nclass Five:\n    a: int\n    b: int\n    c: int\n    d: int\n    e: int",
            (0, 0, 1),
        ),
        ("class Other:\n    pass\nother = Other()", (0, 1, 0)),
        ("def alone():\n    pass", (0, 0, 1)),
        ("def used():\n    pass\nused()", (0, 0, 0)),
    ],
)
def test_what_is_wrong_is_named(source: str, names: tuple[int, int, int], tmp_path: Path) -> None:
    """In a package of two files."""
    (tmp_path / "one.py").write_text("class Other:\n    pass\nother = Other()\n")
    (tmp_path / "two.py").write_text(source)
    assert (len(crowded(tmp_path)), len(defined_twice(tmp_path)), len(unused(tmp_path, ""))) == names
