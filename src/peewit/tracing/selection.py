"""`weights=`: names, patterns, masks, the last layer, LoRA pairs, and subnetworks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from ..messages.arguments import check_generator
from ..messages.errors import ArgumentTypeError, PeewitError
from ..messages.names import check_name, spelled, spelled_class
from ..messages.warnings import FitWarning, warn
from ..network.isolation import isolated
from ..network.nests import Inputs
from ..runtime.memory import Budget
from ..weights.space import Space, WeightsName, low_rank_pairs, make_space, masked_space, matching, trainable
from .graph import owners
from .layers.contract import Use
from .recording import walk
from .tape import Tape
from .tracer import Tracer

SubnetworkRule: TypeAlias = Literal["variance", "magnitude", "random"]
"""How single weights are chosen: by their variance, by their size, or at random."""


@spelled_class
@dataclass(frozen=True)
class Subnetwork:
    """A number of single weights, chosen by variance, by magnitude or at random.

    Pass it as `weights=` to `pw.fit`, with `structure="diag"` or `"full"`: other structures cannot hold single elements
    of a tensor. `largest_variance`, `largest_magnitude` and `random` make one.

    Args:
        by: "variance": the weights with the largest posterior variance under a diagonal fit, which passes over the data
            once more. "magnitude": the weights with the largest absolute value. "random": weights drawn uniformly.
        size: Number of weights, from 1 to all trainable ones; `pw.fit` refuses others.
        generator: Source of random numbers for "random"; None for a fixed seed.

    Raises:
        PeewitError: `by` is none of the above.

    Example:
        >>> chosen = pw.Subnetwork.largest_magnitude(10)
        >>> pw.fit(model, (x, y), "classification", weights=chosen, structure="full").D
        10
    """

    by: SubnetworkRule
    size: int
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        check_name(self.by, get_args(SubnetworkRule), "by")
        check_generator(self.generator)

    @staticmethod
    @spelled
    def largest_variance(size: int) -> Subnetwork:
        """Choose the weights with the largest posterior variance under a diagonal fit.

        Args:
            size: Number of weights.

        Returns:
            The choice, for `weights=` of `pw.fit`.

        Raises:
            PeewitError: By `pw.fit`, where `size` is not a whole number from 1 to the number of weights.

        Example:
            >>> chosen = pw.Subnetwork.largest_variance(10)
            >>> pw.fit(model, (x, y), "classification", weights=chosen, structure="diag").D
            10
        """
        return Subnetwork("variance", size)

    @staticmethod
    @spelled
    def largest_magnitude(size: int) -> Subnetwork:
        """Choose the weights with the largest absolute value.

        Args:
            size: Number of weights.

        Returns:
            The choice, for `weights=` of `pw.fit`.

        Raises:
            PeewitError: By `pw.fit`, where `size` is not a whole number from 1 to the number of weights.

        Example:
            >>> pw.Subnetwork.largest_magnitude(10).by
            'magnitude'
        """
        return Subnetwork("magnitude", size)

    @staticmethod
    @spelled
    def random(size: int, generator: torch.Generator | None = None) -> Subnetwork:
        """Choose weights uniformly at random.

        Args:
            size: Number of weights.
            generator: Source of random numbers. None for a fixed seed.

        Returns:
            The choice, for `weights=` of `pw.fit`.

        Raises:
            ArgumentTypeError: `generator` is not a torch.Generator.

        Example:
            >>> chosen = pw.Subnetwork.random(10, generator=torch.Generator().manual_seed(1))
            >>> pw.fit(model, (x, y), "classification", weights=chosen, structure="full").D
            10
        """
        return Subnetwork("random", size, generator)

    def scores(self, model: nn.Module, space: Space, variance: Callable[[], Tensor]) -> Tensor:
        """(total,): the larger, the sooner chosen."""
        if self.by == "variance":
            return variance()
        if self.by == "magnitude":
            return space.vector(model).abs()
        generator = self.generator or torch.Generator("cpu").manual_seed(0)
        return torch.rand(space.total, generator=generator, dtype=torch.float64, device=generator.device)

    def choose(self, model: nn.Module, variance: Callable[[], Tensor]) -> Space:
        """The space of the chosen weights."""
        space = make_space(model, trainable(model))
        if isinstance(self.size, bool) or not isinstance(self.size, int) or not 1 <= self.size <= space.total:
            raise PeewitError(f"Subnetwork size {self.size!r}: expected a whole number from 1 to {space.total}.")
        chosen = torch.zeros(space.total, dtype=torch.bool, device="cpu")
        scores = self.scores(model, space, variance).cpu()
        # A stable order, so that ties do not depend on the device.
        chosen[scores.sort(descending=True, stable=True).indices[: self.size]] = True
        return masked_space_of(model, space, chosen)


Weights: TypeAlias = WeightsName | str | Sequence[str] | Tensor | Mapping[str, Tensor] | Subnetwork
"""The uncertain weights: a `WeightsName`; names of parameters, or patterns such as "head.*"; a mask, which is one
tensor over all trainable weights or a mapping from names of parameters to tensors; or a `pw.Subnetwork`."""


def masked_space_of(model: nn.Module, space: Space, chosen: Tensor) -> Space:
    """A space of elements of another space."""
    masks = {
        name: chosen[elements].reshape(shape)
        for (name, elements), shape in zip(space.slices().items(), space.shapes, strict=True)
    }
    return masked_space(model, masks)


def last_layer(model: nn.Module, inputs: Inputs, budget: Budget) -> tuple[str, ...]:
    """The weights of the last matrix-shaped layer that the network runs."""
    names = tuple(name for name in trainable(model) if not model.get_parameter(name).is_complex())
    tracer = Tracer(model, names, budget)
    with isolated(model, tracer.selected):
        tracer.cost(inputs)  # says what is wrong with the inputs, where something is
        tape = tracer.trace(inputs)
        reached = tape.reached_uses()  # an auxiliary head may run after the one whose output is returned
        matrices = [use for use in tape.uses if use.rule.matrix and "weight" in use.views and use.key in reached]
        if not matrices:
            raise PeewitError(
                "weights='last_layer': no linear, convolution or embedding layer was run; name the weights instead."
            )
        weights = matrices[-1].names
        others = [name for name in beside(tape, matrices[-1]) if name not in weights]
    if others:
        warn(
            f"weights='last_layer' takes {', '.join(weights)}; {', '.join(others)} also reaches the output, without "
            f"passing through that layer, and is held fixed. Name the weights that are meant, such as "
            f"weights={[*weights, *others]}.",
            FitWarning,
        )
    return weights


def beside(tape: Tape, last: Use) -> list[str]:
    """Weights on the ways to the output that do not pass through the last layer, down to the next layer of each."""
    uses = {use.edge.node: use for use in tape.uses}
    passed = set(walk([tape.output.grad_fn], lambda node: node in uses and uses[node].rule.matrix))
    names = owners(passed, {id(parameter): name for name, parameter in tape.parameters.items()})
    names.update(name for node in passed if node in uses and uses[node] is not last for name in uses[node].names)
    return [name for name in tape.parameters if name in names]


def select(
    model: nn.Module, weights: Weights, first: Callable[[], Inputs], budget: Budget, variance: Callable[[], Tensor]
) -> Space:
    """The space that `weights=` asks for; `first` gives a batch of inputs, `variance` a diagonal fit's."""
    space = chosen_space(model, weights, first, budget, variance)
    hooked = [name for name in space.names if model.get_parameter(name)._backward_hooks]
    if hooked:
        warn(
            f"{', '.join(hooked)} has a hook that may change its gradient in training; the posterior is of the "
            "network's own derivatives, without it. Where the hook holds elements fixed, leave them out by a mask, "
            f"weights={{{hooked[0]!r}: ...}}.",
            FitWarning,
        )
    return space


def chosen_space(
    model: nn.Module, weights: Weights, first: Callable[[], Inputs], budget: Budget, variance: Callable[[], Tensor]
) -> Space:
    """Which weights are meant."""
    if isinstance(weights, Subnetwork):
        return weights.choose(model, variance)
    if isinstance(weights, Tensor | Mapping):
        return masked_space(model, weights)
    if isinstance(weights, str):
        if weights == "all":
            return make_space(model, trainable(model))
        if weights == "last_layer":
            return make_space(model, last_layer(model, first(), budget))
        if weights == "lora":
            return make_space(model, low_rank_pairs(model))
        return make_space(model, matching(model, [weights]))
    if isinstance(weights, Iterable):
        return make_space(model, matching(model, [str(each) for each in weights]))
    raise ArgumentTypeError(
        f"weights is a {type(weights).__name__}; expected 'all', 'last_layer', 'lora', names or patterns, "
        "a mask, or a Subnetwork."
    )
