"""Why a network, or what came out of it, cannot be used: found out by trying, once something has failed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .batches import Inputs, call, count, map_tensors, restore_buffers, run, tensors
from .complaints import shown
from .likelihoods import Form, Likelihood

# What networks raise at inputs that they do not take.
FAILURES = (RuntimeError, IndexError, TypeError, ValueError, KeyError, AttributeError)
ENERGY, OUTPUT, INPUT = 1, 2, 4  # what was not finite


def failure(model: nn.Module, inputs: Inputs) -> Exception | None:
    """What a network raises at these inputs; call inside `evaluation`."""
    try:
        with torch.no_grad():
            run(model, inputs)
    except FAILURES as error:
        return error
    finally:
        restore_buffers(model)
    return None


def first_line(error: BaseException) -> str:
    """The beginning of a message that may have many lines."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def explained(
    model: nn.Module, inputs: Inputs, tried: int, error: Exception, fitted: Sequence[Any] = ()
) -> Exception | None:
    """Why a network failed; None where it does take these inputs, so that the failure was not its own.

    `fitted` holds signatures that it took before.
    """
    again = failure(model, inputs)
    if again is None:
        if not isinstance(error, RuntimeError | IndexError):
            return None
        return ValueError(
            f"The network took {count(inputs)} examples but fails on {tried} of them ({error}); expected it to take "
            "any number, with everything that belongs to an example in tensors."
        )
    return _of_dtype(model, inputs, again) or _of_form(model, inputs, again, fitted)


def _of_dtype(model: nn.Module, inputs: Inputs, error: Exception) -> TypeError | None:
    """Whether another dtype is all that is missing."""
    weights = next((each.dtype for each in model.parameters() if each.is_floating_point()), torch.float32)
    changes: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda tensor: tensor.to(weights) if tensor.is_floating_point() else tensor,
        lambda tensor: tensor.to(weights),
        lambda tensor: tensor.long() if tensor.is_floating_point() else tensor,
    )
    given = [tensor.dtype for tensor in tensors(inputs)]
    for change in changes:
        converted = map_tensors(change, inputs)
        wanted = [tensor.dtype for tensor in tensors(converted)]
        if wanted != given and failure(model, converted) is None:
            old, new = (", ".join(map(str, dtypes)) for dtypes in (given, wanted))
            return TypeError(
                f"Inputs have dtype {old}, which the network does not take ({first_line(error)}); its weights are "
                f"{weights}. Convert the inputs to {new}, by x.to({new.partition(',')[0]})."
            )
    return None


def _of_form(model: nn.Module, inputs: Inputs, error: Exception, fitted: Sequence[Any]) -> Exception:
    """Shapes, keywords or positions that the network does not take."""
    words = [f"The network fails on inputs that are {shown(inputs)} ({first_line(error)})."]
    if isinstance(inputs, dict | list | tuple):
        how = "keywords" if isinstance(inputs, dict) else "positions"
        takes = ", ".join(inspect.signature(model.forward).parameters)
        words.append(f"Its forward takes ({takes}), and gets the entries as {how}; targets are no inputs.")
    if fitted:
        words.append(f"It was fitted on inputs of shape {shapes(fitted)}.")
    words.append("Expected what the network itself takes, with a leading axis of examples.")
    return (TypeError if isinstance(error, TypeError) else ValueError)(" ".join(words))


def shapes(fitted: Sequence[Any]) -> str:
    """Signatures in words: '(N, 4)', the first few of them."""
    made = dict.fromkeys(
        " and ".join(f"({', '.join(['N', *map(str, shape)])})" for *_, shape in signature) for signature in fitted
    )
    return " or ".join(list(made)[:3])


