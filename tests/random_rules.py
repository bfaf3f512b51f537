"""The grammar of random networks: inputs, layers, ties, in-place steps, layouts, positions, and what else is met."""

from __future__ import annotations

import math

from random_networks import Sketch, rule

HALF = "h.shape[1] // 2"


def head_count(s: Sketch) -> int:
    """Outputs of a network."""
    return s.chosen.choice([1, 2, 3])


# Inputs


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
    elif option in ("tokens", "padded tokens"):
        length, width, rows = s.size(3, 4), s.size(2, 4), s.size(4, 6)
        padding = f", padding_idx={s.chosen.choice([0, rows - 1])}" if option == "padded tokens" else ""
        s.inputs["x"], s.tokens["x"] = (length,), (0, rows - 1)
        table = s.module(f"nn.Embedding({rows}, {width}{padding})", rows * width)
        s.kind, s.shape, s.table, s.table_width = "seq", (length, width), table, width
        s.add(f"h = {table}(x)")
        s.fresh = True
    elif option == "two inputs":
        s.kind, s.shape = "vec", (s.size(2, 3),)
        second = s.size(2, 3)
        s.inputs["x"], s.inputs["z"] = s.shape, (second,)
        joined = s.module(f"nn.Bilinear({s.width}, {second}, {s.width})", s.width * second * s.width + s.width)
        s.add(f"h = x + {joined}(x, z)")
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


# Linear maps


LINEAR = (
    "linear",
    "linear without bias",
    "F.linear",
    "matmul",
    "addmm",
    "einsum",
    "transposed weight",
    "weight on the left",
)


@rule("vec seq", *LINEAR)
def linear_map(s: Sketch) -> None:
    """A matrix applied to the last axis, in one of the ways to write it."""
    width, outputs = s.width, s.size()
    option = s.pick(*LINEAR)
    if option in ("linear", "linear without bias"):
        s.add(f"h = {s.linear(width, outputs, option == 'linear')}(h)")
    elif option == "F.linear":
        weight, bias = s.parameter(outputs, width), s.parameter(outputs)
        s.add(f"h = F.linear(h, {weight}, {bias})")
    elif option == "matmul":
        s.add(f"h = h @ {s.parameter(width, outputs)}")
    elif option == "addmm":
        weight, bias = s.parameter(width, outputs), s.parameter(outputs)
        fold, back = ("", "") if s.kind == "vec" else (f".reshape(-1, {width})", f".view(*h.shape[:2], {outputs})")
        s.add(f"h = torch.addmm({bias}, h{fold}, {weight}){back}")
    elif option == "einsum":
        way = "bi,oi->bo" if s.kind == "vec" else "bti,oi->bto"
        s.add(f'h = torch.einsum("{way}", h, {s.parameter(outputs, width)})')
    elif option == "transposed weight":
        s.add(f"h = F.linear(h, {s.parameter(width, outputs)}.T)")
    else:
        s.add(f"h = ({s.parameter(outputs, width)} @ h.transpose(-1, -2)).transpose(-1, -2)")
    s.last(outputs)
    s.fresh = True


LAYOUTS = ("folded", "time-major", "time-major folded", "position by position", "layout by length")


@rule("seq", *LAYOUTS)
def laid_out(s: Sketch) -> None:
    """A linear layer at every position, with the examples somewhere else."""
    width, outputs = s.shape[-1], s.size()
    layer = s.linear(width, outputs)
    option = s.pick(*LAYOUTS)
    folded = f"{layer}(h.reshape(-1, {width})).view(*h.shape[:2], {outputs})"
    turned = f"{layer}(h.transpose(0, 1).reshape(-1, {width})).view(h.shape[1], h.shape[0], {outputs}).transpose(0, 1)"
    if option == "folded":
        s.add(f"h = {folded}")
    elif option == "time-major":
        s.add(f"h = {layer}(h.transpose(0, 1)).transpose(0, 1)")
    elif option == "time-major folded":
        s.add(f"h = {turned}")
    elif option == "position by position":
        s.add(f"h = torch.stack([{layer}(h[:, t]) for t in range(h.shape[1])], 1)")
    else:
        s.add(f"h = {folded} if h.shape[1] % 2 else {turned}")
    s.last(outputs)
    s.fresh = True


