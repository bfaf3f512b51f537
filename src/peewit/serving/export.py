"""Predictors as programs that run without Peewit: by torch.export, and as files of ONNX."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ..curvature.blocks import OperatorBlock
from ..curvature.operators import DenseOperator
from ..jacobians.output_layer import OutputLayerJacobian, Piece, outermost_pieces, row_places
from ..likelihoods import NAMES, Likelihood
from ..messages.errors import PeewitError
from ..network.nests import Inputs, Pair, count, map_tensors
from ..predictions import links
from ..predictions.prediction import LinkName, Prediction
from ..weights.ranges import WeightRange
from .copies import copy_sharing_weights
from .exported import (
    BinaryRule,
    BridgeRule,
    ClassRule,
    CountRule,
    Covariances,
    DenseCovariances,
    ExportedModule,
    LabelRule,
    NormalisedBridgeRule,
    NumberRule,
    ProbitRule,
    SpectralCovariances,
    VarianceRule,
    Variances,
)
from .files import quiet, target_path, write
from .last_layer import ROOTS, Rows, SpectralForm
from .network import ClosedNetwork, LastLayer, mode_for
from .ways import ClosedForm, Way, owners_of

if TYPE_CHECKING:
    from ..predictions.options import PredictOptions

Program: TypeAlias = "Callable[[ClosedForm, PredictOptions, Likelihood, Mapping[WeightRange, Piece]], LabelRule]"

DENSE_CLASSES = 64  # up to which a covariance without a basis is decomposed column by column
DRAWS = 1 << 27  # numbers in the draws of one example's outputs


def export(
    way: Way,
    options: PredictOptions,
    likelihood: Likelihood,
    x: Inputs,
    path: str | os.PathLike[str] | None,
    batch: Any,
) -> ExportedProgram:
    """The program of a predictor, traced at inputs x; written to a file where there is a path."""
    target = None if path is None else target_path(path)
    closed = exportable(way, options, likelihood, x)
    number = checked_batch(batch)
    x = repeat(x, 2 if number is None else number)
    module = module_of(closed, options, likelihood, x)
    program = trace_program(module, x, number is None)
    compare(program, way(x), x)
    if target is not None:
        write(program, module.rule.names, x, target)
    return program


def checked_batch(batch: Any) -> int | None:
    """How many inputs a program takes; None for any number."""
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise PeewitError(f"batch={batch!r} was given; expected None, for any number of inputs, or a number such as 1.")
    return batch


def exportable(way: Way, options: PredictOptions, likelihood: Likelihood, x: Inputs) -> ClosedForm:
    """The closed form of a predictor; refuses one without it, and says what can be exported."""
    known = tuple(PROGRAMS.get(likelihood.link_family, ()))
    if isinstance(x, Pair) or not known:
        what = "pairs of inputs" if isinstance(x, Pair) else type(likelihood).__name__
        have = [kind.__name__ for kind in NAMES.values() if kind().for_inputs(None).link_family in PROGRAMS]
        raise PeewitError(
            f"Predictions of {what} cannot be exported; expected single inputs, and {', '.join(have[:-1])} or "
            f"{have[-1]}."
        )
    if options.method == "linearised" and options.link not in known:
        raise PeewitError(
            f"link={options.link!r} averages over draws and cannot be exported; expected "
            f"{' or '.join(f'link={link!r}' for link in known)}: la.predictor(x, link={known[0]!r})."
        )
    if way.closed is None:
        raise PeewitError(
            f"This predictor works by {way.words}; only the last layer in closed form can be exported. Fit with "
            "weights='last_layer', to a network that ends in a linear layer and whose passes change nothing, and "
            "predict with method='linearised' and without joint=True."
        )
    return way.closed


def repeat(x: Inputs, number: int) -> Inputs:
    """So many examples: the first ones again where there are fewer."""
    chosen = torch.arange(number, device="cpu") % count(x)
    examples: Inputs = map_tensors(lambda tensor: tensor[chosen.to(tensor.device)].clone(), x)
    return examples


def module_of(closed: ClosedForm, options: PredictOptions, likelihood: Likelihood, x: Inputs) -> ExportedModule:
    """A network of its own memory with what was worked out for its last layer."""
    state, form = closed.state, closed.common.form
    shared = copy_sharing_weights(state.model, set())
    assert shared is not None  # there is a closed form: it was copied before
    network = copy.deepcopy(shared)
    with closed.pool.borrow() as served, torch.no_grad():
        (layer,) = owners_of(network, served.use.names)
        last = LastLayer.of(layer, served.use.key in served.knowledge.copied)
        output, layer_inputs, shape = served.plain_pass(x)
        jacobians = served.tape(x, output, layer_inputs, shape).pull_outputs()
        change = change_of(closed, served, jacobians, layer_inputs.shape[-1])
        rule = rule_of(closed, options, likelihood, jacobians)
    module = ExportedModule(network, last, form, change, rule, mode_for(network))
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return module.eval().to(state.weights.device)


def change_of(
    closed: ClosedForm, network: ClosedNetwork, jacobians: Mapping[WeightRange, Piece], width: int
) -> nn.Linear | None:
    """What the way to the linear mode adds to the outputs, as a map of the last layer's inputs."""
    if closed.shift is None:
        return None
    space, form = network.space, closed.common.form
    assert space.mask is None  # single elements of a weight have no closed form
    weight, bias = None, None
    for part, piece in jacobians.items():
        assert isinstance(piece, OutputLayerJacobian)
        matrix = piece.layout.to_matrix(closed.shift[space.slice_of(part)])[0]
        matrix = matrix.mT if piece.flipped else matrix
        if piece.acts.constant:
            bias = matrix[:, 0]
        else:
            weight = matrix
    change = nn.Linear(width, form.outputs, device=closed.shift.device, dtype=closed.shift.dtype)
    with torch.no_grad():
        change.weight.zero_() if weight is None else change.weight.copy_(weight)
        change.bias.zero_() if bias is None else change.bias.copy_(bias)
    return change


