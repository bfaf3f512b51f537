"""Random small networks from a grammar: each is the source of a class, a function of its seed and readable as it is.

A program is a list of steps, and a sketch writes them down one after the other. A step that does not fit the
activations it meets is left out, so that any part of a program is a program: failures are shrunk by removing steps.
Structure comes from Python's generator and values from torch's on the CPU in float64, so a seed is the same everywhere.
"""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

WEIGHTS = 300  # at most about as many: the references are dense
KINDS = ("vec", "seq", "img")  # activations (B, d), (B, T, d), (B, c, h, w)


class Step(NamedTuple):
    """A step of a program: a rule of the grammar, the option it is wanted for, and the seed of its choices."""

    name: str
    wanted: str
    seed: int


class Rule(NamedTuple):
    """How a step is written down, for which activations, and what its options are called."""

    write: Callable[[Sketch], None]
    kinds: tuple[str, ...]
    options: tuple[str, ...]
    filler: bool
    fits: Callable[[Sketch], bool]


RULES: dict[str, Rule] = {}


def rule(kinds: str, *options: str, filler: bool = True, fits: Callable[[Sketch], bool] = lambda s: True) -> Callable:
    """Add a rule to the grammar; one that is no filler is written only where it is wanted."""

    def add(write: Callable[[Sketch], None]) -> Callable[[Sketch], None]:
        RULES[write.__name__] = Rule(write, tuple(kinds.split()), options, filler, fits)
        return write

    return add


def owners() -> dict[str, str]:
    """For every option of the grammar the rule it belongs to."""
    return {option: name for name, each in RULES.items() for option in each.options}


