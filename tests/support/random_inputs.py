"""What random networks are given and what they return: inputs, memory layouts, heads, and changes of kind."""

from __future__ import annotations

import math

from random_grammar import Sketch, rule


def head_count(s: Sketch) -> int:
    """Outputs of a network."""
    return s.chosen.choice([1, 2, 3])


@rule(
    "", "vector", "sequence", "image", "tokens", "padded tokens", "two inputs", "mapping", "embedding bag", filler=False
)
def inputs(s: Sketch) -> None:
    """What the network is given, as activations h."""
    option = s.pick("vector", "sequence", "image", "tokens", "padded tokens", "two inputs", "mapping", "embedding bag")
    if option == "vector":
        s.kind, s.shape = "vec", (s.size(2, 5),)
        s.inputs["x"] = s.shape
        s.add("h = x")
    elif option == "sequence":
        s.kind, s.shape = "seq", (s.size(3, 4), s.size(2, 4))
        s.inputs["x"] = s.shape
        s.add("h = x")
    elif option == "image":
        s.kind, s.shape = "img", (s.size(1, 3), s.size(3, 4), s.size(3, 4))
        s.inputs["x"] = s.shape
        s.add("h = x")
    elif option == "two inputs":
        s.kind, s.shape = "vec", (s.size(2, 3),)
        second = s.size(2, 3)
        s.inputs["x"], s.inputs["z"] = s.shape, (second,)
        joined = s.module(f"nn.Bilinear({s.width}, {second}, {s.width})", s.width * second * s.width + s.width)
        s.add(f"h = x + {joined}(x, z)")
        s.fresh = True
    else:
        token_inputs(s, option)


def token_inputs(s: Sketch, option: str) -> None:
    """Inputs that are rows of a table."""
    if option in ("tokens", "padded tokens"):
        length, width, rows = s.size(3, 4), s.size(2, 4), s.size(4, 6)
        padding = f", padding_idx={s.chosen.choice([0, rows - 1])}" if option == "padded tokens" else ""
        s.inputs["x"], s.tokens["x"] = (length,), (0, rows - 1)
        table = s.module(f"nn.Embedding({rows}, {width}{padding})", rows * width)
        s.kind, s.shape, s.table, s.table_width = "seq", (length, width), table, width
        s.add(f"h = {table}(x)")
        s.fresh = True
    elif option == "mapping":
        length, width, rows = 3, s.size(2, 3), s.size(3, 5)
        s.inputs["ids"], s.inputs["scale"], s.tokens["ids"] = (length,), (length, 1), (0, rows - 1)
        table = s.module(f"nn.Embedding({rows}, {width})", rows * width)
        s.kind, s.shape, s.table, s.table_width = "seq", (length, width), table, width
        s.add(f"h = {table}(ids) * scale")
        s.flexible = False
    else:
        length, width, rows = 3, s.size(2, 4), s.size(4, 6)
        s.inputs["x"], s.tokens["x"] = (length,), (0, rows - 1)
        way = s.chosen.choice(["mean", "sum"])
        table = s.module(f'nn.EmbeddingBag({rows}, {width}, mode="{way}")', rows * width)
        s.kind, s.shape = "vec", (width,)
        s.add(f"h = {table}(x)")
        s.flexible = False


@rule("vec seq img", "channels_last weights", "weights stored transposed", "plain weights", filler=False)
def memory(s: Sketch) -> None:
    """How weights lie in memory."""
    option = s.pick("channels_last weights", "weights stored transposed", *["plain weights"] * 4)
    s.channels_last, s.transposed = option == "channels_last weights", option == "weights stored transposed"


# Outputs and changes of kind


@rule("vec seq img", "head", "head at each position", "head tied to the embedding", "no head", filler=False)
def head(s: Sketch) -> None:
    """The outputs (B, C), or (B, T, C)."""
    if s.kind == "img":
        to_vector(s)
    rows = next((high + 1 for name, (_, high) in s.tokens.items()), 0)
    options = ["head"]
    if s.kind == "seq":
        options += ["head at each position"]
        if s.table and rows <= 6:
            options += ["head tied to the embedding"]
    elif s.width <= 4:
        options += ["no head"]
    option = s.pick(*options)
    if option == "head tied to the embedding":
        if s.table_width != s.width:
            s.add(f"h = {s.linear(s.width, s.table_width)}(h)")
        s.last(rows)
        s.add(f"h = {s.chosen.choice([f'F.linear(h, {s.table}.weight)', f'h @ {s.table}.weight.T'])}")
    elif option == "head at each position":
        outputs = head_count(s)
        s.add(f"h = {s.linear(s.width, outputs)}({s.smooth()})")
        s.last(outputs)
    elif option == "head":
        if s.kind == "seq":
            to_vector(s)
        outputs = head_count(s)
        s.add(f"h = {s.linear(s.width, outputs)}({s.smooth()})")
        s.last(outputs)


@rule("seq img", "mean of positions", "flattened", "last position", "soft maximum of positions", filler=False)
def to_vector(s: Sketch) -> None:
    """From positions to one vector."""
    options = ["mean of positions", "soft maximum of positions"]
    if math.prod(s.shape) <= 16:
        options.append("flattened")
    if s.kind == "seq":
        options.append("last position")
    option = s.pick(*options)
    if option == "flattened":
        s.add(s.chosen.choice(["h = h.flatten(1)", "h = h.reshape(h.shape[0], -1)"]))
        s.kind, s.shape, s.flexible = "vec", (math.prod(s.shape),), False
        return
    axis = "1" if s.kind == "seq" else "(2, 3)"
    way = {"mean of positions": "mean", "soft maximum of positions": "logsumexp"}.get(option, "")
    s.add(f"h = h.{way}({axis})" if way else "h = h[:, -1]")
    s.shape = (s.width,)
    s.kind, s.fresh = "vec", False


@rule("vec img", "pixels as positions", "cut into positions", "repeated positions", filler=False)
def to_sequence(s: Sketch) -> None:
    """From an image or a vector to positions."""
    if s.kind == "img":
        s.note("pixels as positions")
        if s.shape[1] * s.shape[2] > 6:
            s.add("h = F.adaptive_avg_pool2d(h, (2, 2))")
            s.shape = (s.shape[0], 2, 2)
        s.add("h = h.flatten(2).transpose(1, 2)")
        s.kind, s.shape = "seq", (s.shape[1] * s.shape[2], s.shape[0])
        s.fresh = False
        return
    option = s.pick("cut into positions", "repeated positions")
    length = 3
    if option == "repeated positions":
        s.add(f"h = h.unsqueeze(1) * {s.buffer(length, s.width)}")
        s.shape = (length, s.width)
    else:
        width = s.size(2, 3)
        s.add(f"h = {s.linear(s.width, length * width)}(h).view(-1, {length}, {width})")
        s.shape = (length, width)
    s.kind, s.fresh, s.flexible = "seq", True, False
