"""Embeddings: linear maps of one-hot vectors that are never made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..jacobians import Acts, Layout, Term
from .base import Contribution, Handler, PlainInputs, Recorder, Use, positions_last


def shrunk(weight: Tensor, limit: float, norm: float) -> Tensor:
    """A table whose long rows have norm `limit`: what torch's `max_norm` would make of the user's own, in place."""
    norms = torch.linalg.vector_norm(weight.detach(), norm, dim=1, keepdim=True)
    factor = torch.where(norms > limit, limit / (norms + 1e-7), torch.ones_like(norms))
    return weight + (weight * (factor - 1)).detach()  # torch's is in place: its derivative has no such factor


SIGNATURES = {function: inspect.signature(function) for function in (F.embedding, F.embedding_bag)}


def without_renormalising(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `F.embedding` or `F.embedding_bag` without its changes to the weight, and to its gradient."""
    values = SIGNATURES[func].bind(*args, **kwargs).arguments
    values.pop("scale_grad_by_freq", None)  # a step size per row, not a derivative
    if values.get("max_norm") is not None:
        values["weight"] = shrunk(values["weight"], values.pop("max_norm"), values.pop("norm_type", 2.0))
    return func(**values)


class KeptTables(TorchFunctionMode):
    """Networks with `max_norm` or `scale_grad_by_freq` run under this: tables stay, and have plain gradients."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Hand lookups over, and everything else through."""
        if func in SIGNATURES:
            return without_renormalising(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


class CertainPadding(TorchFunctionMode):
    """Forward mode runs under this: as in a backward pass, what is looked up for a padding token has no derivative."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Hand lookups over, and everything else through."""
        output = func(*args, **(kwargs or {}))
        if func is not F.embedding:
            return output
        values = SIGNATURES[func].bind(*args, **(kwargs or {})).arguments
        padding = values.get("padding_idx")
        if padding is None:
            return output
        padded = values["input"] == padding % values["weight"].shape[0]
        return torch.where(padded.unsqueeze(-1), output.detach(), output)


class EmbeddingRule(PlainInputs):
    """`y_t = W[token_t]`: inputs on the rows of W (V, E), gradients on its columns."""

    name = "embedding"
    matrix = True

    def contributions(self, use: Use, inputs: tuple[Tensor, ...], grad: Tensor) -> Iterator[Contribution]:
        """Tokens (B, ...), gradients (K, B, ..., E)."""
        weight = use.refs["weight"]
        tokens = inputs[0].reshape(len(inputs[0]), -1).long()
        vocabulary, width = weight.parameter.shape
        grad = positions_last(grad, 2, width).unsqueeze(2)

        def one_hot(examples: slice) -> Tensor:
            return F.one_hot(tokens[examples], vocabulary).unsqueeze(1)

        term = Term(Acts(one_hot, vocabulary, tokens.shape[1], index=tokens), grad, flipped=True)
        padding = use.options
        if padding is not None:
            counted = tokens != padding
            term = replace(term, grad=grad * counted[None, :, None, :, None], counted=counted)
        yield Contribution(weight.part, term, Layout.plain(1, vocabulary, width))


EMBEDDING = EmbeddingRule()


def embedding(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)`."""
    names = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    values = dict(zip(names, args, strict=False)) | kwargs
    weight, tokens = values["weight"], values["input"]
    ref = recorder.resolve(weight)
    if ref is None or ref.tensor.numel() != ref.parameter.numel() or not ref.is_rows:
        return without_renormalising(func, args, kwargs)
    padding = values.get("padding_idx")
    if padding is not None and padding < 0:
        padding += weight.shape[0]
    applied = recorder.alias(weight)
    if values.get("max_norm") is not None:
        applied = shrunk(applied, values["max_norm"], values.get("norm_type", 2.0))
    # Options that only change how torch stores the weight's gradient are left out: that gradient is never made.
    output = func(tokens, applied, padding)
    return recorder.record(EMBEDDING, output, {"weight": ref}, (tokens,), tuple(range(output.dim() - 1)), padding)


HANDLERS: dict[Any, Handler] = {F.embedding: embedding}
