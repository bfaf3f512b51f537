"""A network on one batch, asked what the scale of some of its weights does to its outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _NormBase

from ..messages.errors import NotFiniteError, PeewitError
from ..network.calling import call, with_weights
from ..network.nests import Inputs, count, map_tensors
from ..tracing.forward_mode import double_backward, forward_mode

FACTORS = (0.5, 2.0)
TOLERANCE = 1e-3  # of the outputs' variation
SMALLER = 1e-2  # times eps of every norm: it makes invariances inexact, and would have to be scaled with the weights
SHARE = 1e-2  # of what other weights of the same size do to the outputs: those that do next to nothing pass any test
FAINTEST = 1e-5  # of the outputs' variation: what does less is taken to do nothing
OUTPUTS = 1 << 16  # in a column, evenly spaced among all
STAND_IN = 0.1  # standard deviation of the numbers in place of a tensor of zeros
STEP = 1e-2  # of a scale, for differences in place of derivatives
NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
Names = tuple[str, ...]


@contextmanager
def batch_statistics(model: nn.Module) -> Iterator[None]:
    """Normalisation by the batch at hand, without running averages, so that none of them is read or written."""
    norms: list[Any] = [m for m in model.modules() if isinstance(m, NORMS) and isinstance(m.eps, float)]
    tracked = [module for module in norms if isinstance(module, _NormBase) and module.track_running_stats]
    originals: list[tuple[dict[str, Any], dict[str, Any]]] = [(vars(module), {"eps": module.eps}) for module in norms]
    originals += [(vars(module), {"track_running_stats": True}) for module in tracked]
    originals += [(module._buffers, dict(module._buffers)) for module in tracked]
    # Older weight and spectral norms leave the weight that they computed on the module, for all to see.
    originals += [(vars(m), {k: v for k, v in vars(m).items() if isinstance(v, Tensor)}) for m in model.modules()]
    hooks = []
    try:
        for module in norms:
            module.eps = SMALLER * module.eps
        for module in tracked:
            module.track_running_stats = False
            module._buffers.update(running_mean=None, running_var=None)
            hooks.append(module.register_forward_hook(restore_half_of_mean))
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for attributes, values in originals:
            attributes.update(values)


def restore_half_of_mean(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    """Put half of the batch's mean back: `(x - m / 2) / s`.

    A batch's mean takes a bias before it away, so that its scale would seem free; a running mean, with which the
    network will be used, does not: it has to grow as the bias does. This has the scales of the latter.
    """
    x: Tensor = inputs[0]
    axes = [axis for axis in range(x.dim()) if axis != 1]
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    shift: Tensor = 0.5 * mean / (variance + float(vars(module)["eps"])).sqrt()
    scale = module._parameters["weight"]
    return output + (shift if scale is None else shift * scale.reshape(shift.shape))


@dataclass(kw_only=True)
class RescaledNetwork:
    """A network on one batch, asked for its outputs at other weights."""

    model: nn.Module
    inputs: Inputs
    weights: dict[str, Tensor]  # parameters by their first name; zeros, which hide what they do, are replaced
    modules: list[Names]  # parameters, by the module that owns them: `weight` and `bias` together, others alone
    replaced: dict[str, Tensor]  # weights and buffers that are not the network's own
    plain: Tensor = field(init=False)  # outputs, flat
    variation: float = field(init=False)  # root mean square of the outputs' deviations from their mean over examples
    columns: dict[str, Tensor] = field(default_factory=dict)

    @staticmethod
    def of(model: nn.Module, inputs: Inputs) -> RescaledNetwork:
        """Weights and inputs in float32 at least: the tolerance is below what half precision can tell."""
        parameters = {name: p.detach() for name, p in model.named_parameters() if p.is_floating_point()}
        weights = {
            name: widen(parameter) if bool(parameter.any()) else random_like(parameter, number, STAND_IN)
            for number, (name, parameter) in enumerate(parameters.items())
        }
        replaced = {name: weight for name, weight in weights.items() if weight is not parameters[name]}
        if any(weight.dtype != parameters[name].dtype for name, weight in weights.items()):
            replaced |= {name: widen(buffer) for name, buffer in model.named_buffers() if buffer.is_floating_point()}
            inputs = map_tensors(widen, inputs)
        return RescaledNetwork(
            model=model, inputs=inputs, weights=weights, modules=units_by_module(model, weights), replaced=replaced
        )

    def __post_init__(self) -> None:
        number = count(self.inputs)
        if number < 2:
            raise PeewitError(
                "The first batch has 1 example; expected 2 at least, since batch normalisation is done by the batch."
            )
        self.plain = self.outputs({})
        if not bool(torch.isfinite(self.plain).all()):
            raise NotFiniteError("The network's outputs on the first batch hold NaN or Inf; expected finite numbers.")
        rows = self.plain.reshape(number, -1)
        self.variation = root_mean_square(rows - rows.mean(0)) or root_mean_square(rows)

    def run(self, weights: dict[str, Tensor]) -> Tensor:
        """Outputs of the network with some weights replaced, the same random numbers every time."""
        torch.manual_seed(0)  # `isolated` puts the generators back
        return call(with_weights(self.model, {**self.replaced, **weights}), self.inputs)

    def outputs(self, weights: dict[str, Tensor]) -> Tensor:
        """The outputs, flat and in float64."""
        return self.run(weights).detach().flatten().double()

    def change(self, weights: dict[str, Tensor]) -> float:
        """How far the outputs move."""
        moved = root_mean_square(self.outputs(weights) - self.plain)
        return moved if moved == moved else float("inf")

    def invariant(self, names: Names) -> bool:
        """Whether all scales of these weights together give the same outputs, and other weights do not."""
        scaled = 0.0
        for k in FACTORS:
            scaled = max(scaled, self.change({name: k * self.weights[name] for name in names}))
            if scaled > TOLERANCE * self.variation:
                return False
        others = self.change(
            {
                name: weight + perturbation(weight, number)
                for number, (name, weight) in enumerate(self._weights_of(names))
            }
        )
        return others > FAINTEST * self.variation and scaled <= SHARE * others

    def _weights_of(self, names: Names) -> list[tuple[str, Tensor]]:
        return [(name, self.weights[name]) for name in names]

    def column(self, names: Names) -> Tensor:
        """`sum_t J_t theta_t`, flat: how the outputs begin to move when the scale of these weights grows."""
        for name in names:
            if name not in self.columns:
                self.columns[name] = self._push(name)
        return torch.stack([self.columns[name] for name in names]).sum(0)

    def _push(self, name: str) -> Tensor:
        weight = self.weights[name]
        with sdpa_kernel([SDPBackend.MATH]):
            pushed = forward_mode(lambda value: self.run({name: value}), weight, weight)
            pushed = double_backward(self.run, {name: weight}, {name: weight}) if pushed is None else pushed
        if pushed is None:  # a combination of columns is tried on its own, so that a difference will do
            moved = [self.run({name: (1 + step) * weight}) for step in (STEP, -STEP)]
            pushed = moved[0], (moved[0] - moved[1]) / (2 * STEP)
        column = pushed[1].detach().flatten()
        return column[:: 1 + column.numel() // OUTPUTS].double()


def units_by_module(model: nn.Module, weights: Iterable[str]) -> list[Names]:
    """Names by the module that owns them: `weight` and `bias` together, others alone, tied ones once."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    free = set(weights)
    units = []
    for module in model.modules():
        owned = {key: names[id(p)] for key, p in module._parameters.items() if p is not None}
        pair = tuple(name for key, name in owned.items() if key in ("weight", "bias"))
        for unit in (pair, *((name,) for name in owned.values() if name not in pair)):
            left = tuple(name for name in unit if name in free)
            free -= {*left}
            units += [left] if left else []
    return units


def widen(tensor: Tensor) -> Tensor:
    """Half precision as float32."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def random_like(tensor: Tensor, seed: int, deviation: float) -> Tensor:
    """Normal numbers in the shape of a tensor, the same every time and on every device."""
    draw = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed), device="cpu")
    return deviation * draw.to(device=tensor.device, dtype=widen(tensor).dtype)


def perturbation(tensor: Tensor, seed: int) -> Tensor:
    """Normal numbers as large as a tensor's own."""
    return random_like(tensor, seed, root_mean_square(tensor))


def root_mean_square(tensor: Tensor) -> float:
    """Root mean square."""
    return float(tensor.double().square().mean().sqrt()) if tensor.numel() else 0.0
