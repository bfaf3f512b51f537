"""The mutants of a Python file, each with one change: another operator, another number, a statement less."""

from __future__ import annotations

import ast
import copy
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

SWAPPED = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift},
}
PAIRS = [("min", "max"), ("amin", "amax"), ("argmin", "argmax"), ("any", "all"), ("zeros", "ones"), ("log", "exp")]
METHODS = [("sum", "mean"), ("sqrt", "square"), ("floor", "ceil"), ("new_zeros", "new_ones"), ("mul", "div")]
RENAMED = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}
RENAMED_METHODS = RENAMED | {a: b for pair in METHODS for a, b in (pair, pair[::-1])}
# Keywords that show only in device, time or memory; and `strict`, which guards our own code.
UNSEEN = {"device", "non_blocking", "pin_memory", "output_size", "strict", "progress", "memory"}
# Lines that only a GPU runs, that report progress, or whose comment says that they are about memory or speed.
UNSEEN_LINES = re.compile(r"cuda|progress|TYPE_CHECKING|#.*\b(bytes|memory|faster|quicker|speed|at a time)\b")


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change: the bytes from `start` to `stop` of a file become `text`."""

    path: str
    function: str  # its qualified name, or "" at the top of a file
    line: int
    lines: tuple[int, ...]  # a test that runs one of these meets the change; empty: any line of the file
    change: str  # "old -> new"
    start: int
    stop: int
    text: str

    @property
    def name(self) -> str:
        """The name in the allow-list, which survives changes of other lines."""
        return f"{self.path}::{self.function}::{self.change}"

    @property
    def whole_function(self) -> str:
        """The name of all mutants of its function, for functions that only choose what is faster or smaller."""
        return f"{self.path}::{self.function}::*"

    def apply(self, source: bytes) -> bytes:
        """The changed file."""
        return source[: self.start] + self.text.encode() + source[self.stop :]


def on_one_line(source: bytes) -> str:
    """Source on one line, without a final comment."""
    return " ".join(source.decode().split("  # ")[0].split())


def replace(node: ast.AST, **fields: object) -> ast.AST:
    """A copy of a node with other fields."""
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def changes(node: ast.AST) -> Iterator[ast.AST | None]:
    """What a node may become; None stands for a statement that is left out."""
    yield from other_operators(node)
    if isinstance(node, ast.Constant):
        yield from other_constants(node)
    if isinstance(node, ast.Call):
        yield from other_calls(node)
    if isinstance(node, (ast.If, ast.IfExp)) and not isinstance(node.test, ast.UnaryOp):
        yield ast.UnaryOp(ast.Not(), node.test)
    if isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield None


def other_operators(node: ast.AST) -> Iterator[ast.AST]:
    """The node with another operator, or without its sign."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPPED:
        yield replace(node, ops=[SWAPPED[type(node.ops[0])]()])
    if isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)) and type(node.op) in SWAPPED:
        yield replace(node, op=SWAPPED[type(node.op)]())
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node.operand


def other_constants(node: ast.Constant) -> Iterator[ast.AST]:
    """The other boolean, or a number nearby."""
    if isinstance(node.value, bool):
        yield replace(node, value=not node.value)
    elif isinstance(node.value, int):
        yield replace(node, value=node.value + 1)
        if node.value > 0:
            yield replace(node, value=node.value - 1)
    elif isinstance(node.value, float):
        yield replace(node, value=2 * node.value if node.value else 1.0)


def other_calls(node: ast.Call) -> Iterator[ast.AST]:
    """The call without one of its keywords, or of another function."""
    for word in node.keywords:
        if word.arg is not None and word.arg not in UNSEEN:
            yield replace(node, keywords=[other for other in node.keywords if other is not word])
    if isinstance(node.func, ast.Name) and node.func.id in RENAMED:
        yield replace(node, func=ast.Name(RENAMED[node.func.id]))
    if isinstance(node.func, ast.Attribute) and node.func.attr in RENAMED_METHODS:
        yield replace(node, func=replace(node.func, attr=RENAMED_METHODS[node.func.attr]))


def children(node: ast.AST) -> Iterator[ast.AST]:
    """Children whose changes tests can notice: not annotations, asserts, parts of a text, or sizes about memory."""
    if isinstance(node, (ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)):
        return
    slices = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "slices"
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases") or (slices and name == "args"):
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST) and not (isinstance(each, ast.keyword) and each.arg in UNSEEN):
                yield each


def slice_sizes(function: ast.AST) -> set[str]:
    """Names of bytes in `budget.slices(count, bytes)` or `budget.count(bytes, ...)`, which change no number."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    sizes = [call.args[1:2] for call in calls if call.func.attr == "slices"]
    sizes += [call.args[:1] for call in calls if ast.unparse(call.func).endswith("budget.count")]
    return {size.id for each in sizes for size in each if isinstance(size, ast.Name)}


def names_type(value: ast.AST) -> bool:
    """Whether a value at the top of a file is an alias of a type."""
    return isinstance(value, ast.Subscript) or (isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr))


def mutants(path: str, source: str) -> list[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    rows, data = source.splitlines(), source.encode()
    starts = [0, *itertools.accumulate(map(len, data.splitlines(keepends=True)))]
    found: list[Mutant] = []
    tree, named = ast.parse(source), defaultdict(set)
    for name in (node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
        named[name.id].add(name.lineno)

    def mutant_of(node: ast.AST, new: ast.AST | None, function: str, body: tuple[int, ...]) -> Mutant:
        old = node.test if isinstance(node, (ast.If, ast.IfExp)) else node  # of an `if`, only the condition changes
        text = "pass" if new is None else ast.unparse(new)
        text = f"({text})" if isinstance(new, (ast.BinOp, ast.BoolOp, ast.Compare, ast.UnaryOp)) else text
        start = starts[old.lineno - 1] + old.col_offset
        stop = starts[old.end_lineno - 1] + old.end_col_offset
        if old.lineno == old.end_lineno:  # the whole line says what a number is for
            row, end = starts[old.lineno - 1], starts[old.lineno]
            change = f"{on_one_line(data[row:end])} -> {on_one_line(data[row:start] + text.encode() + data[stop:end])}"
        else:
            change = f"{on_one_line(data[start:stop])} -> {on_one_line(text.encode())}"
        lines = tuple(line for line in body if old.lineno <= line <= old.end_lineno) or body
        return Mutant(
            path=path, function=function, line=old.lineno, lines=lines, change=change, start=start, stop=stop, text=text
        )

    def visit(node: ast.AST, function: str, body: tuple[int, ...], bytes_: set[str]) -> None:
        if isinstance(node, ast.Assign) and (
            {getattr(target, "id", "") for target in node.targets} & bytes_ or (not function and names_type(node.value))
        ):
            return
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            function = f"{function}.{node.name}".lstrip(".")
        seen = isinstance(node, (ast.expr, ast.stmt)) and not UNSEEN_LINES.search(rows[node.lineno - 1])
        found.extend(mutant_of(node, new, function, body) for new in (changes(node) if seen else ()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            # A default is met by what runs the function: its own line runs when the module is imported.
            body = tuple(range(node.body[0].lineno, node.body[-1].end_lineno + 1))
            bytes_ = slice_sizes(node)
        if isinstance(node, ast.Assign) and not function:
            # So is a constant by what runs the lines that name it.
            body = tuple(sorted({line for target in node.targets for line in named.get(getattr(target, "id", ""), ())}))
        for child in children(node):
            visit(child, function, body, bytes_)

    visit(tree, "", (), set())
    return sorted(found, key=lambda each: (each.start, each.change))
