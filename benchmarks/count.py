"""Operations that a fit needs, counted from the shapes of a network's Linear and Conv layers.

What is left out (attention's own products, norms, activations) is a few percent of what is counted here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """One use of a layer: T positions per example, I inputs and O outputs at each (of one group), and groups."""

    name: str
    positions: int
    inputs: int
    outputs: int
    groups: int = 1
    first: bool = False  # nothing in front of it needs gradients

    @property
    def product(self) -> int:
        """Operations of the layer itself, per example: `2 T I O`."""
        return 2 * self.groups * self.positions * self.inputs * self.outputs

    @property
    def input_factor(self) -> int:
        """`2 T I^2`: the sum of `a a^T` over positions."""
        return 2 * self.groups * self.positions * self.inputs**2

    @property
    def gradient_factor(self) -> int:
        """`2 T O^2`: the sum of `g g^T` over positions, for one probe."""
        return 2 * self.groups * self.positions * self.outputs**2


def layer_shapes(model: nn.Module, inputs: Tensor) -> list[LayerShape]:
    """The Linear and Conv layers in the order in which they run; inputs are one example or more."""
    found: list[LayerShape] = []
    handles = []

    def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
        def note(layer: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
            found.append(shape_of(name, layer, arguments[0], output))

        return note

    for name, layer in model.named_modules():
        if isinstance(layer, LAYERS):
            handles.append(layer.register_forward_hook(hook(name)))
    try:
        with torch.enable_grad():  # to see what has a graph in front of it
            model(inputs[:1])
    finally:
        for handle in handles:
            handle.remove()
    return found


def shape_of(name: str, layer: nn.Module, given: Tensor, output: Tensor) -> LayerShape:
    """Positions, inputs and outputs of one use, for a batch of one example."""
    if isinstance(layer, nn.Linear):
        positions = output.numel() // layer.out_features
        return LayerShape(
            name=name,
            positions=positions,
            inputs=layer.in_features,
            outputs=layer.out_features,
            first=not given.requires_grad,
        )
    weight, groups = layer.weight, layer.groups
    assert isinstance(weight, Tensor) and isinstance(groups, int)
    positions = output[0, 0].numel()
    return LayerShape(
        name=name,
        positions=positions,
        inputs=weight[0].numel(),
        outputs=weight.shape[0] // groups,
        groups=groups,
        first=not given.requires_grad,
    )


@dataclass(frozen=True, kw_only=True)
class Operations:
    """Operations of a pass over N examples, by what they are for."""

    forward: int
    backward: int
    inputs: int  # input factors, or what a diagonal needs
    gradients: int  # gradient factors
    second: int = 0  # a second pass over the data

    @property
    def total(self) -> int:
        return self.forward + self.backward + self.inputs + self.gradients + self.second

    def as_dict(self) -> dict[str, int]:
        return {
            "forward": self.forward,
            "backward": self.backward,
            "input_factors": self.inputs,
            "gradient_factors": self.gradients,
            "second_pass": self.second,
            "total": self.total,
        }


def plain_pass(shapes: list[LayerShape], examples: int) -> Operations:
    """Forward and backward: gradients of all inputs but the first layer's, and of all weights."""
    forward = sum(shape.product for shape in shapes)
    inner = sum(shape.product for shape in shapes if not shape.first)
    return Operations(forward=examples * forward, backward=examples * (inner + forward), inputs=0, gradients=0)


def fit(shapes: list[LayerShape], examples: int, probes: int, structure: str) -> Operations:
    """A fit with K probes: one forward pass, K backward passes with respect to layer outputs, and the sums."""
    forward = sum(shape.product for shape in shapes)
    backward = probes * sum(shape.product for shape in shapes if not shape.first)
    inputs = sum(shape.input_factor for shape in shapes)
    gradients = probes * sum(shape.gradient_factor for shape in shapes)
    if structure == "diag":  # a gradient per example and probe, squared; without positions a product of squares
        return Operations(
            forward=examples * forward, backward=examples * backward, inputs=examples * probes * forward, gradients=0
        )
    if structure == "ekfac":  # once more, into the bases, and a gradient per example and probe there
        second = forward + backward + inputs + gradients + probes * forward
        return Operations(
            forward=examples * forward,
            backward=examples * backward,
            inputs=examples * inputs,
            gradients=examples * gradients,
            second=examples * second,
        )
    if structure != "kron":
        raise ValueError(f"structure={structure!r} is not counted; expected kron, ekfac or diag.")
    return Operations(
        forward=examples * forward,
        backward=examples * backward,
        inputs=examples * inputs,
        gradients=examples * gradients,
    )
