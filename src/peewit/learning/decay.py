"""The prior in training: its gradient added by a hook just before the optimizer's step, or weights shrunk there.

The one place where precisions become weight decays. Training minimises `loss = c * mean energy per example`, and the
log posterior is `- beta * energy - 1/2 |theta - mu|^2_delta` with the energy of all N examples. Divided by
`N * beta / c` and with its sign turned, that is the loss plus `1/2 |theta - mu|^2` times `decay = c delta / (N beta)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..messages.errors import ArgumentTypeError, PeewitError
from ..priors.prior import Prior
from ..weights.space import Space

Decay: TypeAlias = Literal["auto", "coupled", "decoupled", "loss"]
"""How the prior enters training: its gradient added to the loss's, weights shrunk beside the step, or in the loss."""
DECAYS: tuple[Decay, ...] = get_args(Decay)


@dataclass(frozen=True, eq=False)
class Pull:
    """What draws one parameter to the prior's mean: its decay and the mean, numbers or tensors of its shape."""

    parameter: nn.Parameter
    decay: float | Tensor
    mean: float | Tensor

    @property
    def plain(self) -> bool:
        """Whether it is an ordinary weight decay."""
        return not isinstance(self.decay, Tensor) and not isinstance(self.mean, Tensor) and self.mean == 0

    def add_to_gradient(self, factor: float | Tensor) -> None:
        """`gradient += decay * (theta - mean)`, as torch's own optimizers do it; without a gradient nothing moves."""
        slope = self.parameter.grad
        if slope is None:
            return
        if slope.is_sparse:
            raise PeewitError(
                "A weight has a sparse gradient, to which the prior's cannot be added; use sparse=False in the "
                "embedding, or decay='loss' with learner.penalty() in your loss."
            )
        decay = self.decay * factor if isinstance(factor, Tensor) or factor != 1 else self.decay
        if isinstance(decay, Tensor) or isinstance(self.mean, Tensor) or self.mean != 0:
            slope.add_(decay * (self.parameter - self.mean))
        else:
            slope.add_(self.parameter, alpha=decay)

    def shrink(self, rate: float | Tensor) -> None:
        """`theta -= rate * decay * (theta - mean)`, as AdamW does it."""
        if self.parameter.grad is None:
            return
        if isinstance(self.mean, Tensor) or self.mean != 0:
            self.parameter.sub_(rate * self.decay * (self.parameter - self.mean))
        else:
            self.parameter.mul_(1 - rate * self.decay)

    def half_square(self) -> Tensor:
        """(): `1/2 decay |theta - mean|^2`, with its graph."""
        return 0.5 * (self.decay * (self.parameter - self.mean).square()).sum()


def pulls_of(model: nn.Module, space: Space, prior: Prior, factor: float) -> dict[int, Pull]:
    """By the parameter's identity: the pull of a prior, with decays `factor * delta`."""
    delta = precisions_by_name(prior, space, model)
    means = means_by_name(prior, space, model)
    pulls = {}
    for name in space.names:
        parameter = model.get_parameter(name)
        precision = delta[name]
        scaled = precision * factor if isinstance(precision, float) else (precision * factor).to(parameter.dtype)
        pulls[id(parameter)] = Pull(parameter, scaled, means[name])
    return pulls


def precisions_by_name(prior: Prior, space: Space, model: nn.Module) -> Mapping[str, float | Tensor]:
    """The precision of each tensor: one number where its weights share it."""
    if prior.grouping.within_tensors or prior.base is not None:
        like = torch.empty(0, dtype=torch.float64, device=next(model.parameters()).device)
        return split(prior.delta(space, like), space)
    values = prior.precision.detach().double().cpu()
    numbers = prior.grouping.tensors(space)
    return {name: float(values[numbers[name] if values.numel() > 1 else 0]) for name in space.names}


def means_by_name(prior: Prior, space: Space, model: nn.Module) -> Mapping[str, float | Tensor]:
    """The prior's mean of each tensor."""
    if not isinstance(prior.mean, Tensor) or prior.mean.numel() == 1:
        return dict.fromkeys(space.names, float(prior.mean))
    parameter = model.get_parameter(space.names[0])
    return split(prior.centre(space, parameter.detach()), space)


def split(vector: Tensor, space: Space) -> dict[str, Tensor]:
    """(D,) as tensors of the shapes of the weights."""
    pieces = vector.split([shape.numel() for shape in space.shapes])
    return {name: piece.reshape(shape) for name, piece, shape in zip(space.names, pieces, space.shapes, strict=True)}


def optimizers_of(given: Any) -> tuple[Optimizer, ...]:
    """One optimizer or several, without what libraries wrap around them."""
    several = list(given) if isinstance(given, list | tuple) else [given]
    inner = tuple({id(each): each for each in (getattr(each, "optimizer", each) for each in several)}.values())
    for each in inner:
        if not isinstance(each, Optimizer):
            raise ArgumentTypeError(
                f"optimizer is a {type(each).__name__}; expected a torch.optim.Optimizer of the network's weights, or "
                "a list of them."
            )
    return inner