@rule("vec", "examples one by one", "examples repeated", "examples sorted", "examples flipped")
def examples(s: Sketch) -> None:
    """A linear layer on examples in another order or number."""
    outputs = s.size()
    layer = s.linear(s.width, outputs)
    option = s.pick("examples one by one", "examples repeated", "examples sorted", "examples flipped")
    if option == "examples one by one":
        s.add(f"h = torch.stack([{layer}(row) for row in h])")
    elif option == "examples repeated":
        s.add(f"h = {layer}(h.repeat_interleave(2, 0) * {s.buffer(2, s.width)}.repeat(h.shape[0], 1))")
        s.add(f"h = torch.tanh(h).view(-1, 2, {outputs}).mean(1)")
    elif option == "examples sorted":
        s.add("order = h.detach()[:, 0].argsort()", f"h = {layer}(h[order])[order.argsort()]")
    else:
        s.add(f"h = {layer}(h.flip(0)).flip(0)")
    s.last(outputs)
    s.fresh = option not in ("examples repeated",)


PRODUCTS = (
    "bilinear",
    "gated",
    "residual",
    "residual in place",
    "concatenated",
    "stacked weights",
    "low rank",
    "masked weight",
)


@rule("vec seq", *PRODUCTS)
def products(s: Sketch) -> None:
    """Products and sums of linear maps."""
    width, outputs = s.width, s.size(2, 3)
    option = s.pick(*PRODUCTS)
    if option == "bilinear":
        layer = s.module(f"nn.Bilinear({width}, {width}, 2)", 2 * width * width + 2)
        s.add(f"h = {layer}(h.contiguous(), torch.tanh(h))")
        outputs = 2
    elif option == "gated":
        s.add(f"h = {s.linear(width, outputs)}(h) * torch.sigmoid({s.linear(width, outputs)}(h))")
    elif option == "residual":
        s.add(f"h = h + {s.linear(width, width)}({s.smooth()})")
        outputs = width
    elif option == "residual in place":
        s.add(f"y = {s.linear(width, width)}({s.smooth()})", "y += h", "h = y")
        outputs = width
    elif option == "concatenated":
        s.add(f"h = torch.cat([{s.linear(width, 2)}(h), {s.linear(width, outputs)}(h), h[..., :1]], -1)")
        outputs += 3
    elif option == "stacked weights":
        one, two = s.linear(width, outputs), s.linear(width, outputs, bias=False)
        s.add(f'h = torch.einsum("...i,koi->...ko", h, torch.stack([{one}.weight, {two}.weight]))')
        s.add(f"h = (torch.tanh(h).sum(-2) + {one}.bias)")
    elif option == "low rank":
        s.add(f"h = h @ ({s.parameter(width, 1)} @ {s.parameter(1, outputs)})")
    else:
        s.add(f"h = F.linear(h, {s.parameter(outputs, width)} * {s.buffer(outputs, width)})")
    s.last(outputs)
    s.fresh = option != "gated"


# Ties


TIES = (
    "module twice",
    "slices of a weight",
    "weight and its transpose",
    "overlapping slices",
    "two modules, one weight",
    "columns of a weight",
    "every other row",
)


@rule("vec seq", *TIES)
def ties(s: Sketch) -> None:
    """A weight with several uses."""
    width, inner = s.width, s.size(2, 3)
    option = s.pick(*TIES)
    if option == "module twice":
        layer = s.linear(width, width)
        s.add(f"h = {layer}({s.smooth(f'{layer}(h)')})")
    elif option == "slices of a weight":
        weight = s.parameter(2 * width, width)
        s.add(f"h = F.linear({s.smooth(f'F.linear(h, {weight}[:{width}])')}, {weight}[{width}:])")
    elif option == "weight and its transpose":
        weight = s.parameter(inner, width)
        s.add(f"h = F.linear({s.smooth(f'F.linear(h, {weight})')}, {weight}.T)")
    elif option == "overlapping slices":
        weight = s.parameter(width + 1, width)
        s.add(f"h = F.linear({s.smooth(f'F.linear(h, {weight}[:-1])')}, {weight}[1:])")
    elif option == "columns of a weight":
        weight = s.parameter(width, 2 * width)
        s.add(f"h = F.linear({s.smooth(f'F.linear(h, {weight}[:, :{width}])')}, {weight}[:, {width}:])")
    elif option == "every other row":
        weight = s.parameter(2 * width, width)
        s.add(f"h = F.linear({s.smooth(f'F.linear(h, {weight}[::2])')}, {weight}[1::2])")
    else:
        one, two = s.linear(width, width), s.linear(width, width)
        s.made.append(f"{two}.weight = {one}.weight")
        s.weights -= width * width
        s.add(f"h = {two}({s.smooth(f'{one}(h)')})")
    s.fresh = True