def rule_of(
    closed: ClosedForm, options: PredictOptions, likelihood: Likelihood, jacobians: Mapping[WeightRange, Piece]
) -> LabelRule:
    """What the predictions of a likelihood are made of."""
    return PROGRAMS[likelihood.link_family][options.link](closed, options, likelihood, jacobians)


def classes(kind: type[ClassRule]) -> Program:
    """Of a likelihood with several classes."""

    def rule(
        closed: ClosedForm, options: PredictOptions, likelihood: Likelihood, jacobians: Mapping[WeightRange, Piece]
    ) -> LabelRule:
        form, covariances = closed.common.form, covariances_of(closed, jacobians)
        points = options.samples if kind.averages else 1
        if points * form.positions * covariances.rank > DRAWS:
            raise PeewitError(
                f"The epistemic part of one input takes {options.samples} draws of {form.positions} x "
                f"{covariances.rank} numbers, which is too many for a program. Use la.predictor(x, samples=...) with "
                "fewer draws, or link='bridge'."
            )
        like = closed.state.weights
        dtype = torch.promote_types(like.dtype, torch.float32)
        covariances.place(links.normal_points(points, covariances.rank, closed.common.seed).to(like.device, dtype))
        return kind(form, covariances)

    return rule


def by_variance(kind: type[VarianceRule]) -> Program:
    """Of a likelihood with one target for each output, of which the variances say all."""

    def rule(
        closed: ClosedForm, options: PredictOptions, likelihood: Likelihood, jacobians: Mapping[WeightRange, Piece]
    ) -> LabelRule:
        return kind(closed.common.form, Variances(closed.form))

    return rule


def numbers(
    closed: ClosedForm, options: PredictOptions, likelihood: Likelihood, jacobians: Mapping[WeightRange, Piece]
) -> LabelRule:
    """With noise that does not depend on the outputs."""
    form = closed.common.form
    mean = closed.state.weights.new_zeros(1, form.positions, form.outputs)
    distribution = likelihood.distribution(mean.to(torch.promote_types(mean.dtype, torch.float32)))
    assert distribution is not None
    return NumberRule(form, Variances(closed.form), distribution.variance.detach().clone())


