"""Products with Jacobians and curvature, for any network, without forming either."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from ..likelihoods import Labelled, Likelihood
from ..messages.errors import ArgumentTypeError, NotFiniteError, PeewitError
from ..network.batches import Batches
from ..network.finite import Watch
from ..network.isolation import entry_point, isolated
from ..network.nests import Inputs, count, take
from ..runtime.memory import budget
from ..runtime.progress import QUIET, Progress
from ..tracing.forward_mode import Push, rounding
from ..tracing.knowledge import KnowledgeLearner
from ..tracing.tracer import Tracer
from ..weights.space import Space
from ..weights.vectors import flatten_gradients, unflatten
from .kinds import Auto, CurvatureKind, Hessian, OutputView
from .pieces import labelled_outputs

WITHOUT = "which curvature='hessian' needs; use curvature='ggn', or choose weights= after that operation."
BYTES = 8.0  # per example and vector, in those that a forward pass keeps: the graph, and the product in it


class PlainWeightNorm(TorchFunctionMode):
    """Weight norms by their formula: torch's own gradient, differentiated again, takes the norm for a constant.

    On a GPU, products through torch's own weight norm were also off by 4e-8 in float64.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace the one function, and hand everything else through."""
        if func is not torch._weight_norm:
            return func(*args, **(kwargs or {}))

        def formula(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
            return v * (g / torch.norm_except_dim(v, 2, dim))

        return formula(*args, **(kwargs or {}))


def hessian_matrix(model: nn.Module, space: Space, data: Batches, likelihood: Likelihood, chunk: int = 64) -> Tensor:
    """(D, D): the Hessian of the total energy, by second derivatives."""
    columns = torch.eye(space.size, dtype=torch.float64, device="cpu")  # taken to the weights' dtype by each product
    products = Products(model, space, data, likelihood, Hessian())
    matrix = torch.cat([products.mv(part) for part in columns.split(chunk)])
    return (matrix + matrix.T) / 2


class Products:
    """The curvature H of a network on data, as an operator: `mv(v)` is `H v`.

    `pw.products` returns it. It holds no matrix, and passes over the data for every product. `space` says which weights
    a vector holds, and in which order; `model`, `likelihood` and `curvature` are what it was made with.

    Example:
        >>> products = pw.products(model, (x, y), "classification", weights="last_layer")
        >>> products.space.names
        ('2.weight', '2.bias')
    """

    def __init__(
        self,
        model: nn.Module,
        space: Space,
        data: Batches,
        likelihood: Likelihood,
        curvature: CurvatureKind | Hessian | Auto,
        *,
        seed: int = 0,
        memory: float | None = None,
        progress: Progress = QUIET,
    ) -> None:
        """`pw.products` makes one; users do not."""
        if not isinstance(data, Batches):
            raise ArgumentTypeError(
                "Products(...) was called; expected peewit.products(model, data, likelihood), which returns one."
            )
        self.model = model
        self.space = space
        self._data = data
        self.likelihood = likelihood
        self.curvature = curvature
        self._seed = seed
        self._memory = memory
        self._progress = progress
        self._symmetric = False  # whether second derivatives were seen to be so
        self._push = Push(model, space, KnowledgeLearner(), budget(memory, data.device))

    @entry_point
    def mv(self, v: Tensor) -> Tensor:
        """Multiply vectors by the curvature of the energy (noise precision 1), in one pass over the data.

        Args:
            v: Vectors (..., D), in the order of `space`; several vectors share the pass.

        Returns:
            The products (..., D), on the network's device, in float32 or wider.

        Raises:
            PeewitError: `v` has the wrong shape, the data has no examples or targets that do not fit, or the network
                lacks the second derivatives that `curvature="hessian"` needs.
            ArgumentTypeError: `v` is not a tensor.
            NotFiniteError: `v`, the data or the network's outputs hold NaN or Inf.

        Example:
            >>> products = pw.products(model, (x, y), "classification")
            >>> v = torch.ones(2, 51)
            >>> torch.allclose(products.mv(2 * v), 2 * products.mv(v), rtol=1e-4)
            True
        """
        if not isinstance(v, Tensor):
            raise ArgumentTypeError(f"v is a {type(v).__name__}; expected a tensor (..., {self.space.size}).")
        if not v.dim() or v.shape[-1] != self.space.size:
            raise PeewitError(f"A vector of shape {tuple(v.shape)} was given; expected (..., {self.space.size}).")
        like = self._parameters[0]
        flat = v.reshape(-1, v.shape[-1]).to(device=like.device, dtype=like.dtype)
        total = torch.zeros_like(flat, dtype=torch.promote_types(flat.dtype, torch.float32))
        if not bool(torch.isfinite(flat).all()):
            raise NotFiniteError(f"v holds numbers that are NaN, or Inf in {flat.dtype}; expected finite ones.")
        multiply = self._multiply_hessian if isinstance(self.curvature, Hessian) else self._multiply_factor
        seen, watch = 0, Watch()
        with (
            closing(self._progress),
            isolated(self.model, self._parameters),
            sdpa_kernel([SDPBackend.MATH]),
            PlainWeightNorm(),
        ):
            batches = watch.count_batches(self._progress.track(self._data, len(self._data), "products"))
            pieces = self._cut(batches)
            for inputs, output, labels in labelled_outputs(self.model, pieces, self.likelihood, None, watch):
                for some in self._vectors(inputs, len(flat)):
                    total[some] += multiply(inputs, output, labels, flat[some], seen)
                seen += len(output)
        return total.reshape(v.shape)

    @property
    def _parameters(self) -> list[Tensor]:
        """The selected weights."""
        return [self.model.get_parameter(name) for name in self.space.names]

    def _cut(self, batches: Iterable[tuple[Inputs, Tensor]]) -> Iterator[tuple[Inputs, Tensor]]:
        """Examples that fit the memory; whole batches where no limit was given."""
        for inputs, targets in batches:
            if self._memory is None:
                yield inputs, targets
                continue
            for chosen in self._push.budget.slices(count(inputs), self._cost(inputs)):
                yield take(inputs, chosen), targets[chosen]

    def _vectors(self, inputs: Inputs, vectors: int) -> Iterator[slice]:
        """Vectors that fit the memory beside some examples; all where no limit was given."""
        if self._memory is None:
            return iter([slice(0, vectors)])
        return self._push.budget.slices(vectors, self._cost(inputs) * count(inputs))

    def _cost(self, inputs: Inputs) -> float:
        """Bytes that products take for an example and a vector."""
        return BYTES * Tracer(self.model, self.space.names, self._push.budget, self._push.learner).cost(inputs)

    def _multiply_hessian(self, inputs: Inputs, output: Tensor, labels: Labelled, v: Tensor, first: int) -> Tensor:
        """(S, D): products of the Hessian of some examples."""
        energy = labels.energy(labels.flat(output)).sum()
        try:
            gradients = torch.autograd.grad(energy, self._parameters, create_graph=True, allow_unused=True)
            self._check_symmetry(gradients, v.dtype)
            return torch.stack([self._pull(gradients, unflatten(one, self.space)) for one in v])
        except NotImplementedError as error:  # torch, of an operation without a second derivative
            raise PeewitError(f"The network has no second derivatives ({error}), {WITHOUT}") from error

    def _multiply_factor(self, inputs: Inputs, output: Tensor, labels: Labelled, v: Tensor, first: int) -> Tensor:
        """(S, D): products of a curvature with a factor, of examples that are numbered from `first` on."""
        form, likelihood, kind = labels.form, labels.likelihood, self.curvature
        assert not isinstance(kind, Hessian)
        kind = kind.choose(form, likelihood)[0] if isinstance(kind, Auto) else kind
        view = OutputView(
            likelihood=likelihood,
            f=labels.flat(output.detach()),
            y=labels.y,
            form=form,
            examples=torch.arange(first, first + len(output), device=output.device),
            seed=self._seed,
        )
        probes = form.restore(kind.probes(view, 0, kind.count(form, likelihood))).to(output.dtype)  # (K, N, ...)
        probes = probes.reshape(*probes.shape[:2], -1)
        _, pushed = self._push(inputs, v)
        weights = torch.einsum("knc,snc->skn", probes, pushed.reshape(*pushed.shape[:2], -1))
        combined = torch.einsum("skn,knc->snc", weights, probes).reshape(pushed.shape)
        return torch.stack([self._gradient(output, one) for one in combined.to(output.dtype)])

    def _check_symmetry(self, gradients: tuple[Tensor | None, ...], dtype: torch.dtype) -> None:
        """Refuse second derivatives that are not those of the gradients, by random vectors, in the first batch."""
        if self._symmetric:
            return
        generator = torch.Generator("cpu").manual_seed(0)
        drawn = torch.randn(2, self.space.size, generator=generator, dtype=torch.float64, device="cpu")
        like = self.model.get_parameter(self.space.names[0])
        u, v = drawn.to(like.device, dtype)
        left, right = (self._pull(gradients, unflatten(each, self.space)).double() for each in (u, v))
        difference = (left @ v.double() - right @ u.double()).abs()
        if bool(difference > rounding(dtype) * torch.maximum(left.norm(), right.norm())):
            raise PeewitError(
                "The network's second derivatives are not symmetric: some operation has none, or wrong ones (a custom "
                f"autograd function that is once_differentiable?), {WITHOUT}"
            )
        self._symmetric = True

    def _pull(self, gradients: tuple[Tensor | None, ...], v: dict[str, Tensor]) -> Tensor:
        """The gradient of `gradient^T v`: one column of the Hessian's product."""
        total = sum(
            (gradient * v[name]).sum()
            for gradient, name in zip(gradients, self.space.names, strict=True)
            if gradient is not None
        )
        if not isinstance(total, Tensor) or not total.requires_grad:
            like = self._parameters[0]
            return torch.zeros(self.space.size, dtype=like.dtype, device=like.device)
        return self._gradient(total)

    def _gradient(self, output: Tensor, probe: Tensor | None = None) -> Tensor:
        """(D,): the gradient of a number, or of outputs times a probe; their graph is kept."""
        gradients = torch.autograd.grad(output, self._parameters, probe, retain_graph=True, allow_unused=True)
        return flatten_gradients(gradients, self.model, self.space)
