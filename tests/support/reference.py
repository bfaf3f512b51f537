"""Dense float64 reference for every curvature: the whole matrices, and those with Kronecker-factored blocks.

A weight that is applied as a matrix at positions t has inputs a_t (I,) and, for probe k of the output curvature,
gradients g_kt (O,) at its outputs. All its applications are positions of one layer. Its block is G x A with
    expand   A = sum_nt a a^T / sum_n T_n,         G = sum_nkt g g^T
    reduce   A = sum_n mean_t(a) mean_t(a)^T / N,  G = sum_nk (sum_t g)(sum_t g)^T
and every tensor that is not (only) applied as a matrix has its own exact block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reference_capture import Call, Part, Recorder
from reference_dense import (
    DENSE_LIMIT,
    IGNORED,
    apply,
    empirical,
    energy,
    energy_of,
    example,
    fisher,
    functional_covariance,
    ggn,
    gradients,
    hessian,
    jacobian,
    joint_functional_covariance,
    log_evidence,
    log_likelihood,
    output_hessian,
    output_root,
    outputs,
    plain,
    posterior,
    prepared,
    probes,
    residual,
    selected,
    size,
)

__all__ = [
    "IGNORED",
    "Block",
    "blocks",
    "blocks_of",
    "dense",
    "ekfac",
    "ekfac_of",
    "empirical",
    "energy",
    "energy_of",
    "example",
    "fisher",
    "functional_covariance",
    "ggn",
    "gradients",
    "hessian",
    "jacobian",
    "joint_functional_covariance",
    "kron",
    "kron_of",
    "log_evidence",
    "log_likelihood",
    "observe",
    "output_hessian",
    "output_root",
    "outputs",
    "posterior",
    "probes",
    "reconstruction",
    "residual",
    "size",
]


@dataclass
class Observation:
    """One example: outputs (1, *rest), jacobian (F, D), the calls made and for each the gradients (F, T, O)."""

    output: Tensor
    jacobian: Tensor
    calls: list[Call]
    gradients: list[Tensor]


@dataclass(kw_only=True)
class Block:
    """A block of the curvature: flat places `index` (O, I) and factors (O, O) and (I, I), or an exact matrix."""

    key: str
    index: Tensor
    row_factor: Tensor | None = None
    column_factor: Tensor | None = None
    exact: Tensor | None = None


def observe(model: nn.Module, x: Any, names: list[str]) -> list[Observation]:
    """Return what each example does, with the derivatives of all F output scalars at every recorded call."""
    model = prepared(model)
    parameters = selected(model, names)
    observations = []
    for n in range(size(x)):
        recorder = Recorder(model, names)
        with plain(), recorder.recording() as calls:
            output = apply(model, example(x, n))
            rows, at_calls = [], []
            for scalar in output.reshape(-1):
                targets = [*parameters, *[call.output for call in calls]]
                found = torch.autograd.grad(scalar, targets, retain_graph=True, allow_unused=True)
                found = [torch.zeros_like(t) if g is None else g for g, t in zip(found, targets, strict=True)]
                rows.append(torch.cat([g.reshape(-1) for g in found[: len(parameters)]]))
                at_calls.append([call.by_position(g) for call, g in zip(calls, found[len(parameters) :], strict=True)])
        stacked = [torch.stack([row[c] for row in at_calls]) for c in range(len(calls))]
        for call, gradient in zip(calls, stacked, strict=True):
            if call.carries is not None:
                gradient[:, ~call.carries] = 0
        observations.append(Observation(output.detach(), torch.stack(rows), calls, stacked))
    return observations


def ranges(model: nn.Module, names: list[str]) -> dict[str, tuple[int, int]]:
    """Return for each name where its tensor begins and ends in the flat order (D,)."""
    result, start = {}, 0
    for name, parameter in zip(names, selected(model, names), strict=True):
        result[name] = (start, start + parameter.numel())
        start += parameter.numel()
    return result


def bias_part(call: Call) -> Part:
    """Return a bias (O,) as a matrix (O, 1) that is applied to the number one at every position."""
    positions = len(call.by_position(call.output))
    return Part(call.bias[:, None], torch.ones(positions, 1, dtype=torch.float64), slice(None))


def parts_of(call: Call) -> list[Part]:
    """Return the weight's parts of a call and its bias as a part of its own."""
    return call.parts + ([] if call.bias is None else [bias_part(call)])