@dataclass(kw_only=True)
class Sketch:
    """A network that is being written: its activations `h` now, and the lines so far."""

    chosen: random.Random
    kind: str = ""
    shape: tuple[int, ...] = ()  # of one example
    wanted: str = ""
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)  # by argument: its shape, and for tokens
    tokens: dict[str, tuple[int, int]] = field(default_factory=dict)  # the lowest and the highest number
    made: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    helpers: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)
    weights: int = 0
    names: int = 0
    fresh: bool = False  # whether no step saved `h` for its gradient, so that it may be written into
    flexible: bool = True  # whether another length will do
    table: str = ""  # an embedding of tokens, which a head can be tied to
    table_width: int = 0
    channels_last: bool = False
    transposed: bool = False
    head: str = ""

    @property
    def width(self) -> int:
        """The size of the last axis, or the channels of an image."""
        return self.shape[0] if self.kind == "img" else self.shape[-1]

    def pick(self, *options: str) -> str:
        """One of the rule's options: the wanted one, where it is among them."""
        option = self.wanted if self.wanted in options else self.chosen.choice(options)
        self.used.append(option)
        return option

    def note(self, option: str) -> None:
        """Count an option that was not picked among others."""
        self.used.append(option)

    def size(self, low: int = 2, high: int = 4) -> int:
        """A small size."""
        return self.chosen.randint(low, high)

    def add(self, *lines: str) -> None:
        """Write lines of the forward pass."""
        self.lines.extend(lines)

    def module(self, text: str, weights: int) -> str:
        """Make a module and return what it is called."""
        return self.attribute("m", text, weights)

    def parameter(self, *shape: int, prefix: str = "p") -> str:
        """Make a parameter and return what it is called; those called `gain` are near one, `one` is one exactly."""
        count = 1
        for each in shape:
            count *= each
        inner = f"({', '.join(map(str, shape))},)" if shape else "()"
        return self.attribute(prefix, f"nn.Parameter(torch.zeros({inner}))", count)

    def buffer(self, *shape: int) -> str:
        """Make a buffer and return what it is called."""
        self.names += 1
        name = f"c{self.names}"
        self.made.append(f'self.register_buffer("{name}", torch.zeros({", ".join(map(str, shape))}))')
        return f"self.{name}"

    def attribute(self, prefix: str, text: str, weights: int) -> str:
        """Make an attribute with a name of its own and return it."""
        self.names += 1
        self.weights += weights
        self.made.append(f"self.{prefix}{self.names} = {text}")
        return f"self.{prefix}{self.names}"

    def linear(self, inputs: int, outputs: int, bias: bool = True) -> str:
        """Make a linear layer and return what it is called."""
        text = f"nn.Linear({inputs}, {outputs}{'' if bias else ', bias=False'})"
        return self.module(text, inputs * outputs + bias * outputs)

    def last(self, width: int) -> None:
        """Note another size of the last axis of vectors or sequences."""
        self.shape = (*self.shape[:-1], width)

    def writable(self) -> None:
        """Make `h` something that may be written into, with the strides it has."""
        if not self.fresh:
            self.add("h = h * 0.9")
        self.fresh = True

    def smooth(self, of: str = "h") -> str:
        """An activation with all derivatives."""
        return self.chosen.choice(
            [f"torch.tanh({of})", f"torch.sin({of})", f"F.softplus({of})", f"F.gelu({of})", f"torch.sigmoid({of})"]
        )

    def source(self) -> str:
        """The class as Python."""
        arguments = ", ".join(self.inputs)
        made = "\n".join(f"        {line}" for line in self.made)
        lines = "\n".join(f"        {line}" for line in self.lines)
        helpers = "\n\n".join(dict.fromkeys(self.helpers))
        return (
            f"{helpers}{chr(10) * 2 if helpers else ''}class Net(nn.Module):\n    def __init__(self):\n"
            f"        super().__init__()\n{made}\n\n    def forward(self, {arguments}):\n{lines}\n        return h\n"
        )


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network as source, with what its inputs, outputs and targets are: printed, it is a case to keep."""

    seed: int
    source: str
    inputs: dict[str, tuple[int, ...]]
    tokens: dict[str, tuple[int, int]] = field(default_factory=dict)
    likelihood: str = "regression"
    examples: int
    outputs: tuple[int, ...]  # (C,) or (T, C)
    flexible: bool = False  # whether sequences of another length will do
    channels_last: bool = False
    transposed: bool = False
    mapping: bool = False
    options: tuple[str, ...] = ()  # of the grammar
    program: tuple[Step, ...] = ()

    def model(self) -> nn.Module:
        """The network in float64, its weights drawn by its seed."""
        name = f"<network {self.seed} {hash(self.source)}>"
        linecache.cache[name] = (len(self.source), None, self.source.splitlines(keepends=True), name)
        space: dict[str, Any] = {"torch": torch, "nn": nn, "F": nn.functional, "__name__": "random_network"}
        exec(compile(self.source, name, "exec"), space)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = space["Net"]().double().eval()
        draw(model, self.seed)
        if self.channels_last:
            model = model.to(memory_format=torch.channels_last)
        return stored_transposed(model) if self.transposed else model

    def questions(self, examples: int | None = None, length: int | None = None) -> dict[str, Tensor]:
        """Inputs by argument, with another number of examples or another length where that is asked."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        made = {}
        for name, shape in self.inputs.items():
            if length is not None and self.lengths(name):
                shape = (length, *shape[1:])
            size = (self.examples if examples is None else examples, *shape)
            if name in self.tokens:
                low, high = self.tokens[name]
                made[name] = torch.randint(low, high + 1, size, generator=generator)
            else:
                made[name] = 3 * torch.rand(size, generator=generator, dtype=torch.float64) - 1.5
        return made

    def lengths(self, name: str) -> bool:
        """Whether the first axis of an input is that of positions."""
        return name in self.tokens or len(self.inputs[name]) == 2

    def given(self, inputs: dict[str, Tensor]) -> Any:
        """Inputs as `fit` takes them: a tensor, a tuple or a mapping."""
        if self.mapping:
            return inputs
        return next(iter(inputs.values())) if len(inputs) == 1 else tuple(inputs.values())

    def targets(self) -> Tensor:
        """Real targets (N, *outputs), or labels (N, *positions)."""
        generator = torch.Generator().manual_seed(self.seed + 2)
        if self.likelihood == "classification":
            return torch.randint(0, self.outputs[-1], (self.examples, *self.outputs[:-1]), generator=generator)
        return 2 * torch.rand((self.examples, *self.outputs), generator=generator, dtype=torch.float64) - 1

    def __str__(self) -> str:
        """Python that makes it again."""
        rows = [f"    seed={self.seed},", f"    inputs={self.inputs},"]
        rows += [f"    tokens={self.tokens},"] if self.tokens else []
        rows += [] if self.likelihood == "regression" else [f'    likelihood="{self.likelihood}",']
        rows += [f"    examples={self.examples},", f"    outputs={self.outputs},"]
        rows += [
            f"    {name}=True,"
            for name in ("flexible", "channels_last", "transposed", "mapping")
            if getattr(self, name)
        ]
        return "Network(\n" + "\n".join(rows) + f'\n    source="""\n{self.source}""",\n)'