def groups_by_parameter(optimizers: Iterable[Optimizer]) -> dict[int, dict[str, Any]]:
    """The parameter group of each parameter that is trained."""
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    return {id(parameter): group for group in groups for parameter in group["params"]}


def check_owned(optimizers: Sequence[Optimizer], model: nn.Module, space: Space, price: float) -> None:
    """Refuse weights that no optimizer trains, and a weight decay beside the prior; `price` is `N beta / c`."""
    groups = groups_by_parameter(optimizers)
    missing = [name for name in space.names if id(model.get_parameter(name)) not in groups]
    if missing:
        raise PeewitError(
            f"The optimizer does not own {', '.join(missing[:3])}{f' and {len(missing) - 3} more' * (len(missing) > 3)}"
            f" of the network's weights: it was made from another network, or before the weights were replaced. Make "
            "it from model.parameters(), or choose weights= that it trains."
        )
    for name in space.names:
        decay = float(groups[id(model.get_parameter(name))].get("weight_decay") or 0)
        if decay:
            raise PeewitError(
                f"The optimizer has weight_decay={decay:g} for {name!r}, and the prior is a weight decay too; set it "
                f"to 0. The prior precision that means the same is {decay * price:.4g}: give it as prior= to begin "
                "there."
            )


@dataclass(eq=False)
class PriorHook:
    """What an optimizer runs before each step: the prior's part of it."""

    decay: Decay
    pulls: Mapping[int, Pull] = field(default_factory=dict)

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before the step; where the step itself computes gradients, after it has computed them."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args begin with the optimizer itself
        if closure is None or self.decay == "loss":
            self.apply(optimizer)
            return None
        others = {name: value for name, value in kwargs.items() if name != "closure"}
        return (args[0], self._after(closure, optimizer), *args[2:]), others

    def _after(self, closure: Callable[[], Any], optimizer: Optimizer) -> Callable[[], Any]:
        """The closure that computes the loss, and then the prior's part: several times a step, it may be."""

        def with_prior() -> Any:
            loss = closure()
            with torch.no_grad():
                self.apply(optimizer)
                return loss.detach() + self.penalty(optimizer) if isinstance(loss, Tensor) else loss

        return with_prior

    def penalty(self, optimizer: Optimizer) -> Tensor | float:
        """What the gradients that were added are the gradient of."""
        if not isinstance(optimizer, torch.optim.LBFGS) or is_decoupled(self.decay, optimizer):
            return 0.0  # only a line search compares values
        return sum((pull.half_square() for group in optimizer.param_groups for pull in self._own(group)), 0.0)

    def _own(self, group: Mapping[str, Any]) -> list[Pull]:
        """The pulls of a parameter group's weights."""
        return [self.pulls[id(each)] for each in group["params"] if id(each) in self.pulls]

    @torch.no_grad()
    def apply(self, optimizer: Optimizer) -> None:
        """For all of its weights."""
        if self.decay == "loss":
            return
        # Gradients of fused steps under a GradScaler, and whether the step will be left out: tensors, nobody waits.
        scaled, broken = (getattr(optimizer, name, None) for name in ("grad_scale", "found_inf"))
        for group in optimizer.param_groups:
            if is_decoupled(self.decay, optimizer):
                rate = group["lr"] if broken is None else group["lr"] * (1 - broken)
                for pull in self._own(group):
                    pull.shrink(rate)
            else:
                sign = -1.0 if group.get("maximize") else 1.0
                add_to_gradients(self._own(group), sign if scaled is None else sign * scaled)


def is_decoupled(decay: Decay, optimizer: Optimizer) -> bool:
    """Whether weights shrink beside the step, as in AdamW; by default as the optimizer's own weight decay would."""
    own = any(group.get("decoupled_weight_decay") for group in optimizer.param_groups)
    return decay == "decoupled" or (decay == "auto" and (own or isinstance(optimizer, torch.optim.AdamW)))


def add_to_gradients(pulls: Sequence[Pull], factor: float | Tensor) -> None:
    """All of them, in few calls where they have one decay."""
    decays = {pull.decay for pull in pulls if not isinstance(pull.decay, Tensor)}
    plain = all(pull.plain and pull.parameter.grad is not None and not pull.parameter.grad.is_sparse for pull in pulls)
    if plain and len(decays) == 1 and not isinstance(factor, Tensor) and len(pulls) > 1:
        gradients = [pull.parameter.grad for pull in pulls]
        torch._foreach_add_(gradients, [pull.parameter for pull in pulls], alpha=factor * decays.pop())  # type: ignore[arg-type]
        return
    for pull in pulls:
        pull.add_to_gradient(factor)


def attach(optimizers: Sequence[Optimizer], hook: PriorHook) -> list[Any]:
    """Register the hook, unless another one is there already."""
    for optimizer in optimizers:
        if any(isinstance(each, PriorHook) for each in optimizer._optimizer_step_pre_hooks.values()):
            raise PeewitError(
                "The optimizer already has a learner, which adds its prior at every step; call detach() of that one "
                "before another takes its place."
            )
    return [optimizer.register_step_pre_hook(hook) for optimizer in optimizers]