def reconstruction(observations: list[Observation]) -> Tensor:
    """Return the Jacobian (N, F, D) as far as the recorded calls explain it, the sum over positions of g a^T."""
    result = torch.stack([torch.zeros_like(o.jacobian) for o in observations])
    for n, observation in enumerate(observations):
        for call, gradient in zip(observation.calls, observation.gradients, strict=True):
            for part in parts_of(call):
                matrices = torch.einsum("fto,ti->foi", gradient[:, :, part.rows], part.inputs)
                result[n][:, part.index.flatten()] += matrices.flatten(1)
    return result


def captured(observations: list[Observation], spans: dict[str, tuple[int, int]]) -> set[str]:
    """Return the names of tensors that are applied as matrices and in no other way, in whole or in disjoint rows."""
    found = reconstruction(observations)
    true = torch.stack([o.jacobian for o in observations])
    parts = [part for o in observations for call in o.calls for part in parts_of(call)]
    pieces = {places(part.index) for part in parts}
    result = set()
    for name, (start, end) in spans.items():
        own = [piece for piece in pieces if start <= piece[0] < end]
        entries = [entry for piece in own for entry in piece]
        error = (found - true)[..., start:end].abs().max()
        if own and len(entries) == len(set(entries)) and error <= 1e-9 * (1 + true[..., start:end].abs().max()):
            result.add(name)
    return result


def places(index: Tensor) -> tuple[int, ...]:
    """Return the flat places of a matrix of places (O, I) whatever its orientation."""
    return tuple(index.flatten().sort().values.tolist())


def oriented(index: Tensor) -> tuple[tuple[int, ...], ...]:
    """Return a matrix of places (O, I) as nested tuples, which differ between a matrix and its transpose."""
    return tuple(map(tuple, index.tolist()))


def joined(observations: list[Observation], usable: set[str], owner: dict[int, str]) -> set[tuple[int, int]]:
    """Return (example, call) for the calls whose weight and bias form one matrix (O, I + 1)."""
    weight_calls: dict[tuple[int, ...], set] = {}
    bias_calls: dict[tuple[int, ...], set] = {}
    orientations: dict[tuple[int, ...], set] = {}
    pairs = {}
    for n, observation in enumerate(observations):
        for c, call in enumerate(observation.calls):
            weight = tuple(sorted(entry for part in call.parts for entry in places(part.index)))
            bias = () if call.bias is None else places(call.bias)
            weight_calls.setdefault(weight, set()).add((n, c))
            bias_calls.setdefault(bias, set()).add((n, c))
            orientations.setdefault(weight, set()).add(tuple(oriented(part.index) for part in call.parts))
            pairs[n, c] = (weight, bias)
    result = set()
    for key, (weight, bias) in pairs.items():
        both = weight and bias and owner[weight[0]] in usable and owner[bias[0]] in usable
        if both and weight_calls[weight] == bias_calls[bias] and len(orientations[weight]) == 1:
            result.add(key)
    return result


def joint_parts(call: Call) -> list[Part]:
    """Return the parts of a call with the bias as a last column (O, I + 1) and a one as a last input."""
    result = []
    for part in call.parts:
        index = torch.cat([part.index, call.bias[part.rows, None]], 1)
        inputs = torch.cat([part.inputs, torch.ones(len(part.inputs), 1, dtype=torch.float64)], 1)
        result.append(Part(index, inputs, part.rows))
    return result