# Links that have a program, in the families that have one, the default first: rows of `predictions.families.FAMILIES`.
PROGRAMS: dict[str, dict[LinkName, Program]] = {
    "categorical": {
        "probit": classes(ProbitRule),
        "bridge": classes(BridgeRule),
        "bridge_normalised": classes(NormalisedBridgeRule),
    },
    "bernoulli": {"probit": by_variance(BinaryRule)},
    "gaussian": {"exact": numbers},
    "poisson": {"exact": by_variance(CountRule)},
}


def covariances_of(closed: ClosedForm, jacobians: Mapping[WeightRange, Piece]) -> Covariances:
    """Of several outputs."""
    if isinstance(closed.form, SpectralForm):
        return SpectralCovariances(closed.form)
    outputs = closed.common.form.outputs
    blocks = [dense_rows(block, jacobians) for block in closed.state.precision.blocks]
    if outputs > DENSE_CLASSES or sum(rows is None for rows in blocks):
        raise PeewitError(
            f"The covariance of {outputs} classes under this structure is too large for a program, which takes up to "
            f"{DENSE_CLASSES} classes. Fit with structure='kron' or 'diag'."
        )
    return DenseCovariances([rows for rows in blocks if rows is not None], closed.form.dtype)


def dense_rows(block: OperatorBlock, jacobians: Mapping[WeightRange, Piece]) -> Rows | None:
    """Roots (C, P) of the covariance of all outputs together; None where they would be too large."""
    jacobian, operator = block.jacobian(jacobians), block.operator
    pieces = None if jacobian is None else outermost_pieces(jacobian)
    assert isinstance(operator, DenseOperator) and pieces is not None  # or the closed form would be another
    places = row_places(pieces)
    size = len(operator.cholesky)
    if places.numel() * size > ROOTS:
        return None
    cholesky = operator.cholesky.double()
    columns = places.flatten().to(cholesky.device)
    identity = cholesky.new_zeros(size, len(columns))
    identity[columns, torch.arange(len(columns), device=columns.device)] = 1
    solved = torch.linalg.solve_triangular(cholesky, identity, upper=False)
    roots = solved.reshape(size, *places.shape).transpose(0, 1).flatten(0, 1).to(pieces[0].dtype)  # (C P, I)
    parts = roots.split([piece.acts.width for piece in pieces], -1)
    turns = [part for part, piece in zip(parts, pieces, strict=True) if not piece.acts.constant]
    shifts = [part[:, 0] for part, piece in zip(parts, pieces, strict=True) if piece.acts.constant]
    turn, shift = (torch.stack(each).sum(0).contiguous() if each else None for each in (turns, shifts))
    return Rows(turn=turn, shift=shift, outputs=len(places))


def trace_program(module: ExportedModule, x: Inputs, dynamic: bool) -> ExportedProgram:
    """By torch.export, for any number of examples or as many as x has."""
    shapes = None
    if dynamic:
        examples = Dim("examples")
        shapes = (map_tensors(lambda _: {0: examples}, x),)
    with quiet(), torch.no_grad():
        try:
            return torch.export.export(module, (x,), dynamic_shapes=shapes)
        except Exception as error:
            first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            todo = "With batch=1, or another number, the batch size is fixed. " if dynamic else ""
            raise PeewitError(
                f"torch.export cannot trace this network{' for any number of inputs' if dynamic else ''}: {first} "
                f"{todo}The network's own forward pass has to be one that torch.export takes."
            ) from error


def compare(program: ExportedProgram, expected: Prediction, x: Inputs) -> None:
    """Refuse a program that does not predict what the predictor does: a network whose trace left something out."""
    with torch.no_grad():
        outputs: dict[str, Tensor] = program.module()(x)
    for name, value in outputs.items():
        wanted = getattr(expected, name)
        bound = 1e-3 * float(wanted.abs().max()) + 1e-5
        if value.shape != wanted.shape or not torch.allclose(value, wanted.to(value.dtype), rtol=1e-3, atol=bound):
            raise PeewitError(
                f"The exported program gives another {name!r} than the predictor does for the inputs that it was made "
                "with: torch.export leaves out something of the network's forward pass, such as a choice that depends "
                "on values. Write it with tensor operations alone."
            )
