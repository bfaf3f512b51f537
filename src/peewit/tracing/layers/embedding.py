"""Embeddings: linear maps of one-hot vectors, which are not built where that can be avoided."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ...jacobians.factored import Term
from ...jacobians.inputs import Acts
from ...jacobians.layout import Layout
from ...network.workarounds import look_up, shrink_rows
from .contract import Contribution, Handler, PlainInputs, Recorder, Use, positions_last


class EmbeddingRule(PlainInputs):
    """`y_t = W[token_t]`: inputs belong to the rows of W (V, E), gradients to its columns."""

    name = "embedding"
    matrix = True

    def contributions(self, use: Use, inputs: tuple[Tensor, ...], grad: Tensor) -> Iterator[Contribution]:
        """Tokens (B, ...), gradients (K, B, ..., E)."""
        weight = use.views["weight"]
        tokens = inputs[0].reshape(len(inputs[0]), -1).long()
        vocabulary, width = weight.parameter.shape
        grad = positions_last(grad, 2, width).unsqueeze(2)

        def one_hot(examples: slice) -> Tensor:
            return F.one_hot(tokens[examples], vocabulary).unsqueeze(1)

        term = Term(Acts(make=one_hot, width=vocabulary, positions=tokens.shape[1], index=tokens), grad, flipped=True)
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
    view = recorder.resolve(weight)
    if view is None or view.tensor.numel() != view.parameter.numel() or not view.is_rows:
        return look_up(func, args, kwargs)
    padding = values.get("padding_idx")
    if padding is not None and padding < 0:
        padding += weight.shape[0]
    applied = recorder.alias(weight)
    if values.get("max_norm") is not None:
        applied = shrink_rows(applied, values["max_norm"], values.get("norm_type", 2.0))
    # Options that only change how torch stores the weight's gradient are left out: that gradient is never made.
    output = func(tokens, applied, padding)
    return recorder.record(EMBEDDING, output, {"weight": view}, (tokens,), tuple(range(output.dim() - 1)), padding)


HANDLERS: dict[Any, Handler] = {F.embedding: embedding}
