"""Attention: the projections inside `F.multi_head_attention_forward`, and gradients for several probes at once."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...kernels import available
from ...kernels import gradients as kernel_gradients
from ...runtime.arithmetic import products_rounded
from .contract import Handler
from .pulling import apply_to_probes

# Pairs of positions up to which attention weights are held; beyond, torch's fused gradient is faster.
LARGEST_CPU, LARGEST_CUDA = 1 << 12, 1 << 16
AT_ONCE_CPU, AT_ONCE_CUDA = 1 << 26, 1 << 30  # bytes of attention weights for all probes


def _open_body(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function without its first test, whether something overrides the whole call.

    The recording does, and has to see the projections inside: the packed weight, whole or in slices, and the output's.
    """
    assert isinstance(function, types.FunctionType)
    names = {**function.__globals__, "has_torch_function": lambda *_: False}
    body = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    body.__kwdefaults__ = function.__kwdefaults__
    return body


_ATTENTION = _open_body(F.multi_head_attention_forward)


def attention(recorder: Any, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the body of `F.multi_head_attention_forward` under the recording."""
    with recorder:
        return _ATTENTION(*args, **kwargs)


def gradients(
    query: Tensor, key: Tensor, value: Tensor, shares: Tensor, scale: float, grad: Tensor
) -> tuple[Tensor, ...]:
    """(n, T, d), (n, S, d), (n, S, e), shares (n, T, S), gradients (n, K, T, e) -> gradients (n, K, ...) of the three.

    Probes stand beside positions, so that what belongs to no probe is never copied for each.
    """
    bytes_per_row = 4 * grad.shape[1] * shares[0].numel()
    step = max(1, (AT_ONCE_CUDA if grad.is_cuda else AT_ONCE_CPU) // max(1, bytes_per_row))
    if grad.shape[0] > step:
        pieces = [
            gradients(q, k, v, part, scale, some)
            for q, k, v, part, some in zip(
                *(whole.split(step) for whole in (query, key, value, shares, grad)), strict=True
            )
        ]
        return tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))
    count, probes, positions, width = grad.shape
    beside = grad.permute(0, 2, 1, 3).reshape(count, positions, probes * width)
    of_value = (shares.mT @ beside).reshape(count, -1, probes, width).permute(0, 2, 1, 3)
    of_shares = (grad.reshape(count, probes * positions, width) @ value.mT).reshape(count, probes, positions, -1)
    shares = shares.unsqueeze(1)
    mean = (of_shares * shares).sum(-1, keepdim=True)
    of_scores = (of_shares - mean).mul_(shares).mul_(scale)
    of_query = (of_scores.reshape(count, probes * positions, -1) @ key).reshape(count, probes, positions, -1)
    of_key = (of_scores.mT.reshape(count, -1, positions) @ query).reshape(count, probes, key.shape[1], -1)
    return of_query, of_key, of_value


def gradients_of_probes(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, shares: Tensor, scale: float
) -> tuple[Tensor, ...]:
    """Gradients (K, ..., T, e), (..., T, d), (..., S, d), (..., S, e), (..., T, S) -> (K, ...) of the next three."""
    lead = query.shape[:-2]

    def apart(tensor: Tensor, *sizes: int) -> Tensor:
        return tensor.reshape(*tensor.shape[: tensor.dim() - 2 - len(lead)], *sizes, *tensor.shape[-2:])

    if kernel_gradients.attends(grad, *key.shape[-2:]):
        heads = lead if len(lead) == 2 else (lead.numel(), 1)
        q, k, v, by_head, grads = (apart(tensor, *heads) for tensor in (query, key, value, shares, grad))
        exact = not products_rounded()
        of_inputs = available.attempt(lambda: kernel_gradients.attention(q, k, v, by_head, scale, grads, exact))
        if of_inputs is not None:
            return tuple(tensor.reshape(tensor.shape[0], *lead, *tensor.shape[-2:]) for tensor in of_inputs)
    q, k, v, flat = (apart(tensor, -1) for tensor in (query, key, value, shares))
    by_matrix = gradients(q, k, v, flat, scale, apart(grad, lead.numel()).movedim(0, 1))
    return tuple(tensor.reshape(*lead, *tensor.shape[1:]).movedim(len(lead), 0) for tensor in by_matrix)


class Attention(torch.autograd.Function):
    """Torch's attention with a gradient for all probes at once; torch's own loops over them."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
        """(..., T, d), (..., S, d), (..., S, e) -> (..., T, e)."""
        ctx.save_for_backward(query, key, value)
        ctx.options = options
        output: Tensor = F.scaled_dot_product_attention(query, key, value, **options)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Compute the attention weights again: keeping them would make the forward pass larger."""
        query, key, value = ctx.saved_tensors
        scale = ctx.options.get("scale")
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        shares = weights(query, key, ctx.options, scale)
        return *apply_to_probes(gradients_of_probes, grads[0], query, key, value, shares, scale), None


def weights(query: Tensor, key: Tensor, options: dict[str, Any], scale: float) -> Tensor:
    """The attention weights (..., T, S): each position's shares in the others."""
    scores = (query * scale) @ key.mT
    mask = options.get("attn_mask")
    if options.get("is_causal", False):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask
    # A position that may look nowhere has no shares at all.
    return scores.softmax(-1).nan_to_num(0.0) if mask is not None else scores.softmax(-1)


def scaled_dot_product(recorder: Any, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=, enable_gqa=)`."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    options = dict(zip(names, args, strict=False)) | kwargs
    query, key, value = (options.pop(name) for name in names[:3])
    mask = options.get("attn_mask")
    learnt = isinstance(mask, Tensor) and mask.requires_grad
    if isinstance(mask, Tensor) and not learnt:
        options["attn_mask"] = mask.clone()  # a buffer is put back before gradients are taken
    plain = (
        recorder.second
        or not recorder.probes
        or query.is_nested
        or torch.is_autocast_enabled(query.device.type)
        or options.get("enable_gqa", False)
        or options.get("dropout_p", 0.0)
        or not query.requires_grad
        or not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
        or query.dtype not in (torch.float32, torch.float64)
        or not query.dtype == key.dtype == value.dtype
        or query.shape[-2] * key.shape[-2] > (LARGEST_CUDA if query.is_cuda else LARGEST_CPU)
        or not query.numel()
        or not key.numel()
        or learnt
    )
    if plain:
        return func(query, key, value, **options)
    return Attention.apply(query, key, value, options)  # type: ignore[no-untyped-call]  # torch does not annotate it


HANDLERS: dict[Any, Handler] = {
    F.multi_head_attention_forward: attention,
    F.scaled_dot_product_attention: scaled_dot_product,
}
