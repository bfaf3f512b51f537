"""The rooms of the package and of its tests: imports point one way, and docs/design.md has a sentence for each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from environment import ROOT

PACKAGE = ROOT / "src" / "peewit"
# From the ground up: a module imports from its own room and from rooms before it.
ROOMS = (
    "messages",
    "runtime",
    "network",
    "weights",
    "kernels",
    "jacobians",
    "tracing.layers",
    "tracing",
    "likelihoods",
    "priors",
    "curvature",
    "curvature.structures",
    "posterior",
    "predictions",
    "linear_model",
    "tuning",
    "diagnostics",
    "storage",
    "serving",
    "laplace",
    "fitting",
    "learning",
    "metrics",
    "figures",
    "report",
    "evaluation",
    "recommendation",
    "comparison",
    "integrations",
    "data",
    "__init__",
    "demo",
    "cli",
    "__main__",
)
FACE = {"__init__", "__main__", "fitting", "laplace", "demo"}  # all that may stand in the root of the package
FOUND = "ground imports upper.face"  # of a line in a test below
LARGEST_CYCLE = 3  # modules that know each other by type-checking imports


class Import(NamedTuple):
    """One module that a line of another imports."""

    module: str
    line: int
    at_run_time: bool  # when the importing module is loaded


def modules(package: Path) -> dict[str, Path]:
    """Files by dotted name below the package; the package itself is `__init__`."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "__init__"] = path
    return found


def type_checking_alone(block: ast.If) -> list[ast.stmt]:
    """What of an `if` type checkers alone read: its body, or after `not` what stands under `else`."""
    test, inverted = block.test, isinstance(block.test, ast.UnaryOp) and isinstance(block.test.op, ast.Not)
    test = test.operand if isinstance(test, ast.UnaryOp) and inverted else test
    if ast.unparse(test) not in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        return []
    return block.orelse if inverted else block.body


def run_later(tree: ast.Module) -> set[ast.AST]:
    """What does not run when the module is loaded: insides of functions, and what type checkers alone read."""
    outside = [
        part
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.If)
        for part in (type_checking_alone(outer) if isinstance(outer, ast.If) else [outer])
    ]
    return {node for part in outside for node in ast.walk(part)}


def modules_in_words(node: ast.AST, here: list[str], package: str) -> list[str]:
    """The module of the package that `importlib.import_module`, or what stands for it, is asked for."""
    if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
        return []
    if ast.unparse(node.func).rpartition(".")[2] not in ("import_module", "__import__"):
        return []
    text = str(node.args[0].value)
    name = text.lstrip(".")
    if name != text:
        return [".".join([*here[: len(here) - (len(text) - len(name)) + 1], name])]
    return [name.partition(".")[2] or "__init__"] if name.partition(".")[0] == package else []


def imports(name: str, path: Path, known: Iterable[str], package: str) -> Iterator[Import]:
    """Every import of the package's own modules, inside functions, for type checkers and by a text too."""
    tree = ast.parse(path.read_text())
    late = run_later(tree)
    inside = path.name == "__init__.py"
    here = [] if name == "__init__" else name.split(".") if inside else name.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            given = [each.name for each in node.names if each.name.partition(".")[0] == package]
            targets = [each.partition(".")[2] or "__init__" for each in given]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                above = here[: len(here) - node.level + 1]
            elif node.module and node.module.partition(".")[0] == package:
                above = node.module.split(".")[1:]
            else:
                continue
            base = [*above, *(node.module.split(".") if node.level and node.module else ())]
            targets = []
            for each in node.names:
                whole = ".".join([*base, each.name])
                targets.append(whole if whole in known else ".".join(base) or "__init__")
        else:
            targets = modules_in_words(node, here, package)
        for target in targets:
            if target != name:
                yield Import(target, node.lineno, node not in late)


def room_of(module: str, rooms: tuple[str, ...]) -> str:
    """The innermost room that a module stands in."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in rooms:
            return ".".join(parts[:length])
    return f"no room for {module}"


def violations(package: Path, rooms: tuple[str, ...]) -> list[str]:
    """Lines that import from a room that stands later, and modules without a room."""
    found = []
    known = modules(package)
    for name, path in known.items():
        own = room_of(name, rooms)
        if own not in rooms:
            found.append(f"{path}: {own}")
            continue
        for each in imports(name, path, known, package.name):
            other = room_of(each.module, rooms)
            if other not in rooms or rooms.index(other) > rooms.index(own):
                found.append(f"{path}:{each.line}: {own} imports {each.module}, which stands in a later room")
    return found


def cycles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Sets of modules of which each leads to all others."""
    reach: dict[str, set[str]] = {}
    for start in edges:
        seen, stack = set(), [start]
        while stack:
            for following in edges.get(stack.pop(), ()):
                if following not in seen:
                    seen.add(following)
                    stack.append(following)
        reach[start] = seen
    groups = {frozenset(other for other in reach[one] if one in reach[other]) for one in edges if one in reach[one]}
    return [set(group) for group in groups]


def edges_of(package: Path, only_at_run_time: bool) -> dict[str, set[str]]:
    """Which modules each one imports."""
    known = modules(package)
    return {
        name: {
            each.module for each in imports(name, path, known, package.name) if each.at_run_time or not only_at_run_time
        }
        for name, path in known.items()
    }


