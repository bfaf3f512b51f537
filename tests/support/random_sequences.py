"""Steps of random networks on sequences and images: positions, attention, recurrence, convolutions."""

from __future__ import annotations

from random_grammar import Sketch, rule

TABLES = (
    "embedded positions",
    "table of positions",
    "network on a grid",
    "repeated row",
    "low-rank table",
    "table and buffer",
)
CHANGED = ("table as it is", "table scaled in place", "table relu_", "first row written")
PLACED = {
    "table added": "h = h + pos",
    "table transposed": "h = (h.transpose(1, 2) + pos.T).transpose(1, 2)",
    "table unsqueezed": "h = h + pos.unsqueeze(0)",
    "table time-major": "h = (h.transpose(0, 1) + pos.unsqueeze(1)).transpose(0, 1)",
    "table added in place": "h += pos",
    "table times": "h = h * pos",
    "table beside": "h = torch.cat([h, pos.expand(h.shape[0], -1, -1)], -1)",
}


@rule("seq", *TABLES, *CHANGED, *PLACED)
def positions(s: Sketch) -> None:
    """Something learnt that has no examples meets the activations."""
    source, changed, placed = s.pick(*TABLES), s.pick(*CHANGED), s.pick(*PLACED)
    table_of_positions(s, source, changed)
    if changed == "table scaled in place":
        s.add(s.chosen.choice(["pos *= 3.0", "pos.mul_(2.0)"]))
    elif changed == "table relu_":
        s.add(s.chosen.choice(["pos.relu_()", "pos = F.relu(pos, inplace=True)"]))
    elif changed == "first row written":
        s.add("pos[0] = 0.0")
    if placed == "table added in place":
        s.writable()
    s.add(PLACED[placed])
    if placed == "table beside":
        s.last(2 * s.width)
    s.fresh = True


def table_of_positions(s: Sketch, source: str, changed: str) -> None:
    """Lines that compute `pos`, with a row for each position."""
    length, width = s.shape
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
