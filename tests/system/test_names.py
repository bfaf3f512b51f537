"""Names of the package: each stands for one class, something uses it, and values of many fields are built by name."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from environment import ROOT

PACKAGE = ROOT / "src" / "peewit"
MOST_FIELDS = 4  # of a dataclass that may be built by position
# Names that torch, Triton, a protocol of Python or the trainer of another library asks for.
ASKED_FOR = re.compile(r"__\w+__|forward|backward|setup_context|vmap|jvp|on_[a-z_]+")
VAGUE = frozenset(
    {"made", "found", "own", "each", "place", "given", "kept", "again", "now", "both", "one"}
)  # local names that do not say what they hold
LIFE = 3  # lines that such a name may live for
SCOPES = (ast.FunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def trees(package: Path) -> dict[str, ast.Module]:
    """Every file of a package, by its path below it."""
    return {str(path.relative_to(package)): ast.parse(path.read_text()) for path in sorted(package.rglob("*.py"))}


def fields(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> int:
    """How many fields a dataclass has, with those of its bases in the package."""
    inherited = [classes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in classes]
    count = sum(isinstance(each, ast.AnnAssign) and "ClassVar" not in ast.unparse(each) for each in node.body)
    return count + sum(fields(base, classes) for base in inherited if dataclass_of(base))


def dataclass_of(node: ast.ClassDef) -> str:
    """The decorator that makes a class a dataclass; nothing for other classes."""
    decorators = [ast.unparse(each) for each in node.decorator_list]
    return next((each for each in decorators if "dataclass" in each), "")


def crowded(package: Path) -> set[str]:
    """Dataclasses with many fields, inherited ones included, that are not `kw_only`."""
    nodes = [node for tree in trees(package).values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    classes = {node.name: node for node in nodes}
    return {
        node.name
        for node in nodes
        if (decorator := dataclass_of(node)) and "kw_only=True" not in decorator
        if fields(node, classes) > MOST_FIELDS
    }


def types_of(tree: ast.Module) -> set[tuple[str, bool]]:
    """Names of types in a module, classes and aliases, with whether each is a variable that stands for any type."""
    types = {(node.name, False) for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = ast.unparse(getattr(node, "value", None) or ast.Constant(None))
        for name in (target.id for target in targets if isinstance(target, ast.Name)):
            if name[0].isupper() and not name.isupper():  # a constant has capitals alone
                types.add((name, value.startswith(("TypeVar(", "ParamSpec("))))
    return types


def defined_twice(package: Path) -> set[str]:
    """Public types of one name in two modules; variables for types may share theirs with one another alone."""
    types = [each for tree in trees(package).values() for each in types_of(tree)]
    known, variables = Counter(name for name, variable in types if not variable), {name for name, free in types if free}
    return {name for name, count in known.items() if count + (name in variables) > 1}


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


def of_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope that stand in no scope inside it."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, SCOPES):
            yield from of_scope(node)


def vague(package: Path) -> list[str]:
    """Local names that say little and live for long: from a line that binds one to its last use before the next."""
    lines = []
    for path, tree in trees(package).items():
        for scope in (node for node in ast.walk(tree) if isinstance(node, SCOPES)):
            uses: dict[str, dict[int, bool]] = defaultdict(dict)  # by name: its lines, and whether they bind it
            for node in of_scope(scope):
                name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""
                if name in VAGUE:
                    assert isinstance(node, ast.Name | ast.arg)
                    binds = isinstance(node, ast.arg) or isinstance(node.ctx, ast.Store)
                    uses[name][node.lineno] = binds or uses[name].get(node.lineno, False)
            for name, by_line in uses.items():
                start = min(by_line)
                for line in sorted(by_line):
                    start = line if by_line[line] and not isinstance(scope, SCOPES[2:]) else start
                    if line - start > LIFE:
                        lines.append(f"{path}:{start}: {name}, to line {line}")
                        break
    return lines


def test_values_of_many_fields_are_built_by_name() -> None:
    assert crowded(PACKAGE) == set()


def test_a_name_is_one_class() -> None:
    """Or one alias of a type."""
    assert defined_twice(PACKAGE) == set()


def test_local_names_say_what_they_hold() -> None:
    assert vague(PACKAGE) == []


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
        (
            "@dataclass\nclass Two:\n    a: int\n    b: int\n"
            "@dataclass\nclass Five(Two):\n    c: int\n    d: int\n    e: int",
            (1, 0, 1),
        ),
        ("class Other:\n    pass\nother = Other()", (0, 1, 0)),
        ("Other = int | str\nOther", (0, 1, 0)),
        ("Other: TypeAlias = int | str\nOther", (0, 1, 0)),
        ("Other = TypeVar('Other')\nOther", (0, 1, 0)),
        ("Free = TypeVar('Free')\nFree", (0, 0, 0)),
        ("Alias = int | str\nAlias", (0, 1, 0)),
        ("OTHER = _Other = 1\nOTHER", (0, 0, 0)),
        ("def alone():\n    pass", (0, 0, 1)),
        ("def used():\n    pass\nused()", (0, 0, 0)),
    ],
)
def test_what_is_wrong_is_named(source: str, names: tuple[int, int, int], tmp_path: Path) -> None:
    """In a package of two files."""
    (tmp_path / "one.py").write_text(
        "class Other:\n    pass\nother = Other()\nFree = TypeVar('Free')\nAlias: TypeAlias = int\n"
    )
    (tmp_path / "two.py").write_text(source)
    assert (len(crowded(tmp_path)), len(defined_twice(tmp_path)), len(unused(tmp_path, ""))) == names


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("made = 1\n\n\n\nmade", []),
        ("def f():\n    made = 1\n    a\n    b\n    return made", []),
        ("def f():\n    made = 1\n    a\n    b\n    c\n    return made", ["one.py:2: made, to line 6"]),
        ("def f(own):\n    a\n    b\n    c\n    d(own)", ["one.py:1: own, to line 5"]),
        ("def f():\n    made = 1\n    a\n    b\n    made = 2\n    return made", []),
        ("def f():\n    each = [each for each in a]\n    b\n    c\n    d\n    return [each for each in b]", []),
        ("def f():\n    return [\n        each\n        + 1\n        + 2\n        for each in a\n    ]", []),
        (
            "def f():\n    return [\n        each\n        + 1\n        + 2\n        + 3\n        for each in a\n    ]",
            ["one.py:3: each, to line 7"],
        ),
    ],
)
def test_long_lives_are_named(source: str, lines: list[str], tmp_path: Path) -> None:
    """In functions and comprehensions, from where a name is bound."""
    (tmp_path / "one.py").write_text(source)
    assert vague(tmp_path) == lines