def refuse_axes(x: Inputs, fitted: Sequence[Any]) -> None:
    """Inputs with another number of axes than any that the network was fitted on: an axis of examples that is missing.

    Lengths may differ: convolutions and sequences take any.
    """
    given = [tensor.dim() - 1 for tensor in tensors(x)]
    known = [[len(shape) for *_, shape in signature] for signature in fitted]
    known = [axes for axes in known if len(axes) == len(given)]
    if not known or given in known:
        return
    single = all(few + 1 == many for few, many in zip(given, known[0], strict=True))
    hint = " A single example goes in as x[None]." if single else ""
    raise ValueError(
        f"x is {shown(x)}, and the network was fitted on inputs of shape {shapes(fitted)}; expected as many axes, the "
        f"first of them the examples'.{hint}"
    )


def broken_rows(value: Any, test: Callable[[Tensor], Tensor] = torch.isfinite) -> Tensor:
    """(N,) booleans: examples with a number that is not finite in any floating point tensor of a nest."""
    every = tensors(value)
    made = torch.zeros(len(every[0]), dtype=torch.bool, device=every[0].device)
    for tensor in every:
        if tensor.is_floating_point() and tensor.numel():
            made = made | ~test(tensor).reshape(len(tensor), -1).all(1)
    return made


class InExample(ValueError):
    """Something wrong with one example of a batch, whose place in the data is known to others."""

    def __init__(self, example: int, reason: str) -> None:
        super().__init__(f"For input number {example}: {reason}")
        self.example = example
        self.reason = reason


CLEAN = "clean it or leave it out"
LOOK = "look for a log, root or division in the network, or for numbers beyond its dtype"


def refuse_nan(output: Tensor, inputs: Inputs) -> None:
    """Outputs that are NaN; infinite ones may be meant, as for classes that are ruled out."""
    broken = broken_rows(output.detach(), lambda tensor: ~torch.isnan(tensor))
    if bool(broken.any()):
        first = int(broken.nonzero()[0, 0])
        if bool(broken_rows(inputs)[first]):
            raise InExample(first, f"the input holds NaN or Inf, and so does the network's output; {CLEAN}.")
        raise InExample(first, f"the network's output is NaN, although the input is finite; {LOOK}.")


def refuse_empty(output: Tensor) -> None:
    """Outputs (N, ...) without numbers."""
    if len(output) and not output.numel():
        shape = ", ".join(map(str, output.shape[1:]))
        raise ValueError(f"The network has no outputs: its shape is (N, {shape}); expected one per example at least.")


def output_of(model: nn.Module, inputs: Inputs) -> Tensor:
    """(N, ...): of a network that takes these inputs, else why not."""
    try:
        output = call(model, inputs)
    except torch.OutOfMemoryError:
        raise
    except FAILURES as error:
        reason = explained(model, inputs, count(inputs), error)
        if reason is None:
            raise
        raise reason from error
    if output.dim() and len(output) == count(inputs):
        refuse_empty(output)
        refuse_nan(output, inputs)
    return output


def wrong_target(likelihood: Likelihood, y: Tensor, form: Form) -> InExample:
    """The first target that is not valid."""
    first = next(place for place in range(len(y)) if not bool(likelihood.valid(y[place : place + 1], form)))
    return InExample(first, likelihood.complaint(y, form))


def refuse_broken(values: Sequence[Tensor], inputs: Inputs) -> None:
    """Outputs (N, ...), and then their variances, that are not finite for some inputs."""
    if bool(torch.stack([torch.isfinite(value).all() for value in values]).all()):
        return
    for value, what in zip(values, ("output", "variance"), strict=False):
        bad = broken_rows(value)
        if not bool(bad.any()):
            continue
        first = int(bad.nonzero()[0, 0])
        if bool(broken_rows(inputs)[first]):
            why = f"x holds NaN or Inf there: {CLEAN}."
        elif what == "output":
            why = f"x is finite there: {LOOK}, {value.dtype}."
        else:
            why = (
                "x and the output are finite there: use a larger prior precision, or a network in float64; a gradient "
                "that is NaN or Inf (a root or norm at zero) does the same."
            )
        raise ValueError(
            f"The network's {what} is not finite for {int(bad.sum())} of {len(bad)} inputs, first for number {first}; "
            f"{why}"
        )