# Norms, activations, weights applied number by number


@rule("vec seq img", "tanh and its like", "relu", "softmax")
def activation(s: Sketch) -> None:
    """An activation out of place."""
    option = s.pick("tanh and its like", "relu", "softmax")
    axis = "1" if s.kind == "img" else "-1"
    text = {"relu": "torch.relu(h)", "softmax": f"torch.softmax(h, {axis})"}.get(option) or s.smooth()
    s.add(f"h = {text}")
    s.fresh = False


@rule(
    "vec seq img",
    "relu_",
    "F.relu in place",
    "tanh_",
    "mul_",
    "*=",
    "mul_ on a view",
    "written slice",
    "relu_ on a view",
)
def in_place(s: Sketch) -> None:
    """Activations changed in place."""
    option = s.pick(
        "relu_", "F.relu in place", "tanh_", "mul_", "*=", "mul_ on a view", "written slice", "relu_ on a view"
    )
    s.writable()
    view = s.chosen.choice(["h.transpose(-1, -2)", "h[..., :2]"] if s.kind != "vec" else ["h[:, :1]", "h.unsqueeze(1)"])
    lines = {
        "relu_": "h.relu_()",
        "F.relu in place": "h = F.relu(h, inplace=True)",
        "tanh_": "h.tanh_()",
        "mul_": "h.mul_(1.4)",
        "*=": "h *= 0.7",
        "mul_ on a view": f"{view}.mul_(1.3)",
        "written slice": "h[:, 0] = 0.3",
        "relu_ on a view": f"{view}.relu_()",
    }
    s.add(lines[option])
    s.fresh = option in ("mul_", "*=", "mul_ on a view", "written slice")


@rule("vec seq img", "layer norm", "rms norm", "batch norm", "group norm", "instance norm")
def norm(s: Sketch) -> None:
    """A norm with a weight and a bias."""
    width = s.width
    # A norm over one or two numbers leaves nothing but their signs.
    options = ["batch norm"]
    if width > 2:
        options += ["layer norm", "rms norm"]
    if width > 2 or s.kind != "vec":
        options += ["group norm"]
    if (s.kind == "seq" and s.shape[0] > 2) or (s.kind == "img" and s.shape[1] * s.shape[2] > 2):
        options += ["instance norm"]
    option = s.pick(*options)
    dims = "2d" if s.kind == "img" else "1d"
    layer = {
        "layer norm": f"nn.LayerNorm({width})",
        "rms norm": f"nn.RMSNorm({width})",
        "batch norm": f"nn.BatchNorm{dims}({width})",
        "group norm": f"nn.GroupNorm(1, {width})",
        "instance norm": f"nn.InstanceNorm{dims}({width}, affine=True)",
    }[option]
    name = s.module(layer, 2 * width)
    last = option in ("layer norm", "rms norm")
    inside = f"{name}(h)"
    if s.kind == "img" and last:
        inside = f"{name}(h.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)"
    elif s.kind == "seq" and not last:
        inside = f"{name}(h.transpose(1, 2)).transpose(1, 2)"
    s.add(f"h = {inside}")
    s.fresh = True


GAINS = (
    "gain",
    "shift",
    "whole table",
    "exponential",
    "power",
    "where",
    "cancelling",
    "lerp",
    "addcmul",
    "prelu",
    "indexed",
)


