"""Why a network failed: found out by trying other inputs, once something has failed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..messages.arguments import describe_value
from ..messages.errors import ArgumentTypeError, PeewitError
from .buffers import restore_buffers
from .calling import call, run
from .finite import refuse_empty, refuse_nan
from .nests import Inputs, count, map_tensors, tensors

# What networks raise when they do not take their inputs.
FAILURES = (RuntimeError, IndexError, TypeError, ValueError, KeyError, AttributeError)

DECODER = "decoder_input_ids"  # of transformers, which makes them from labels where they are missing


def failure(model: nn.Module, inputs: Inputs) -> Exception | None:
    """What a network raises for these inputs; call inside `isolated`."""
    try:
        with torch.no_grad():
            run(model, inputs)
    except FAILURES as error:
        return error
    finally:
        restore_buffers(model)
    return None


def first_line(error: BaseException) -> str:
    """The class of an error and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def explain_failure(
    model: nn.Module, inputs: Inputs, tried: int, error: Exception, fitted: Sequence[Any] = ()
) -> Exception | None:
    """Say why a network failed; None where it takes these inputs, so that something else failed.

    `tried` is how many of the examples it failed on, and `fitted` holds signatures of inputs that it took before.
    """
    second = failure(model, inputs)
    if second is None:
        if not isinstance(error, RuntimeError | IndexError):
            return None
        return PeewitError(
            f"The network took {count(inputs)} examples but fails on {tried} of them ({error}); expected it to take "
            "any number, with everything that belongs to an example in tensors."
        )
    return _explain_dtype(model, inputs, second) or _explain_form(model, inputs, second, fitted)


def _explain_dtype(model: nn.Module, inputs: Inputs, error: Exception) -> ArgumentTypeError | None:
    """The error where the network would take these inputs in another dtype."""
    weights = next(
        (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()), torch.float32
    )
    changes: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda tensor: tensor.to(weights) if tensor.is_floating_point() else tensor,
        lambda tensor: tensor.to(weights),
        lambda tensor: tensor.long() if tensor.is_floating_point() else tensor,
    )
    dtypes_before = [tensor.dtype for tensor in tensors(inputs)]
    for change in changes:
        converted = map_tensors(change, inputs)
        wanted = [tensor.dtype for tensor in tensors(converted)]
        if wanted != dtypes_before and failure(model, converted) is None:
            old, new = (", ".join(map(str, dtypes)) for dtypes in (dtypes_before, wanted))
            return ArgumentTypeError(
                f"Inputs have dtype {old}, which the network does not take ({first_line(error)}); its weights are "
                f"{weights}. Convert the inputs to {new}, by x.to({new.partition(',')[0]})."
            )
    return None


def _explain_form(model: nn.Module, inputs: Inputs, error: Exception, fitted: Sequence[Any]) -> Exception:
    """The error for shapes, keywords or positions that the network does not take."""
    words = [f"The network fails on inputs that are {describe_value(inputs)} ({first_line(error)})."]
    if isinstance(inputs, dict | list | tuple):
        how = "keywords" if isinstance(inputs, dict) else "positions"
        takes = inspect.signature(model.forward).parameters
        words.append(f"Its forward takes ({', '.join(takes)}), and gets the entries as {how}; targets are not inputs.")
        if DECODER in takes and isinstance(inputs, dict) and DECODER not in inputs:
            words.append(
                f"A network that decodes needs {DECODER!r} in the batch, since it cannot make them from the labels: "
                "DataCollatorForSeq2Seq(tokenizer, model=model) adds them."
            )
    if fitted:
        words.append(f"It was fitted on inputs of shape {describe_shapes(fitted)}.")
    words.append("Expected what the network itself takes, with a leading axis of examples.")
    return (TypeError if isinstance(error, TypeError) else ValueError)(" ".join(words))


def describe_shapes(fitted: Sequence[Any]) -> str:
    """Signatures in words: '(N, 4)', the first few of them."""
    descriptions = dict.fromkeys(
        " and ".join(f"({', '.join(['N', *map(str, shape)])})" for *_, shape in signature) for signature in fitted
    )
    return " or ".join(list(descriptions)[:3])


def refuse_axes(x: Inputs, fitted: Sequence[Any]) -> None:
    """Refuse inputs with another number of axes than those of the fit: the axis of examples may be missing.

    Lengths may differ: convolutions and sequences take any.
    """
    axes_of_x = [tensor.dim() - 1 for tensor in tensors(x)]
    known = [[len(shape) for *_, shape in signature] for signature in fitted]
    known = [axes for axes in known if len(axes) == len(axes_of_x)]
    if not known or axes_of_x in known:
        return
    single = all(few + 1 == many for few, many in zip(axes_of_x, known[0], strict=True))
    hint = " A single example goes in as x[None]." if single else ""
    raise PeewitError(
        f"x is {describe_value(x)}, and the network was fitted on inputs of shape {describe_shapes(fitted)}; expected "
        f"as many axes, the first of them the examples'.{hint}"
    )


def output_of(model: nn.Module, inputs: Inputs) -> Tensor:
    """The network's output (N, ...); an error that says why if it does not take these inputs."""
    try:
        output = call(model, inputs)
    except torch.OutOfMemoryError:
        raise
    except FAILURES as error:
        reason = explain_failure(model, inputs, count(inputs), error)
        if reason is None:
            raise
        raise reason from error
    if output.dim() and len(output) == count(inputs):
        refuse_empty(output)
        refuse_nan(output, inputs)
    return output