@dataclass
class Watch:
    """Which examples of a pass are not finite, asked without waiting for the device and read in the end."""

    sizes: list[int] = field(default_factory=list)  # of batches, as they came
    codes: list[Tensor] = field(default_factory=list)

    def counted(self, batches: Iterable[tuple[Inputs, Tensor]]) -> Iterator[tuple[Inputs, Tensor]]:
        """Pass batches on, and keep their sizes."""
        for inputs, targets in batches:
            self.sizes.append(count(inputs))
            yield inputs, targets

    def note(self, inputs: Inputs, output: Tensor, energy: Tensor) -> None:
        """Look at some examples."""
        flags = ((energy, ENERGY), (output.detach(), OUTPUT), (inputs, INPUT))
        codes = [broken_rows(value).byte() * code for value, code in flags]
        self.codes.append(codes[0] | codes[1] | codes[2])

    def place(self, example: int) -> str:
        """In words: an example by its batch."""
        ends = list(accumulate(self.sizes))
        number = next(number for number, end in enumerate(ends) if example < end)
        start = ends[number] - self.sizes[number]
        return f"example {example}, in batch {number} (examples {start} to {ends[number] - 1}, counted from 0)"

    def located(self, error: InExample, before: int | None = None) -> ValueError:
        """A failure by its place in the data: in the batch that was read last, or with some examples before."""
        before = sum(self.sizes[:-1]) if before is None else before
        return ValueError(f"At {self.place(before + error.example)}: {error.reason}")

    def finish(self, dtype: torch.dtype, domain: str = "") -> str:
        """Raise where some example has no finite likelihood; else say whether inputs were not finite."""
        codes = torch.cat(self.codes).cpu()
        bad = (codes & ENERGY).nonzero()
        if not len(bad):
            fed = (codes & INPUT).nonzero()
            return f"The inputs hold NaN or Inf at {self.place(int(fed[0, 0]))}." if len(fed) else ""
        first = int(bad[0, 0])
        if codes[first] & INPUT:
            why = "the inputs hold NaN or Inf. Clean such examples or leave them out."
        elif codes[first] & OUTPUT:
            why = (
                "the network's output holds NaN or Inf, although its inputs are finite. Look for a log, root or "
                "division in the network."
            )
        else:
            why = f"inputs and outputs are finite, but too large for {dtype}. Rescale the targets, or use float64."
            why = f"{domain}; or they are too large for {dtype}." if domain else why
        raise ValueError(
            f"The likelihood is not finite for {len(bad)} of {len(codes)} examples, first at {self.place(first)}: {why}"
        )


class NotFiniteCurvature(ValueError):
    """Curvature that is NaN or Inf, with the layers that it belongs to."""

    def __init__(self, names: Sequence[str]) -> None:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        super().__init__(
            f"The curvature of {', '.join(map(repr, names[:3]))}{more} holds NaN or Inf: a gradient there is undefined "
            "or too large (a root or norm at zero, a division, half precision). Change that operation, convert the "
            "network by .float() or .double(), or leave the layer out by weights=."
        )


def finite_curvature(values: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse curvature with NaN or Inf by the names of its layers, in one question to the device."""
    pairs = [(name, value) for name, value in values if value.numel()]
    if not pairs:
        return
    largest = torch.stack([torch.linalg.vector_norm(value.detach(), torch.inf).double() for _, value in pairs])
    good = torch.isfinite(largest).tolist()
    if not all(good):
        raise NotFiniteCurvature(
            list(dict.fromkeys(name for (name, _), fine in zip(pairs, good, strict=True) if not fine))
        )


class Remarked(Protocol):
    """Something that has a remark on its data."""

    remark: str


@contextmanager
def remarks(source: Remarked) -> Iterator[None]:
    """Curvature that is not finite is explained by inputs that were not."""
    try:
        yield
    except NotFiniteCurvature as error:
        if not source.remark:
            raise
        raise ValueError(f"{error} {source.remark}") from None