@rule("vec seq img", *GAINS)
def numbers(s: Sketch) -> None:
    """Weights applied number by number."""
    width = s.width
    shape = (width, 1, 1) if s.kind == "img" else (width,)
    option = s.pick(*GAINS)
    if option == "gain":
        s.add(f"h = h * {s.parameter(*shape, prefix='gain')}")
    elif option == "shift":
        s.add(
            s.chosen.choice(["h = h + {}", "h = {} - h", "h = torch.add(h, {}, alpha=0.7)"]).format(s.parameter(*shape))
        )
    elif option == "whole table":
        s.add(s.chosen.choice(["h = h + {}", "h = h * {}"]).format(s.parameter(1, *s.shape)))
        s.flexible = False
    elif option == "exponential":
        s.add(f"h = h * {s.parameter(*shape)}.exp()")
    elif option == "power":
        s.add(f"h = F.softplus(h) ** {s.parameter(*shape, prefix='gain')}")
    elif option == "where":
        s.add(f"h = torch.where(h > 0, h, {s.parameter(*shape)} * h)")
    elif option == "cancelling":
        one = s.parameter(prefix="one")
        s.add(f"h = h * {one}.exp() / {one}")
    elif option == "lerp":
        s.add(f"h = torch.lerp(h, torch.sin(h), {s.parameter(*shape)})")
    elif option == "addcmul":
        s.add(f"h = torch.addcmul({s.parameter(*shape)}, h, {s.parameter(*shape, prefix='gain')})")
    elif option == "prelu":
        s.add(f"h = {s.module(f'nn.PReLU({width})', width)}(h{'.transpose(1, 2)' if s.kind == 'seq' else ''})")
        if s.kind == "seq":
            s.add("h = h.transpose(1, 2)")
    else:
        place = {"vec": "h[:, 0]", "seq": "h[:, :, 0]", "img": "h[:, 0, 0, 0]"}[s.kind]
        table = s.parameter(2, width)
        more = "[:, :, None, None]" if s.kind == "img" else ""
        s.add(f"h = h + {table}[({place} > 0).long()]{more}")
    s.fresh = option not in ("power", "lerp")


ADDED = ("add_ to a slice", "add_ to a column", "add_ to a transpose", "+=", "+= to a permuted base", "+= to a slice")


@rule("vec seq img", *ADDED)
def added_in_place(s: Sketch) -> None:
    """A weight added in place, to the activations or to a view of them."""
    width = s.width
    option = s.pick(*(ADDED if s.kind != "vec" else [each for each in ADDED if "permuted" not in each]))
    s.writable()
    if option == "add_ to a slice":
        if s.kind == "img":
            s.add(f"h[:, :1].add_({s.parameter(1, *s.shape[1:])})")
        else:
            s.add(f"h[..., :{width - 1 or 1}].add_({s.parameter(width - 1 or 1)})")
    elif option == "add_ to a column":
        s.add(f"h[:, 0].add_({s.parameter(*s.shape[1:])})")
        s.flexible = s.flexible and s.kind != "img"
    elif option == "add_ to a transpose":
        if s.kind == "vec":
            s.add(f"h.transpose(0, 1).add_({s.parameter(width, 1)})")
        elif s.kind == "seq":
            s.add(f"h.transpose(1, 2).add_({s.parameter(width, 1)})")
        else:
            s.add(f"h.permute(0, 2, 3, 1).add_({s.parameter(width)})")
    elif option == "+=":
        s.add(f"h += {s.parameter(*(s.shape if s.chosen.random() < 0.5 else s.shape[:1] + (1,) * (len(s.shape) - 1)))}")
        s.flexible = s.flexible and s.kind == "vec"
    elif option == "+= to a slice":
        s.add(f"h[:, :1] += {s.parameter(*((1,) + s.shape[1:]))}")
    elif s.kind == "seq":
        s.add("h = (h.transpose(1, 2) * 1.5).contiguous().transpose(1, 2)", f"h += {s.parameter(*s.shape)}")
        s.flexible = False
    else:
        c, height, wide = s.shape
        s.add(
            "h = (h.contiguous(memory_format=torch.channels_last) * 1.2).permute(0, 2, 3, 1)",
            f"h += {s.parameter(wide, c) if s.chosen.random() < 0.5 else s.parameter(height, 1, c)}",
            "h = h.permute(0, 3, 1, 2)",
        )
    s.fresh = True