def factors(examples: list[list[tuple[Tensor, Tensor]]], approx: str) -> tuple[Tensor, Tensor]:
    """Return G (O, O) and A (I, I) from every example's list of inputs (T, I) and gradients (K, T, O)."""
    first_inputs, first_gradients = next(uses for uses in examples if uses)[0]
    gradient_factor = torch.zeros(first_gradients.shape[-1], first_gradients.shape[-1], dtype=torch.float64)
    input_factor = torch.zeros(first_inputs.shape[-1], first_inputs.shape[-1], dtype=torch.float64)
    count = 0
    for uses in examples:
        if not uses or not sum(len(inputs) for inputs, _ in uses):
            continue
        inputs = torch.cat([inputs for inputs, _ in uses])
        gradient = torch.cat([gradient for _, gradient in uses], 1)
        if approx == "reduce":
            inputs, gradient = inputs.mean(0, keepdim=True), gradient.sum(1, keepdim=True)
        input_factor += inputs.T @ inputs
        gradient_factor += torch.einsum("kto,ktp->op", gradient, gradient)
        count += len(inputs)
    return gradient_factor, input_factor / max(count, 1)


def both_orientations(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return one pair of factors for a weight (rows, columns) from the pair of each of its orientations."""
    rows, row_sum = torch.zeros_like(pairs[0][0]), 0.0
    total = torch.zeros_like(pairs[0][1])
    for row, column in pairs:
        trace = row.trace()
        if trace > 0:
            weight = column.trace() * trace
            rows, row_sum = rows + weight * row / trace, row_sum + weight
            total = total + column * trace
    return (rows / row_sum if row_sum > 0 else rows), total


def blocks(
    model: nn.Module,
    x: Any,
    y: Any,
    likelihood: str,
    names: list[str],
    approx: str = "expand",
    bias: str = "separate",
    curvature: str = "ggn",
    axis: int = -1,
    exact: frozenset[str] = frozenset(),
) -> tuple[list[Block], Tensor]:
    """Return the blocks of the Kronecker-factored curvature and the gradients (N, K, D) of all its probes.

    Parameters named in `exact` take the exact block of their own tensor, whatever they are applied as.
    """
    observations = observe(model, x, names)
    roots = probes(likelihood, torch.cat([o.output for o in observations]), y, curvature, axis)
    labels = y[0] if curvature == "fisher" else y
    ignoring = [likelihood == "classification" and bool((labels[n] == IGNORED).any()) for n in range(len(roots))]
    return blocks_of(model, observations, roots, ignoring, names, approx, bias, exact)


def blocks_of(
    model: nn.Module,
    observations: list[Observation],
    roots: Tensor,
    ignoring: list[bool],
    names: list[str],
    approx: str = "expand",
    bias: str = "separate",
    exact: frozenset[str] = frozenset(),
) -> tuple[list[Block], Tensor]:
    """Return what `blocks` does for any likelihood: from probes (N, F, K) of its output curvature.

    Positions without a gradient leave the factors of examples that are `ignoring` some of their labels.
    """
    whole = torch.stack([root.T @ o.jacobian for root, o in zip(roots, observations, strict=True)])
    spans = ranges(model, names)
    owner = {entry: name for name, (start, end) in spans.items() for entry in range(start, end)}
    usable = captured(observations, spans) - exact
    together = joined(observations, usable, owner) if bias == "joint" else set()

    # places -> orientation -> for each example the inputs and gradients of its positions
    layers: dict[tuple[int, ...], dict[tuple, list[list[tuple[Tensor, Tensor]]]]] = {}
    for n, (observation, root) in enumerate(zip(observations, roots, strict=True)):
        for c, (call, gradient) in enumerate(zip(observation.calls, observation.gradients, strict=True)):
            gradient = torch.einsum("fk,fto->kto", root, gradient)
            kept = torch.ones(gradient.shape[1], dtype=torch.bool) if call.carries is None else call.carries
            if ignoring[n]:
                kept = kept & (gradient != 0).any(2).any(0)
            for part in joint_parts(call) if (n, c) in together else parts_of(call):
                if owner[int(part.index[0, 0])] in usable:
                    uses = layers.setdefault(places(part.index), {}).setdefault(oriented(part.index), [])
                    uses.extend([] for _ in range(len(observations) - len(uses)))
                    uses[n].append((part.inputs[kept], gradient[:, kept][:, :, part.rows]))

    result = []
    for entries, orientations in sorted(layers.items()):
        index = torch.tensor(next(iter(orientations)))
        row, column = factors_of(orientations, oriented(index), approx)
        owners = list(dict.fromkeys(owner[entry] for entry in entries))
        key = "+".join(owners)
        if len(entries) < sum(spans[name][1] - spans[name][0] for name in owners):
            key += f"[{entries[0] - spans[owners[0]][0]}]"  # one of several blocks of the same tensor
        result.append(Block(key=key, index=index, row_factor=row, column_factor=column))
    for name, (start, end) in spans.items():
        if name not in usable:
            part = whole[:, :, start:end].reshape(-1, end - start)
            exact = part.T @ part if end - start <= DENSE_LIMIT else torch.diag((part**2).sum(0))
            result.append(Block(key=name, index=torch.arange(start, end)[:, None], exact=exact))
    return result, whole


def factors_of(
    orientations: dict[tuple, list[list[tuple[Tensor, Tensor]]]], upright: tuple, approx: str
) -> tuple[Tensor, Tensor]:
    """Return the factors of a block's rows and columns, of all orientations in which its weight is applied."""
    pairs = []
    for orientation, examples in orientations.items():
        outer, inner = factors(examples, approx)
        pairs.append((outer, inner) if orientation == upright else (inner, outer))
    return pairs[0] if len(pairs) == 1 else both_orientations(pairs)


def dense(parts: list[Block], matrices: list[Tensor], weights: int) -> Tensor:
    """Return the matrix (D, D) that has each block's matrix (O I, O I) at the block's flat places."""
    result = torch.zeros(weights, weights, dtype=torch.float64)
    for block, matrix in zip(parts, matrices, strict=True):
        index = block.index.flatten()
        result[index[:, None], index] = matrix
    return result


def kron_of(parts: list[Block], whole: Tensor) -> Tensor:
    """Return the curvature (D, D) made of the Kronecker products of what `blocks` returned."""
    matrices = [torch.kron(b.row_factor, b.column_factor) if b.exact is None else b.exact for b in parts]
    return dense(parts, matrices, whole.shape[-1])


def ekfac_of(parts: list[Block], whole: Tensor, bases: dict[str, tuple[Tensor, Tensor]] | None = None) -> Tensor:
    """Return the curvature (D, D) with exact eigenvalues in the factors' eigenbases, or in `bases` by block key."""
    matrices = []
    for block in parts:
        if block.exact is not None:
            matrices.append(block.exact)
            continue
        if bases is not None and block.key in bases:
            rows, cols = bases[block.key]
        else:
            rows, cols = torch.linalg.eigh(block.row_factor)[1], torch.linalg.eigh(block.column_factor)[1]
        # the true derivatives, summed over positions, of each example and probe as a matrix
        true = whole[:, :, block.index].reshape(-1, *block.index.shape)
        values = sum((rows.T @ matrix @ cols) ** 2 for matrix in true)
        basis = torch.kron(rows.contiguous(), cols.contiguous())
        matrices.append(basis @ torch.diag(values.flatten()) @ basis.T)
    return dense(parts, matrices, whole.shape[-1])


def kron(model: nn.Module, x: Any, y: Any, likelihood: str, names: list[str], **settings: Any) -> Tensor:
    """Return the Kronecker-factored curvature (D, D); settings are approx, bias, curvature and axis of `blocks`."""
    return kron_of(*blocks(model, x, y, likelihood, names, **settings))


def ekfac(
    model: nn.Module,
    x: Any,
    y: Any,
    likelihood: str,
    names: list[str],
    bases: dict[str, tuple[Tensor, Tensor]] | None = None,
    **settings: Any,
) -> Tensor:
    """Return the curvature (D, D) with corrected eigenvalues; settings are those of `blocks`."""
    return ekfac_of(*blocks(model, x, y, likelihood, names, **settings), bases)