def test_imports_point_one_way() -> None:
    assert violations(PACKAGE, ROOMS) == []


def test_modules_in_cycles() -> None:
    """None at run time; a few where types are checked."""
    assert cycles(edges_of(PACKAGE, True)) == []
    assert [group for group in cycles(edges_of(PACKAGE, False)) if len(group) > LARGEST_CYCLE] == []


def test_the_root_holds_the_face_alone() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == FACE


def sentences() -> dict[str, str]:
    """What docs/design.md says of each room, in the order of the page."""
    lines = (ROOT / "docs" / "design.md").read_text().splitlines()
    rows = [line.split("|") for line in lines if line.startswith("| `") and line.count("|") >= 3]
    return {row[1].strip().strip("`").rstrip("/").replace("/", ".").removesuffix(".py"): row[2] for row in rows}


def test_every_room_has_its_sentence() -> None:
    """In docs/design.md, in the order of the rooms."""
    rooms = [room for room in ROOMS if room not in ("__init__", "__main__")]
    assert [each for each in sentences() if each in rooms] == rooms
    assert all(text.strip() for text in sentences().values())


def unnamed(package: Path, rooms: tuple[str, ...], texts: dict[str, str]) -> list[str]:
    """Files that the sentence of their room does not name."""
    names = {room: set(re.findall(r"`([a-z_]+)/?`", text)) for room, text in texts.items()}
    return [
        f"{path}: {room}"
        for module, path in modules(package).items()
        if (room := room_of(module, rooms)) != module and room in names
        if module.rpartition(".")[2] not in names[room] | {"__main__"}
    ]


def test_every_file_of_a_room_is_named() -> None:
    """In the sentence of its room in docs/design.md."""
    assert unnamed(PACKAGE, ROOMS, sentences()) == []
    less = sentences() | {"tuning": sentences()["tuning"].replace("`ascent`", "")}
    assert unnamed(PACKAGE, ROOMS, less) == [f"{PACKAGE / 'tuning' / 'ascent.py'}: tuning"]


@pytest.mark.parametrize(
    ("line", "words", "loaded"),
    [
        ("from .upper.face import thing", FOUND, True),
        ("def f():\n    from .upper import face", FOUND, False),
        ("async def f():\n    from .upper import face", FOUND, False),
        ("class C:\n    from .upper import face", FOUND, True),
        ("if TYPE_CHECKING:\n    from small.upper.face import thing", FOUND, False),
        ("if typing.TYPE_CHECKING:\n    from small.upper.face import thing", FOUND, False),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    from small.upper.face import thing", FOUND, True),
        ("if not TYPE_CHECKING:\n    from small.upper.face import thing", FOUND, True),
        ("if not TYPE_CHECKING:\n    pass\nelse:\n    from small.upper.face import thing", FOUND, False),
        ("if base:\n    from small.upper.face import thing", FOUND, True),
        ("import small.upper.face", FOUND, True),
        ("importlib.import_module('small.upper.face')", FOUND, True),
        ("importlib.import_module('.upper.face', 'small')", FOUND, True),
        ("import_module('small.upper.face').thing", FOUND, True),
        ("__import__('small.upper.face')", FOUND, True),
        ("def f():\n    return importlib.import_module('small.upper.face')", FOUND, False),
        ("later = lambda: importlib.import_module('small.upper.face')", FOUND, False),
        ("importlib.import_module('json')", "", False),
        ("importlib.import_module(base)", "", False),
        ("from . import nowhere", "", False),
    ],
)
def test_a_line_in_the_wrong_direction_is_named(line: str, words: str, loaded: bool, tmp_path: Path) -> None:
    """With its file and number, wherever in the module it stands; `loaded`: the line runs with the module."""
    package = tmp_path / "small"
    (package / "upper").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "nowhere.py").write_text("")
    (package / "upper" / "__init__.py").write_text("")
    (package / "upper" / "face.py").write_text("from ..ground import base\nthing = 1\n")
    rooms = ("__init__", "nowhere", "ground", "upper")
    (package / "ground.py").write_text("base = 1\n")
    assert violations(package, rooms) == []
    (package / "ground.py").write_text(f"base = 1\n{line}\n")
    found = violations(package, rooms)
    assert len(found) == bool(words) and all(words in each and "ground.py:" in each for each in found)
    assert bool(cycles(edges_of(package, False))) == bool(words)
    assert bool(cycles(edges_of(package, True))) == loaded
    assert violations(package, rooms[:-1]) != []  # and a module without a room


def test_tests_stand_in_the_room_of_their_subject() -> None:
    """And every room has some; those of the room `integrations` stand below it."""
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    rooms = {path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")}
    places = {folder.relative_to(ROOT / "tests") for folder in folders}
    strangers = {str(place) for place in places} - {str(room) for room in rooms}
    assert strangers == {"system"}, "tests/ has the folders of src/peewit, and system for what concerns several of them"
    empty = {str(room) for room in rooms if not any(room in (each, *each.parents) for each in places)}
    assert not empty, f"rooms without tests: {empty}"


def test_no_test_file_imports_another() -> None:
    lines = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
        if name.split(".")[-1].startswith("test_")
    ]
    assert not lines, f"what several tests share goes to tests/support: {lines}"