# Positions


TABLES = (
    "embedded positions",
    "table of positions",
    "network on a grid",
    "repeated row",
    "low-rank table",
    "table and buffer",
)
CHANGED = ("table as it is", "table scaled in place", "table relu_", "first row written")
PLACED = (
    "table added",
    "table transposed",
    "table unsqueezed",
    "table time-major",
    "table added in place",
    "table times",
    "table beside",
)


@rule("seq", *TABLES, *CHANGED, *PLACED)
def positions(s: Sketch) -> None:
    """Something learnt that has no examples meets the activations."""
    length, width = s.shape
    source, changed, placed = s.pick(*TABLES), s.pick(*CHANGED), s.pick(*PLACED)
    count, grid = "h.shape[1]", "torch.linspace(-1, 1, h.shape[1], dtype=h.dtype, device=h.device)[:, None]"
    if source == "embedded positions":
        table = s.module(f"nn.Embedding({length + 1}, {width})", (length + 1) * width)
        s.add(f"pos = {table}(torch.arange({count}, device=h.device))")
    elif source == "table of positions":
        s.add(f"pos = {s.parameter(length + 1, width)}[:{count}]")
        if changed != "table as it is":
            s.add("pos = pos * 1.1")
    elif source == "network on a grid":
        if s.chosen.random() < 0.5:
            s.add(f"pos = {s.linear(1, width)}({grid})")
        else:
            s.add(f"pos = {s.linear(2, width)}(torch.tanh({s.linear(1, 2)}({grid})))")
    elif source == "repeated row":
        s.add(f"pos = {s.parameter(width)}.repeat({count}, 1)")
    elif source == "low-rank table":
        s.add(f"pos = ({s.parameter(length + 1, 1)} @ {s.parameter(1, width)})[:{count}]")
    else:
        s.add(f"pos = {s.parameter(width)} + {s.buffer(length + 1, width)}[:{count}]")
    if changed == "table scaled in place":
        s.add(s.chosen.choice(["pos *= 3.0", "pos.mul_(2.0)"]))
    elif changed == "table relu_":
        s.add(s.chosen.choice(["pos.relu_()", "pos = F.relu(pos, inplace=True)"]))
    elif changed == "first row written":
        s.add("pos[0] = 0.0")
    if placed == "table added in place":
        s.writable()
    lines = {
        "table added": "h = h + pos",
        "table transposed": "h = (h.transpose(1, 2) + pos.T).transpose(1, 2)",
        "table unsqueezed": "h = h + pos.unsqueeze(0)",
        "table time-major": "h = (h.transpose(0, 1) + pos.unsqueeze(1)).transpose(0, 1)",
        "table added in place": "h += pos",
        "table times": "h = h * pos",
        "table beside": "h = torch.cat([h, pos.expand(h.shape[0], -1, -1)], -1)",
    }
    s.add(lines[placed])
    if placed == "table beside":
        s.last(2 * width)
    s.fresh = True


# Attention, recurrence, convolutions


@rule("seq", "attention", "time-major attention", "written attention", "encoder layer", fits=lambda s: s.width <= 6)
def attention(s: Sketch) -> None:
    """Positions that look at each other."""
    option = s.pick("attention", "time-major attention", "written attention", "encoder layer")
    width = 4 if option == "encoder layer" else 2  # its norms need more than two numbers
    if s.width % 2 or s.width > 4 or s.width < width:
        s.add(f"h = {s.linear(s.width, width)}(h)")
        s.last(width)
    width, heads = s.width, s.chosen.choice([1, 2])
    if option == "attention":
        layer = s.module(f"nn.MultiheadAttention({width}, {heads}, batch_first=True)", 4 * width * width + 4 * width)
        s.add(f"h = h + {layer}(h, h, h, need_weights=False)[0]")
    elif option == "time-major attention":
        layer = s.module(f"nn.MultiheadAttention({width}, {heads})", 4 * width * width + 4 * width)
        s.add("h = h.transpose(0, 1)", f"h = (h + {layer}(h, h, h)[0]).transpose(0, 1)")
    elif option == "written attention":
        packed = s.linear(width, 3 * width, bias=False)
        s.add(
            f"q, k, v = {packed}(h).chunk(3, -1)",
            s.chosen.choice(
                [
                    "h = torch.softmax(q @ k.transpose(1, 2), -1) @ v",
                    "h = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
                ]
            ),
        )
    else:
        layer = s.module(
            f"nn.TransformerEncoderLayer({width}, {heads}, 3, dropout=0.0, batch_first=True)",
            4 * width * width + 4 * width + 7 * width + 3 + 4 * width,
        )
        s.add(f"h = {layer}(h)")
    s.fresh = False