def draw(model: nn.Module, seed: int) -> None:
    """Fill weights and buffers by a seed: exact numbers, the same on every machine."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(tensor: Tensor) -> Tensor:
        return 2 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64) - 1

    norms = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.InstanceNorm1d)
    near_one = {
        f"{name}.weight" for name, each in model.named_modules() if isinstance(each, (*norms, nn.InstanceNorm2d))
    }
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            last = name.rpartition(".")[2]
            if last.startswith("one"):
                parameter.fill_(1.0)
            elif name in near_one or last.startswith(("gain", "original0")):
                parameter.copy_(1 + 0.3 * uniform(parameter))
            else:
                inputs = parameter.numel() / len(parameter) if parameter.dim() > 1 else 4
                parameter.copy_(1.8 / max(inputs, 1) ** 0.5 * uniform(parameter))
        for name, value in model.named_buffers():
            if value.is_floating_point():
                value.copy_(1 + 0.4 * uniform(value) if name.endswith("running_var") else 0.8 * uniform(value))


def stored_transposed(model: nn.Module) -> nn.Module:
    """The same network, each parameter with the same values in other strides; recurrent ones cannot go to a GPU so."""
    recurrent = [each for each in model.modules() if isinstance(each, nn.RNNBase) and torch.cuda.is_available()]
    kept = {id(parameter) for module in recurrent for parameter in module.parameters()}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and id(parameter) not in kept:
                axes = tuple(reversed(range(parameter.dim())))
                parameter.set_(parameter.detach().permute(axes).contiguous().permute(axes))
    return model


def write(sketch: Sketch, step: Step) -> bool:
    """Write a step down, or leave it out where it does not fit; whether it was written."""
    found = RULES[step.name]
    if (found.kinds and sketch.kind not in found.kinds) or not found.fits(sketch):
        return False
    sketch.chosen, sketch.wanted = random.Random(step.seed), step.wanted
    found.write(sketch)
    return True


def finish(sketch: Sketch, seed: int, program: tuple[Step, ...]) -> Network:
    """The network that was written, with its targets."""
    chosen = random.Random(seed)
    likelihood = chosen.choice(["classification", "regression"]) if sketch.shape[-1] > 1 else "regression"
    return Network(
        seed=seed,
        source=sketch.source(),
        inputs=sketch.inputs,
        tokens=sketch.tokens,
        likelihood=likelihood,
        examples=chosen.choice([3, 4, 5, 6]),
        outputs=sketch.shape,
        flexible=sketch.flexible and any(len(each) < 3 and (len(each) == 2) for each in sketch.inputs.values()),
        channels_last=sketch.channels_last,
        transposed=sketch.transposed,
        mapping="mapping" in sketch.used,
        options=tuple(dict.fromkeys(sketch.used)),
        program=program,
    )


def network_of(program: tuple[Step, ...], seed: int) -> Network:
    """Write a whole program down."""
    sketch = Sketch(chosen=random.Random(0))
    for step in program:
        write(sketch, step)
    return finish(sketch, seed, program)


def random_network(seed: int) -> Network:
    """The network of a seed: a few options of the grammar in turn, with others drawn around them."""
    chosen = random.Random(seed)
    options = list(owners())
    places = {option: place for place, option in enumerate(options)}
    count = len(options)
    wanted = [options[seed % count], options[(seed * 7 + 3) % count], *chosen.sample(options, 5)]
    program: list[Step] = []
    sketch = Sketch(chosen=random.Random(0))

    def put(name: str, option: str = "") -> None:
        step = Step(name, option, chosen.randrange(10**6))
        if write(sketch, step):
            program.append(step)

    home = owners()
    put("inputs", _input_for(wanted, home))
    put("memory", next((each for each in wanted if home[each] == "memory"), ""))
    middle = [each for each in wanted if home[each] not in ("inputs", "memory", "head")]
    # From images to sequences to vectors: the later kinds are reached from the earlier ones.
    rank = {"img": 0, "seq": 1, "vec": 2}
    middle.sort(key=lambda each: (min(rank[kind] for kind in RULES[home[each]].kinds), places[each]))
    for option in middle:
        _toward(put, sketch, RULES[home[option]].kinds)
        if sketch.kind != "img" and sketch.width > 6:
            put("linear_map")
        if sketch.weights < WEIGHTS * 2 // 3:
            put(home[option], option)
        if sketch.weights < WEIGHTS // 3 and chosen.random() < 0.4:
            put(chosen.choice([name for name, each in RULES.items() if each.filler and sketch.kind in each.kinds]))
    put("head", next((each for each in wanted if home[each] == "head"), ""))
    return finish(sketch, seed, tuple(program))


def _input_for(wanted: list[str], home: dict[str, str]) -> str:
    """The input that the first wanted option that needs one of some kind can be reached from."""
    for option in wanted:
        kinds = RULES[home[option]].kinds
        if home[option] == "inputs":
            return option
        if option == "head tied to the embedding":
            return "tokens"
        if kinds == ("img",):
            return "image"
        if option == wanted[0] and kinds == ("seq",):
            return "sequence"
    return ""


def _toward(put: Callable[[str], None], sketch: Sketch, kinds: tuple[str, ...]) -> None:
    """Turn activations into one of some kinds, where there is a way."""
    if sketch.kind in kinds:
        return
    if "seq" in kinds:
        put("to_sequence")
    elif "vec" in kinds:
        put("to_vector")
