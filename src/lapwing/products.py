"""Products with Jacobians and curvature, for any network, without forming either."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from .batches import Batches, Inputs, call, evaluation, under
from .curvature import Auto, Hessian, Kind, View
from .diagnosis import InExample, Watch, output_of, wrong_target
from .likelihoods import Likelihood, widened
from .space import Space


def unflatten(vectors: Tensor, space: Space) -> dict[str, Tensor]:
    """(..., D) -> one tensor (..., *shape) per weight; weights outside a mask get zero."""
    if space.mask is not None:
        mask = space.mask.to(vectors.device)
        whole = vectors.new_zeros(*vectors.shape[:-1], space.total)
        whole[..., mask] = vectors
        vectors = whole
    return {
        name: vectors[..., place].reshape((*vectors.shape[:-1], *shape))
        for (name, place), shape in zip(space.slices().items(), space.shapes, strict=True)
    }


def flatten(tensors: dict[str, Tensor], space: Space) -> Tensor:
    """One tensor per weight -> (D,)."""
    flat = torch.cat([tensors[name].flatten() for name in space.names])
    return flat if space.mask is None else flat[space.mask.to(flat.device)]


def jacobian_vectors(model: nn.Module, inputs: Inputs, space: Space, vectors: Tensor) -> Tensor:
    """(S, D) -> (S, B, ...): `J v`, by forward mode where the network has it, else by two backward passes."""

    def run(weights: dict[str, Tensor]) -> Tensor:
        return call(under(model, weights), inputs)

    weights = {name: model.get_parameter(name).detach() for name in space.names}
    with sdpa_kernel([SDPBackend.MATH]), warnings.catch_warnings():
        # Forward mode's own decompositions still use what torch has deprecated.
        warnings.filterwarnings("ignore", message="`torch.jit.script", category=DeprecationWarning)
        try:
            with torch.no_grad():
                push = vmap(lambda v: jvp(run, (weights,), (unflatten(v, space),))[1], randomness="same")
                pushed: Tensor = push(vectors)
                return pushed
        except (RuntimeError, NotImplementedError):
            return torch.stack([double_backward(run, weights, unflatten(v, space)) for v in vectors])


def forward_mode(run: Callable[[Any], Tensor], weights: Any, tangents: Any) -> tuple[Tensor, Tensor] | None:
    """Outputs and `J v` by forward mode; None where the network has none. Call under the plain attention kernel."""
    with torch.no_grad(), warnings.catch_warnings():
        # Forward mode's own decompositions still use what torch has deprecated.
        warnings.filterwarnings("ignore", message="`torch.jit.script", category=DeprecationWarning)
        try:
            made = jvp(run, (weights,), (tangents,))
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError):  # what torch raises for an operation without a forward formula
            return None
    return made[0], made[1]


def double_backward(run: Callable[[dict[str, Tensor]], Tensor], weights: dict[str, Tensor], v: Any) -> Tensor:
    """`J v` as the gradient of `(u^T J) v` in u."""
    with torch.enable_grad():
        leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        output = run(leaves)
        dummy = torch.zeros_like(output, requires_grad=True)
        pulled = torch.autograd.grad(output, list(leaves.values()), dummy, create_graph=True, allow_unused=True)
        total = sum((p * v[name]).sum() for p, name in zip(pulled, leaves, strict=True) if p is not None)
        if not isinstance(total, Tensor) or not total.requires_grad:
            return torch.zeros_like(output)
        return torch.autograd.grad(total, dummy)[0].detach()


def hessian_matrix(model: nn.Module, space: Space, data: Batches, likelihood: Likelihood, chunk: int = 64) -> Tensor:
    """(D, D): the Hessian of the total energy, by second derivatives."""
    columns = torch.eye(space.size, dtype=torch.float64, device="cpu")  # taken to the weights' dtype by each product
    products = Products(model, space, data, likelihood, Hessian())
    made = torch.cat([products.mv(part) for part in columns.split(chunk)])
    return (made + made.T) / 2


class Products:
    """`H v` for the curvature of a network on data, one pass over the data each time."""

    def __init__(
        self,
        model: nn.Module,
        space: Space,
        data: Batches,
        likelihood: Likelihood,
        kind: Kind | Hessian | Auto,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.space = space
        self.data = data
        self.likelihood = likelihood
        self.kind = kind
        self.seed = seed

    def mv(self, v: Tensor) -> Tensor:
        """(..., D) -> (..., D): the curvature of the energy (scale 1) times v."""
        if not isinstance(v, Tensor):
            raise TypeError(f"v is a {type(v).__name__}; expected a tensor (..., {self.space.size}).")
        if not v.dim() or v.shape[-1] != self.space.size:
            raise ValueError(f"A vector of shape {tuple(v.shape)} was given; expected (..., {self.space.size}).")
        parameters = [self.model.get_parameter(name) for name in self.space.names]
        like = parameters[0]
        flat = v.reshape(-1, v.shape[-1]).to(device=like.device, dtype=like.dtype)
        total = torch.zeros_like(flat, dtype=torch.promote_types(flat.dtype, torch.float32))
        if not bool(torch.isfinite(flat).all()):
            raise ValueError(f"v holds numbers that are NaN, or Inf in {flat.dtype}; expected finite ones.")
        seen, watch = 0, Watch()
        with evaluation(self.model, parameters), sdpa_kernel([SDPBackend.MATH]):
            for inputs, targets in watch.counted(self.data):
                try:
                    made, number = self._batch(inputs, targets, flat, seen)
                except InExample as error:
                    raise watch.located(error) from None
                total += made
                seen += number
        if not seen:
            raise ValueError("The data has no examples: the loader is empty.")
        return total.reshape(v.shape)

    def _batch(self, inputs: Inputs, targets: Tensor, v: Tensor, seen: int) -> tuple[Tensor, int]:
        parameters = [self.model.get_parameter(name) for name in self.space.names]
        output = output_of(self.model, inputs)
        form = self.likelihood.form(output, targets)
        likelihood = self.likelihood.bound(form)
        y = likelihood.targets(targets, form)
        if not bool(likelihood.valid(y, form)):
            raise wrong_target(likelihood, y, form)
        if isinstance(self.kind, Hessian):
            energy = likelihood.energy(widened(form.flatten(output)), y).sum()
            gradients = torch.autograd.grad(energy, parameters, create_graph=True, allow_unused=True)
            return torch.stack([self._pull(gradients, unflatten(one, self.space)) for one in v]), len(output)
        kind = self.kind.choose(form, likelihood)[0] if isinstance(self.kind, Auto) else self.kind
        examples = torch.arange(seen, seen + len(output), device=output.device)
        view = View(likelihood, widened(form.flatten(output.detach())), y, form, examples, self.seed)
        columns = form.restore(kind.columns(view, 0, kind.count(form, view.likelihood))).to(output.dtype)  # (K, N, ...)
        columns = columns.reshape(*columns.shape[:2], -1)
        pushed = jacobian_vectors(self.model, inputs, self.space, v)
        weights = torch.einsum("knc,snc->skn", columns, pushed.reshape(*pushed.shape[:2], -1))
        cotangents = torch.einsum("skn,knc->snc", weights, columns).reshape(pushed.shape)
        made = [
            self._gather(torch.autograd.grad(output, parameters, one, retain_graph=True, allow_unused=True))
            for one in cotangents.to(output.dtype)
        ]
        return torch.stack(made), len(output)

    def _pull(self, gradients: tuple[Tensor | None, ...], v: dict[str, Tensor]) -> Tensor:
        """The gradient of `gradient^T v`: one column of the Hessian's product."""
        parameters = [self.model.get_parameter(name) for name in self.space.names]
        total = sum(
            (gradient * v[name]).sum()
            for gradient, name in zip(gradients, self.space.names, strict=True)
            if gradient is not None
        )
        if not isinstance(total, Tensor) or not total.requires_grad:
            return torch.zeros(self.space.size, dtype=parameters[0].dtype, device=parameters[0].device)
        return self._gather(torch.autograd.grad(total, parameters, retain_graph=True, allow_unused=True))

    def _gather(self, gradients: tuple[Tensor | None, ...]) -> Tensor:
        parameters = [self.model.get_parameter(name) for name in self.space.names]
        filled = {
            name: torch.zeros_like(parameter) if gradient is None else gradient.detach().to_dense()
            for name, parameter, gradient in zip(self.space.names, parameters, gradients, strict=True)
        }
        return flatten(filled, self.space)