@rule("seq", "lstm", "gru", "time-major rnn", "cell in a loop", "scan")
def recurrence(s: Sketch) -> None:
    """Positions one after the other."""
    width = s.width
    option = s.pick("lstm", "gru", "time-major rnn", "cell in a loop", "scan")
    gates = {"lstm": 4, "gru": 3}.get(option, 1)
    weights = gates * (2 * width + 4 + 4)
    if option in ("lstm", "gru"):
        s.add(f"h = {s.module(f'nn.{option.upper()}({width}, 2, batch_first=True)', weights)}(h)[0]")
    elif option == "time-major rnn":
        s.add(f"h = {s.module(f'nn.RNN({width}, 2)', weights)}(h.transpose(0, 1))[0].transpose(0, 1)")
    elif option == "cell in a loop":
        cell = s.module(f"nn.RNNCell({width}, 2)", weights)
        s.add(
            "state, states = h.new_zeros(h.shape[0], 2), []",
            "for t in range(h.shape[1]):",
            f"    state = {cell}(h[:, t], state)",
            "    states.append(state)",
            "h = torch.stack(states, 1)",
        )
    else:
        decay = s.parameter(width)
        s.add(
            "state, states = torch.zeros_like(h[:, 0]), []",
            "for t in range(h.shape[1]):",
            f"    state = torch.sigmoid({decay}) * state + h[:, t]",
            "    states.append(state)",
            "h = torch.stack(states, 1)",
        )
    if option != "scan":
        s.last(2)
    s.fresh = option not in ("lstm", "gru", "time-major rnn")


@rule("seq", "conv1d", "grouped conv1d", "causal conv1d", "windows")
def convolution_of_sequence(s: Sketch) -> None:
    """Positions next to each other."""
    width, outputs = s.width, s.size(2, 3)
    option = s.pick("conv1d", "grouped conv1d", "causal conv1d", "windows")
    if option == "conv1d":
        layer = s.module(f"nn.Conv1d({width}, {outputs}, 3, padding=1)", 3 * width * outputs + outputs)
        s.add(f"h = {layer}(h.transpose(1, 2)).transpose(1, 2)")
    elif option == "grouped conv1d":
        layer = s.module(f"nn.Conv1d({width}, {width}, 3, padding=1, groups={width})", 4 * width)
        s.add(f"h = {layer}(h.transpose(1, 2)).transpose(1, 2)")
        outputs = width
    elif option == "causal conv1d":
        layer = s.module(f"nn.Conv1d({width}, {outputs}, 2)", 2 * width * outputs + outputs)
        s.add(f"h = {layer}(F.pad(h.transpose(1, 2), (1, 0))).transpose(1, 2)")
    else:
        s.add(f"h = {s.linear(2 * width, outputs)}(F.pad(h, (0, 0, 1, 0)).unfold(1, 2, 1).flatten(2))")
    s.last(outputs)
    s.fresh = True


CONVOLUTIONS = (
    "conv2d",
    "strided conv2d",
    "grouped conv2d",
    "transposed conv2d",
    "circular conv2d",
    "linear on pixels",
)


