"""A posterior's predictions for one kind of input and one way to predict, checked once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ..messages.arguments import one_input, refuse_inputs
from ..messages.errors import MismatchError, PeewitError
from ..network.arrays import ready as as_ready
from ..network.batches import without_labels
from ..network.isolation import entry_point, outside_caller_modes
from ..network.nests import Array, Inputs, count, map_tensors, take
from ..posterior.network import network_of
from ..predictions.options import PredictOptions
from ..predictions.prediction import Prediction
from ..tracing.knowledge import Signature, signature
from .export import export
from .ways import Way, way_of

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState


class Predictor:
    """Predictions of one posterior for one kind of input and one way to predict, worked out once and then quick.

    `la.predictor(x)` returns it. Calling it gives what `la.predict` gives with the same options, in less time: it does
    not look at the network again, nor for NaN and Inf in its outputs. Where `how` says "in closed form", numbers are
    equal up to rounding; else they are the same, bit for bit, at the same inputs. Several threads may call it at once.

    It shares the memory of the network's weights. Do not train the network further while it is in use; `check()` says
    whether it has changed. Parameters that are replaced by others, rather than written to, do not reach it.

    Attributes:
        how: How predictions are made, in words.

    Example:
        >>> predictor = la.predictor(x[:1])
        >>> predictor(x[:5]).probs.shape
        torch.Size([5, 3])
        >>> torch.allclose(predictor(x[:5]).probs, la.predict(x[:5]).probs, atol=1e-5)
        True
    """

    def __init__(self, state: PosteriorState, x: Inputs, options: PredictOptions, memory: float | None) -> None:
        """`la.predictor` makes one; users do not."""
        refuse_inputs(x)
        network = network_of(state, memory)  # refuses a network that has changed, having looked at all of it
        self._state = state
        self._options = options
        self._signature: Signature = signature(x)
        self._names = tuple(x) if isinstance(x, Mapping) else ()  # in the order of the signature
        self._device = state.weights.device
        self._way: Way = way_of(state, network, x, options, memory)
        # What a program is traced at: nothing of the caller's, who may write into theirs.
        self._examples: Inputs = map_tensors(torch.clone, map_tensors(self._move, take(x, slice(0, 2))))

    @property
    def how(self) -> str:
        """How predictions are made, in words."""
        return self._way.words

    def __call__(self, x: Inputs | None = None, **inputs: torch.Tensor | Array | list[Any]) -> Prediction:
        """Predict the labels at x, as `la.predict` does.

        Args:
            x: Inputs of the network, N of them, with the dtypes and shapes that the predictor was made for.
            inputs: Inputs by name in place of x, as in `predictor(**batch)`.

        Returns:
            A `pw.Prediction`: `pw.Classes`, `pw.Binary`, `pw.Regression`, `pw.Mixture` or `pw.Outputs`.

        Raises:
            MismatchError: The inputs have other dtypes or shapes.
            PeewitError: There are no inputs.
            ArgumentTypeError: `x` holds no tensors.

        Example:
            >>> la.predictor(x[:1])(x).epistemic.shape
            torch.Size([60])
        """
        with outside_caller_modes():
            return self._way(self._ready(one_input(x, inputs, "predictor") if inputs or x is None else x))

    @entry_point
    def check(self) -> None:
        """Refuse a network that has changed since the fit: looks at all weights and buffers, as `la.save` does.

        Raises:
            MismatchError: The network's weights or buffers are no longer those of the fit.

        Example:
            >>> la.predictor(x[:1]).check()
        """
        network_of(self._state, None)

    @entry_point
    def export(
        self, path: str | os.PathLike[str] | None = None, *, batch: int | None = None
    ) -> torch.export.ExportedProgram:
        """Export the predictor as a program of tensor operations, which runs without Peewit.

        It works where the last layer alone is uncertain and predictions have a closed form: `how` says "the last layer
        in closed form", and the link is "probit", "bridge" or "bridge_normalised" for classes, "probit" for
        `pw.Bernoulli`, "exact" for `pw.Gaussian` and `pw.Poisson`. The program has its own copy of the weights.

        Args:
            path: Name of a file to write: ".pt2" for `torch.export.load`, ".onnx" for other runtimes, which needs onnx
                and onnxscript. Its folder has to exist; an existing file is replaced. None writes nothing.
            batch: Number of inputs that the program takes at a time. None for any number.

        Returns:
            The program: `program.module()(x)` is a dictionary of tensors, shaped as those of the prediction: "probs",
            "epistemic" and "entropy" for labels, "mean", "epistemic" and "variance" for numbers. A file of ONNX has
            outputs of these names, and its input is "x", or the names of a mapping.

        Raises:
            PeewitError: The predictor has no closed form, the path has another suffix, or torch.export cannot trace the
                network.
            MismatchError: The network has changed since the fit.
            MissingPackageError: A path that ends in ".onnx", without onnx or onnxscript.
            FileNotFoundError: The folder does not exist.
            IsADirectoryError: The path is a folder.

        Example:
            >>> last = pw.fit(model, (x, y), "classification", weights="last_layer")
            >>> predictor = last.predictor(x[:1])
            >>> outputs = predictor.export().module()(x[:5])
            >>> torch.allclose(outputs["probs"], predictor(x[:5]).probs, atol=1e-5)
            True
        """
        network_of(self._state, None)
        likelihood = self._state.likelihood.for_inputs(self._examples)
        return export(self._way, self._options, likelihood, self._examples, path, batch)

    def _ready(self, x: Inputs) -> Inputs:
        """Inputs of the right kind, on the network's device."""
        if isinstance(x, Mapping):
            x = without_labels(self._state.model, x)
        if isinstance(x, Mapping) and self._names:
            x = {**{name: x[name] for name in self._names if name in x}, **x}
        if signature(x) != self._signature:
            schema = self._state.schema
            x = as_ready(self._state.model, x if schema is None else schema.in_order(x))
        if signature(x) != self._signature:
            refuse_inputs(x)
            raise MismatchError(
                f"The inputs are {_in_words(signature(x))}; this predictor was made for {_in_words(self._signature)}. "
                "Give inputs of that kind (a single example goes in as x[None]), or make another predictor by "
                "la.predictor(x)."
            )
        if not count(x):
            raise PeewitError("x has no examples; expected at least one.")
        ready: Inputs = map_tensors(self._move, x)
        return ready

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        on_device = tensor.detach().to(self._device)
        return on_device.clone() if on_device.is_inference() else on_device

    def __reduce__(self) -> NoReturn:
        """It holds copies of the network with memory of the user's."""
        raise PeewitError(
            "A predictor cannot be pickled or copied: it shares the memory of the network's weights. Threads may share "
            "one; for another process, save the posterior by la.save(path), load it there, and call la.predictor(x); "
            "or export a program by predictor.export(path)."
        )

    def __repr__(self) -> str:
        """One line: of what, for what, and how."""
        likelihood = type(self._state.likelihood).__name__
        return f"Predictor({likelihood}, link={self._options.link!r}, {_in_words(self._signature)}: {self.how})"


def _in_words(shapes: Signature) -> str:
    """A kind of inputs."""
    words = [
        f"{f'{name}: ' if name else ''}(N{''.join(f', {size}' for size in shape)}) {dtype.removeprefix('torch.')}"
        for name, dtype, shape in shapes
    ]
    return " and ".join(words) or "no tensors"
