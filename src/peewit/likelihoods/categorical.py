"""Classes: cross entropy with ignored labels, class weights, label smoothing and soft targets."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Categorical as CategoricalDistribution

from ..messages.errors import ArgumentTypeError, PeewitError
from ..messages.names import spelled_class
from ..messages.warnings import FitWarning, warn
from ..runtime.random import Hashed
from .comparison import ConstantComparison, Decisions, Energies, compare_labels
from .contract import Likelihood
from .form import ALL, Form, usual_axis


def fitting_axes(shape: tuple[int, ...], y: Tensor) -> list[int]:
    """The axes of outputs, but the examples', whose removal leaves the labels' shape."""
    return [axis for axis in range(1, len(shape)) if shape[:axis] + shape[axis + 1 :] == tuple(y.shape)]


def advice_for_labels(shape: tuple[int, ...], y: Tensor) -> str:
    """What to type for labels that do not fit; "" where nobody can tell."""
    if tuple(y.shape) == shape:
        return f" One-hot labels are y.argmax({extra_axis(shape)})."
    if y.dim() == 2 and y.shape[0] == 1 and y.shape[1] == shape[0]:
        return " Give y[0]."
    return ""


def extra_axis(shape: tuple[int, ...]) -> int:
    """Where labels shaped as outputs (N, C), (N, T, C) or (N, C, H, W) have an axis of one in place of the classes."""
    return 1 if len(shape) > 3 else len(shape) - 1


def squeezable(shape: tuple[int, ...], y: Tensor) -> bool:
    """Whether labels have an axis of one where the outputs have several classes, and fit them without it."""
    if y.dim() != len(shape) or len(shape) < 2:
        return False
    axis = extra_axis(shape)
    rest = shape[:axis] + shape[axis + 1 :]
    return y.shape[axis] == 1 < shape[axis] and tuple(y.shape[:axis] + y.shape[axis + 1 :]) == rest


@spelled_class
@dataclass(frozen=True, kw_only=True)
class Categorical(Likelihood):
    """Classes, one of which is right: the outputs are logits of a softmax.

    `pw.fit(..., "classification")` takes it. Targets are class numbers, shaped as the outputs without their class axis,
    or class probabilities in the outputs' own shape. Class numbers may be floats, have an axis of one in place of the
    classes, or be booleans where there are two classes. The loss is `torch.nn.CrossEntropyLoss(reduction="sum")`, and
    the options have its names. With `weight` or `label_smoothing` the loss is not a likelihood of the labels, so the
    evidence comes with a caveat.

    Args:
        ignore_index: Labels with this value are missing: they have no energy and no curvature.
        axis: The class axis of the outputs. None: the axis whose removal leaves the labels' shape. Where two axes fit,
            it is the last one of outputs with two or three axes, with a warning, and axis 1 of outputs with more.
        weight: One number per class, (C,), that multiplies the energy of its labels.
        label_smoothing: The share of each label that is spread evenly over all classes, from 0 to below 1.
        shift: Whether outputs at position t predict the label at t + 1, as in causal language models whose labels are
            their inputs. None: `pw.fit` does what the network's own loss does, where the network computes one; where
            that is equal both ways, what the name of its class says.

    Raises:
        PeewitError: `weight` or `label_smoothing` is out of range; by `pw.fit`, where labels do not fit the outputs.

    Example:
        >>> some = y.clone()
        >>> some[:20] = -1  # these labels are not known
        >>> la = pw.fit(model, (x, some), pw.Categorical(ignore_index=-1))
        >>> la.predict(x).probs.shape
        torch.Size([60, 3])
    """

    ignore_index: int = -100
    axis: int | None = None
    weight: Tensor | None = None
    label_smoothing: float = 0.0
    shift: bool | None = None

    def __post_init__(self) -> None:
        if self.weight is not None:
            weight = torch.as_tensor(self.weight)
            if weight.dim() != 1 or not bool(torch.isfinite(weight).all()) or bool((weight < 0).any()):
                raise PeewitError(
                    f"Categorical(weight=...): {self.weight!r} was given; expected one finite number per class, none "
                    "negative."
                )
            object.__setattr__(self, "weight", weight.clone())  # a value: later changes by the caller stay outside
        smoothing = self.label_smoothing
        if isinstance(smoothing, bool) or not isinstance(smoothing, int | float) or not 0 <= smoothing < 1:
            raise PeewitError(f"Categorical(label_smoothing={smoothing!r}): expected a number from 0 to 1.")

    title = "classification"
    link_family = "categorical"
    draws = True

    @property
    def caveat(self) -> str:
        """Weighted or smoothed losses are not a likelihood of the labels."""
        names = [name for name, on in self._options() if on]
        return f"with {' and '.join(names)} the loss is not a likelihood of the labels" if names else ""

    def _options(self) -> tuple[tuple[str, bool], ...]:
        return ("class weights", self.weight is not None), ("label smoothing", self.label_smoothing > 0)

    def prepare(self, f: Tensor, y: Tensor) -> Tensor:
        # Whole numbers in floating point are class numbers, so are booleans of two classes, and (N, 1) is (N,).
        shape = tuple(f.shape)
        if self.axis is None and squeezable(shape, y):
            y = y.squeeze(extra_axis(shape))
        if y.is_floating_point() and tuple(y.shape) != shape and bool((y == y.round()).all()):
            return y.long()
        both = [axis for axis in fitting_axes(shape, y) if shape[axis] == 2]
        return y.long() if y.dtype == torch.bool and both else y

    def form(self, f: Tensor, y: Tensor, like: Form | None = None) -> Form:
        # The class axis is the one whose removal leaves the target's shape.
        if f.dim() < 2:
            raise PeewitError(
                f"classification: the network's output has shape {tuple(f.shape)}; expected logits (N, C) or "
                "(N, T, C). A network with one logit is binary."
            )
        shape = tuple(f.shape)
        single = shape[1:] == (1,) or (f.dim() == y.dim() + 1 and shape[-1] == 1)
        if self.axis is None and single and not any(shape[axis] > 1 for axis in fitting_axes(shape, y)):
            raise PeewitError(
                f"classification: the network has one output, {shape}, whose softmax is always 1; expected one output "
                "per class. A network with one logit needs a binary likelihood."
            )
        if self.shift and (y.dim() != 2 or len(shape) != 3 or y.is_floating_point()):
            raise PeewitError(
                f"Categorical(shift=True): outputs have shape {shape} and labels {tuple(y.shape)}; expected outputs "
                "(N, T, C) and class numbers (N, T), of tokens in their order."
            )
        form = self._soft_form(shape, y) if y.is_floating_point() else self._hard_form(shape, y, like)
        if self.weight is not None and self.weight.numel() != form.outputs:
            raise PeewitError(
                f"Categorical(weight=...) has {self.weight.numel()} numbers, and the network {form.outputs} classes; "
                "expected one weight per class."
            )
        return form

    def _hard_form(self, shape: tuple[int, ...], y: Tensor, like: Form | None) -> Form:
        fitting = fitting_axes(shape, y)
        axis = self.axis % len(shape) if self.axis is not None else None
        if axis is None and like is not None and like.axis is not None and fitting:
            axis = like.axis + 1
            if axis not in fitting:
                raise PeewitError(
                    f"classification: outputs {shape} and labels {tuple(y.shape)} have their classes on axis "
                    f"{fitting[0]}, those of an earlier batch on axis {axis} as well or instead; "
                    "say which with Categorical(axis=...)."
                )
        if axis is None and fitting:
            preferred = len(shape) - 1 if len(shape) <= 3 else 1
            axis = preferred if preferred in fitting else fitting[0]
            if axis != 1 and 1 in fitting:
                warn(
                    f"classification: outputs {shape} and labels {tuple(y.shape)} fit with the classes on axis 1, "
                    f"where torch.nn.CrossEntropyLoss has them, and on axis {axis}, which is taken; say which with "
                    "Categorical(axis=...).",
                    FitWarning,
                )
        if axis is None or axis not in fitting:
            raise PeewitError(
                f"classification: outputs {shape} and labels {tuple(y.shape)} do not fit; expected labels shaped like "
                f"the outputs without their class axis.{advice_for_labels(shape, y)}"
            )
        return Form(axis - 1, shape[1:])

    def _soft_form(self, shape: tuple[int, ...], y: Tensor) -> Form:
        if tuple(y.shape) != shape:
            raise ArgumentTypeError(
                f"classification: labels have dtype {y.dtype} and shape {tuple(y.shape)}; expected integers (class "
                f"numbers), or class probabilities with the outputs' shape {shape}. Numbers with fractions are targets "
                "of pw.fit(model, (x, y), 'regression')."
            )
        axis = usual_axis(len(shape)) if self.axis is None else self.axis % len(shape) - 1
        if axis == -1:
            raise PeewitError(f"Categorical(axis={self.axis}): axis 0 of outputs {shape} holds the examples.")
        return Form(axis, shape[1:])

    def targets(self, y: Tensor, form: Form) -> Tensor:
        if y.is_floating_point():
            return form.flatten(y)
        if y.is_complex() or y.dtype == torch.bool:
            raise ArgumentTypeError(
                f"classification: labels have dtype {y.dtype}; expected integers (class numbers)."
                + (" Give y.long(), where True is class 1." if y.dtype == torch.bool else "")
            )
        y = y.reshape(y.shape[0], -1).long()
        # The last position has no label: its token would be the next one.
        return torch.nn.functional.pad(y[:, 1:], (0, 1), value=self.ignore_index) if self.shift else y

    def _wrong(self, y: Tensor, form: Form) -> Tensor:
        if y.is_floating_point():
            return ~((y >= 0).all(-1) & ((y.sum(-1) - 1).abs() < 1e-2))
        return (y != self.ignore_index) & ((y < 0) | (y >= form.outputs))

    def valid(self, y: Tensor, form: Form) -> Tensor:
        # No label is out of range.
        return ~self._wrong(y, form).any()

    def complaint(self, y: Tensor, form: Form) -> str:
        # The first label that is out of range.
        first = y[self._wrong(y, form)][0]
        if y.is_floating_point():
            return f"classification: targets {first.tolist()} were given; expected probabilities that sum to one."
        return (
            f"classification: label {int(first)} is outside 0..{form.outputs - 1} "
            f"(the network has {form.outputs} outputs; {self.ignore_index} is ignored). {self._remedy(y, form)}"
        )

    def _remedy(self, y: Tensor, form: Form) -> str:
        """What to type: labels may begin with 1, or one of them may stand for no label."""
        used = y[y != self.ignore_index]
        if int(used.min()) == 1 and int(used.max()) == form.outputs:
            return "Number them from 0: y - 1."
        void = int(y[self._wrong(y, form)][0])
        return (
            f"Number them from 0, as the network was trained. If {void} stands for no label, use "
            f"pw.Categorical(ignore_index={void})."
        )

    def known(self, y: Tensor) -> Tensor:
        return super().known(y) if y.is_floating_point() else y != self.ignore_index

    @property
    def _plain(self) -> bool:
        """Whether hard labels count fully and equally."""
        return self.weight is None and not self.label_smoothing

    def _shares(self, y: Tensor, f: Tensor) -> Tensor:
        """(N, T, C): how much of `-log p_c` each class brings to the energy."""
        classes = f.shape[-1]
        if y.is_floating_point():
            shares = y.to(f.dtype)
        else:
            known = self.labelled(y)
            shares = torch.nn.functional.one_hot(torch.where(known, y, 0), classes).to(f.dtype) * known[..., None]
        if self.label_smoothing:
            total = shares.sum(-1, keepdim=True)
            shares = (1 - self.label_smoothing) * shares + self.label_smoothing / classes * total
        return shares if self.weight is None else shares * self.weight.to(shares, non_blocking=True)

    def energy(self, f: Tensor, y: Tensor) -> Tensor:
        # Cross entropy, (N,).
        if not self._plain or y.is_floating_point():
            return (self._shares(y, f) * (f.logsumexp(-1, keepdim=True) - f)).sum((1, 2))
        known = self.labelled(y)
        picked = f.gather(-1, torch.where(known, y, 0)[..., None])[..., 0]
        return ((f.logsumexp(-1) - picked) * known).sum(1)

    def _strength(self, y: Tensor, f: Tensor) -> Tensor:
        """(N, T): the root of what a position's curvature is multiplied with."""
        if self._plain and not y.is_floating_point():
            return self.labelled(y).to(f.dtype)
        return self._shares(y, f).sum(-1).sqrt()

    def rank(self, outputs: int) -> int:
        # Probabilities sum to one: one probe fewer than classes.
        return max(1, outputs - 1)

    def root(self, f: Tensor, y: Tensor, probes: slice = ALL) -> Tensor:
        # `diag(p) - p p^T = S S^T` by its Cholesky factor, one column less than there are classes. With
        # `s_r = p_r + p_(r+1) + ...`, `S_rr = sqrt(p_r s_(r+1) / s_r)` and `S_cr = -S_rr p_c / s_(r+1)` for c > r.
        # Only probabilities are added: nothing cancels where the network is sure.
        p = f.softmax(-1)
        columns = range(self.rank(f.shape[-1]))[probes]
        sums = torch.nn.functional.pad(p.flip(-1).cumsum(-1).flip(-1), (0, 1))
        upper, after = sums[..., columns.start : columns.stop], sums[..., columns.start + 1 : columns.stop + 1]
        diagonal = (p[..., columns.start : columns.stop] / torch.where(upper > 0, upper, 1.0) * after).sqrt()
        rows = torch.arange(f.shape[-1], device=f.device)[:, None]
        places = torch.arange(columns.start, columns.stop, device=f.device)
        below = torch.where(rows > places, p[..., :, None], 0.0) / torch.where(after > 0, after, 1.0)[..., None, :]
        root = diagonal[..., None, :] * ((rows == places).to(f.dtype) - below)
        return root * self._strength(y, f)[..., None, None]

    def sample(self, f: Tensor, y: Tensor, draws: Hashed) -> Tensor:
        """(N, T): by inverting the distribution function at one uniform number per position."""
        below = f.detach().double().softmax(-1).cumsum(-1)
        drawn = (below < draws.uniform(1)).sum(-1).clamp(max=f.shape[-1] - 1)
        return torch.where(self.labelled(y), drawn, self.ignore_index)

    def drawn_score(self, f: Tensor, y: Tensor, draws: Hashed, create_graph: bool = False) -> Tensor:
        # `p - e_drawn`, as strong as the observed label's curvature is.
        drawn = self.sample(f, y, draws)
        drawn = torch.nn.functional.one_hot(torch.where(self.labelled(y), drawn, 0), f.shape[-1])
        with torch.set_grad_enabled(create_graph):
            return (f.softmax(-1) - drawn.to(f.dtype)) * self._strength(y, f)[..., None]

    def scalars(self, y: Tensor) -> Tensor:
        """Labelled positions."""
        return self.labelled(y).sum()

    def distribution(self, f: Tensor) -> CategoricalDistribution:
        # The distribution of a class number, (..., T).
        return CategoricalDistribution(logits=f, validate_args=False)

    def decisions(self, f: Tensor, y: Tensor) -> Decisions:
        """The most probable class, (N, T)."""
        return Decisions(f.argmax(-1), y.argmax(-1) if y.is_floating_point() else y, self.labelled(y))

    def beside_constant(self, f: Tensor, y: Tensor, energies: Energies, where: str) -> ConstantComparison:
        """By the loss and accuracy."""
        number, decisions = float(self.scalars(y)), self.decisions(f, y)
        per_label = Energies(*(energy / number for energy in energies))
        loss = "loss" if self.caveat else "NLL"
        return compare_labels(per_label, (decisions.accuracy, decisions.usual_accuracy), where, loss)