@rule("img", *CONVOLUTIONS)
def convolution(s: Sketch) -> None:
    """Pixels next to each other."""
    c, height, wide = s.shape
    outputs = s.size(2, 3)
    option = s.pick(*CONVOLUTIONS)
    kernel = min(3, height, wide) if c * outputs <= 6 else 2
    bias = s.chosen.random() < 0.7
    tail = "" if bias else ", bias=False"
    weights = c * outputs * kernel * kernel + outputs * bias
    if option == "conv2d":
        layer = s.module(f"nn.Conv2d({c}, {outputs}, {kernel}, padding=1{tail})", weights)
        height, wide = height + 3 - kernel, wide + 3 - kernel
    elif option == "strided conv2d":
        layer = s.module(f"nn.Conv2d({c}, {outputs}, 2, stride=2, padding=1{tail})", weights)
        height, wide = height // 2 + 1, wide // 2 + 1
    elif option == "grouped conv2d":
        outputs = c
        layer = s.module(f"nn.Conv2d({c}, {c}, 2, padding=1, groups={c}{tail})", 5 * c)
        height, wide = height + 1, wide + 1
    elif option == "transposed conv2d":
        layer = s.module(f"nn.ConvTranspose2d({c}, {outputs}, 2{tail})", 4 * c * outputs + outputs)
        height, wide = height + 1, wide + 1
    elif option == "circular conv2d":
        layer = s.module(
            f'nn.Conv2d({c}, {outputs}, 3, padding=1, padding_mode="circular"{tail})', 9 * c * outputs + outputs
        )
    else:
        s.add(f"h = {s.linear(c, outputs)}(h.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)")
        s.shape, s.fresh = (outputs, height, wide), True
        return
    s.add(f"h = {layer}(h)")
    s.shape, s.fresh = (outputs, height, wide), True


