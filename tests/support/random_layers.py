"""Layers of random networks: linear maps however written, ties, norms, activations, weights number by number."""

from __future__ import annotations

import math
from collections.abc import Callable

from random_grammar import Sketch, rule

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
    if math.prod(s.shape) > 2:
        options += ["group norm"]
    if (s.kind == "seq" and s.shape[0] > 2) or (s.kind == "img" and s.shape[1] * s.shape[2] > 2):
        options += ["instance norm"]
    option = s.pick(*options)
    dims = "2d" if s.kind == "img" else "1d"
    layer = {
        "layer norm": f"nn.LayerNorm({width})",
        "rms norm": f"nn.RMSNorm({width}, eps=1e-5)",  # its default differs between dtypes: other networks near zero
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

# Lines of weights that are broadcast over examples and positions.
BROADCAST: dict[str, Callable[[Sketch, tuple[int, ...]], str]] = {
    "gain": lambda s, shape: f"h = h * {s.parameter(*shape, prefix='gain')}",
    "shift": lambda s, shape: s.chosen.choice(["h = h + {}", "h = {} - h", "h = torch.add(h, {}, alpha=0.7)"]).format(
        s.parameter(*shape)
    ),
    "exponential": lambda s, shape: f"h = h * {s.parameter(*shape)}.exp()",
    "power": lambda s, shape: f"h = F.softplus(h) ** {s.parameter(*shape, prefix='gain')}",
    "where": lambda s, shape: f"h = torch.where(h > 0, h, {s.parameter(*shape)} * h)",
    "lerp": lambda s, shape: f"h = torch.lerp(h, torch.sin(h), {s.parameter(*shape)})",
    "addcmul": lambda s, shape: f"h = torch.addcmul({s.parameter(*shape)}, h, {s.parameter(*shape, prefix='gain')})",
}


@rule("vec seq img", *GAINS)
def numbers(s: Sketch) -> None:
    """Weights applied number by number."""
    width = s.width
    option = s.pick(*GAINS)
    if option == "whole table":
        s.add(s.chosen.choice(["h = h + {}", "h = h * {}"]).format(s.parameter(1, *s.shape)))
        s.flexible = False
    elif option == "cancelling":
        one = s.parameter(prefix="one")
        s.add(f"h = h * {one}.exp() / {one}")
    elif option in BROADCAST:
        shape = (width, 1, 1) if s.kind == "img" else (width,)
        s.add(BROADCAST[option](s, shape))
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
