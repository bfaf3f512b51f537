"""How products of float32 numbers are done: the policy of rounding, and torch's switches for it while a call lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch

from ..messages.errors import ArgumentTypeError
from ..messages.names import check_name

ArithmeticName: TypeAlias = Literal["auto", "float32", "tf32", "bf16", "float64"]
"""How products are rounded. "auto" follows torch's own switches, except that covariances of predictions
take "tf32"."""


@dataclass(frozen=True)
class Arithmetic:
    """A policy of rounding; it changes roundings and speed, never what is computed.

    auto: forward passes and fits as torch's own switches say; covariances of predictions with products of 11 bits and
    sums in float32. float32: all products as exact as float32's. tf32: all products in 11 bits. bf16: of predictions in
    8 bits, the rest in 11. float64: everything that is made from the network's activations and gradients in float64.
    """

    name: ArithmeticName = "auto"

    def __post_init__(self) -> None:
        check_name(self.name, get_args(ArithmeticName), "arithmetic")

    @property
    def dtype(self) -> torch.dtype:
        """The least dtype of products with gradients."""
        return torch.float64 if self.name == "float64" else torch.float32

    def passes(self, predicting: bool = False) -> Any:
        """A context for passes through the network and products; or for the gradients of a prediction."""
        if self.name == "float32":
            return use_rounding("ieee")
        if self.name in ("tf32", "bf16") or (predicting and self.name == "auto"):
            return use_rounding("tf32")
        return use_rounding(None)

    def parts(self, predicting: bool) -> int:
        """Of how many 16-bit numbers a float32 number is the sum in fused products: one or two."""
        if self.name == "float32":
            return 2
        if self.name in ("tf32", "bf16") or predicting:
            return 1
        return 1 if read_switch(torch.get_float32_matmul_precision) in ("high", "medium") else 2

    @property
    def half(self) -> torch.dtype:
        """The 16-bit dtype: float16 has three more bits, and is scaled to its range."""
        return torch.bfloat16 if self.name == "bf16" else torch.float16


AUTO = Arithmetic()


def as_arithmetic(value: ArithmeticName | Arithmetic) -> Arithmetic:
    """A policy, or the one with a name."""
    if isinstance(value, Arithmetic):
        return value
    if not isinstance(value, str):
        raise ArgumentTypeError(
            f"arithmetic is a {type(value).__name__}; expected one of {', '.join(get_args(ArithmeticName))}."
        )
    return Arithmetic(value)


@contextmanager
def use_rounding(rounding: str | None) -> Iterator[None]:
    """Torch's switches for float32 products on a GPU, set while the block lasts: 'ieee', 'tf32', or as they are.

    Torch has an older and a newer set of switches, and refuses to be asked about one after the other was used.
    """
    if rounding is None or not torch.cuda.is_available():
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    newer: list[Any] = [
        backend for backend in (matmul, getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None)) if backend
    ]
    newer = [backend for backend in newer if hasattr(backend, "fp32_precision")]
    earlier = [backend.fp32_precision for backend in newer]
    general, products, layers = (
        read_switch(torch.get_float32_matmul_precision),
        read_switch(lambda: matmul.allow_tf32),
        read_switch(lambda: cudnn.allow_tf32),
    )
    try:
        if products is None:
            matmul.fp32_precision = rounding
        else:
            matmul.allow_tf32 = rounding == "tf32"
        if layers is None:
            for backend in newer[1:]:
                backend.fp32_precision = rounding
        else:
            cudnn.allow_tf32 = rounding == "tf32"
        yield
    finally:
        if products is not None:
            matmul.allow_tf32 = products
            if general == "medium":
                torch.set_float32_matmul_precision(general)
        if layers is not None:
            cudnn.allow_tf32 = layers
        for backend, value in zip(newer, earlier, strict=True):
            if backend.fp32_precision != value:
                backend.fp32_precision = value


def convolutions_rounded() -> bool:
    """Whether torch's convolutions of float32 numbers round them to 11 bits on a GPU."""
    cudnn = torch.backends.cudnn
    older = read_switch(lambda: cudnn.allow_tf32)
    newer: Any = cudnn  # torch does not annotate its switches for convolutions
    return bool(newer.conv.fp32_precision == "tf32" if older is None else older)


def products_rounded() -> bool:
    """Whether torch's products of float32 matrices round them to 11 bits or less on a GPU."""
    matmul = torch.backends.cuda.matmul
    older = read_switch(lambda: matmul.allow_tf32)
    return bool(matmul.fp32_precision == "tf32" if older is None else older)


def read_switch(ask: Any) -> Any:
    """The value of one of torch's switches, or None where torch refuses to tell."""
    try:
        return ask()
    except RuntimeError:
        return None