@rule(
    "img",
    "max pool",
    "average pool",
    "channels_last activations",
    "squeeze and excite",
    fits=lambda s: min(s.shape[1:]) > 1,
)
def picture(s: Sketch) -> None:
    """Other steps on images."""
    c, height, wide = s.shape
    option = s.pick("max pool", "average pool", "channels_last activations", "squeeze and excite")
    if option in ("max pool", "average pool"):
        s.add(f"h = F.{'max' if option == 'max pool' else 'avg'}_pool2d(h, 2)")
        s.shape = (c, height // 2, wide // 2)
    elif option == "channels_last activations":
        s.add("h = h.contiguous(memory_format=torch.channels_last)")
    else:
        s.add(f"h = h * torch.sigmoid({s.linear(c, c)}(h.mean((2, 3))))[:, :, None, None]")
    s.fresh = False


# Distances, spectra, derivatives, and other ways to reach a weight


@rule("vec seq", "cdist to a buffer", "cdist to weights", "cdist with p = 1", filler=False)
def distances(s: Sketch) -> None:
    """Distances to prototypes."""
    count = s.size(2, 4)
    option = s.pick("cdist to a buffer", "cdist to weights", "cdist with p = 1")
    points = s.buffer(count, s.width) if option == "cdist to a buffer" else s.parameter(count, s.width)
    s.add(f"h = torch.cdist(h, {points}{', p=1.0' if option == 'cdist with p = 1' else ''})")
    s.last(count)
    s.fresh = False


@rule("vec seq", "complex gain", "real gain of a spectrum", "complex from two weights", fits=lambda s: s.width > 1)
def spectrum(s: Sketch) -> None:
    """A filter in the frequencies of the last axis."""
    width = s.width
    count = width // 2 + 1
    option = s.pick("complex gain", "real gain of a spectrum", "complex from two weights")
    if option == "complex gain":
        gain = f"torch.view_as_complex({s.parameter(count, 2)}.contiguous())"
    elif option == "real gain of a spectrum":
        gain = s.parameter(count, prefix="gain")
    else:
        gain = f"torch.complex({s.parameter(count)}, {s.parameter(count)})"
    s.add(f"h = torch.fft.irfft(torch.fft.rfft(h) * {gain}, n={width})")
    s.fresh = True


DERIVATIVES = ("autograd.grad inside", "energy and its gradient", "func.grad inside", "vmap inside", "jvp inside")


@rule("vec", *DERIVATIVES, filler=False)
def derivatives(s: Sketch) -> None:
    """Derivatives and transforms inside the forward pass."""
    width, inner = s.width, s.size(2, 3)
    option = s.pick(*DERIVATIVES)
    if option == "vmap inside":
        s.add(f"h = torch.func.vmap({s.linear(width, inner)})(h)")
        s.last(inner)
        s.fresh = True
        return
    if option == "jvp inside":
        layer = s.linear(width, width)
        s.add(
            f"h, slope = torch.func.jvp(lambda z: torch.tanh({layer}(z)), (h,), (torch.ones_like(h),))",
            "h = h + slope",
        )
        s.fresh = True
        return
    one, two = s.linear(width, inner), s.linear(inner, 1)
    if option == "func.grad inside":
        s.add(f"h = torch.func.vmap(torch.func.grad(lambda z: {two}(torch.tanh({one}(z))).sum()))(h)")
        s.fresh = True
        return
    s.add(
        "with torch.enable_grad():",
        "    q = h if h.requires_grad else h.detach().requires_grad_()",
        f"    energy = {two}(torch.tanh({one}(q)))",
        "    h = torch.autograd.grad(energy.sum(), q, create_graph=True)[0]",
    )
    if option == "energy and its gradient":
        s.add("h = torch.cat([energy, h], 1)")
        s.last(width + 1)
    s.fresh = False


ONCE = """class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return torch.sin(z)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * torch.cos(ctx.saved_tensors[0])
"""
PRODUCT = """class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, w):
        ctx.save_for_backward(z, w)
        return z @ w

    @staticmethod
    def backward(ctx, g):
        z, w = ctx.saved_tensors
        return g @ w.T, z.reshape(-1, z.shape[-1]).T @ g.reshape(-1, g.shape[-1])
"""
REACHED = ("saved reference", "once differentiable", "own function", "weight norm", "checkpoint")


@rule("vec seq", *REACHED)
def reached_otherwise(s: Sketch) -> None:
    """A weight that is applied by something other than a plain call."""
    width, outputs = s.width, s.size(2, 3)
    option = s.pick(*REACHED)
    if option == "saved reference":
        layer = s.linear(width, outputs)
        s.names += 1
        s.made.append(f"self.saved{s.names} = [{layer}.weight, {layer}.bias]")
        s.add(f"h = F.linear(h, *self.saved{s.names})")
    elif option == "once differentiable":
        s.helpers.append(ONCE)
        s.add(f"h = Once.apply({s.linear(width, outputs)}(h))")
    elif option == "own function":
        s.helpers.append(PRODUCT)
        s.add(f"h = Product.apply(h, {s.parameter(width, outputs)})")
    elif option == "weight norm":
        layer = s.module(
            f"nn.utils.parametrizations.weight_norm(nn.Linear({width}, {outputs}))", width * outputs + 2 * outputs
        )
        s.add(f"h = {layer}(h)")
    else:
        layer = s.linear(width, outputs)
        s.add(f"h = torch.utils.checkpoint.checkpoint({layer}, h, use_reentrant=False)")
    s.last(outputs)
    s.fresh = option not in ("once differentiable",)


@rule("vec seq", "unused layer", "detached branch", "branch without gradient", "frozen weight")
def without_gradient(s: Sketch) -> None:
    """Weights that no output depends on, or none that can be learnt."""
    width = s.width
    option = s.pick("unused layer", "detached branch", "branch without gradient", "frozen weight")
    layer = s.linear(width, width)
    if option == "detached branch":
        s.add(f"h = h * 0.7 + {layer}(h).detach()")
        s.fresh = True
    elif option == "branch without gradient":
        s.add("with torch.no_grad():", f"    gate = torch.sigmoid({layer}(h))", "h = h * gate")
        s.fresh = False
    elif option == "frozen weight":
        s.made.append(f"{layer}.weight.requires_grad_(False)")
        s.add(f"h = {layer}(h)")
        s.fresh = True


@rule("vec", "examples meet in their mean", "examples meet in detached statistics", filler=False)
def coupled(s: Sketch) -> None:
    """Examples that depend on each other: to be refused."""
    option = s.pick("examples meet in their mean", "examples meet in detached statistics")
    s.add(
        "h = h - h.mean(0)" if option == "examples meet in their mean" else "h = h / (1 + h.detach().square().mean(0))"
    )
    s.fresh = False
