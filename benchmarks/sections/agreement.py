"""Whether the numbers are right: beside laplace-torch where it is right, and beside peewit itself in float64."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks import ours, peer
from benchmarks.cases import Bench, Case, batched, synthetic
from benchmarks.measure import Failure
from benchmarks.networks import LAST, NETWORKS, Network

TOLERANCE = 1e-3
EXAMPLES, BATCH = 24, 16  # two batches, the second smaller
INPUTS, MANY_INPUTS = 2, 16  # unseen ones: few enough for a Jacobian of all weights, and where there is none


@dataclass(frozen=True)
class Comparison:
    """Which weights and structure to compare on a network."""

    structure: str
    weights: str = "all"


COMPARED = {
    "mlp": (Comparison("kron"), Comparison("diag")),
    "lenet": (Comparison("kron"), Comparison("diag")),
    "resnet18": (Comparison("kron"),),
    "resnet18-100": (Comparison("kron"),),
    "vit": (Comparison("kron"),),
    "last-10": (Comparison("kron", "last_layer"), Comparison("diag", "last_layer")),
}
NOT_COMPARED = {
    "gpt": "laplace-torch refuses outputs at several positions, and embeddings",
    "last-1000": "the curvature is drawn, by different draws in the two libraries",
}


def measure(bench: Bench) -> None:
    """A record per network, structure and reference."""
    known: dict[str, Network] = {**NETWORKS, **LAST}
    for case in bench.cases({name: network for name, network in known.items() if name in COMPARED}):
        for compared in COMPARED[case.name]:
            references = [("float64", in_float64)]
            if bench.settings.peer:
                references = [(peer.NAME, beside_peer), (f"{peer.NAME}, both in float64", exactly), *references]
            for name, function in references:
                bench.note(
                    case,
                    "agreement",
                    partial(function, case, compared),
                    library=ours.NAME,
                    reference=name,
                    structure=compared.structure,
                    weights=compared.weights,
                    curvature="exact",
                )
    for case in bench.cases({name: known[name] for name in NOT_COMPARED}):
        bench.note(
            case,
            "agreement",
            partial(Failure, f"not compared: {NOT_COMPARED[case.name]}"),
            library=ours.NAME,
            reference=peer.NAME,
        )


def data_of(case: Case, inputs: int) -> tuple[Any, Tensor]:
    """Batches, and inputs that are not among them."""
    network = case.network
    data = synthetic(network.shape, case.classes, EXAMPLES, case.settings.device, network.tokens)
    return batched(data, BATCH), case.inputs(inputs)


def exactly(case: Case, compared: Comparison) -> dict[str, Any]:
    """Both libraries on the network in float64, at one input, where differences are not rounding."""
    return beside_peer(replace(case, model=copy.deepcopy(case.model).double()), compared, 1)


def beside_peer(case: Case, compared: Comparison, number: int = INPUTS) -> dict[str, Any]:
    """Both libraries on the same weights: those that laplace-torch takes."""
    batches, inputs = data_of(case, number)
    dtype = next(case.model.parameters()).dtype
    if dtype == torch.float64:
        batches, inputs = [(x.double(), y) for x, y in batches], inputs.double()
    whole = compared.weights == "all"
    model = peer.freeze_unsupported(case.model) if whole else case.model
    weights = None if whole else sum(parameter.numel() for parameter in list(model.parameters())[-2:])
    largest = BATCH if compared.structure == "diag" else INPUTS
    refused = peer.too_large(model, largest, case.classes, case.settings.device, weights)
    if refused:
        return refused.as_dict()
    theirs = peer.fit(model, batches, "exact", compared.structure, compared.weights)
    chosen = peer.supported_names(case.model) if whole else "last_layer"
    mine = ours.fit(case.model, batches, "exact", compared.structure, chosen)
    return difference(
        mine.functional(inputs)[1],
        peer.functional(theirs, inputs)[1],
        float(mine.log_evidence()),
        float(theirs.log_marginal_likelihood()),
    )


def in_float64(case: Case, compared: Comparison) -> dict[str, Any]:
    """The same fit and predictions with the network and its data in float64: what rounding costs."""
    batches, inputs = data_of(case, MANY_INPUTS)
    mine = ours.fit(case.model, batches, "exact", compared.structure, compared.weights)
    model = copy.deepcopy(case.model).double()
    doubled = [(x.double(), y) for x, y in batches]
    exact = ours.fit(model, doubled, "exact", compared.structure, compared.weights)
    return difference(
        mine.functional(inputs)[1],
        exact.functional(inputs.double())[1],
        float(mine.log_evidence()),
        float(exact.log_evidence()),
    )


def difference(covariance: Tensor, reference: Tensor, evidence: float, expected: float) -> dict[str, Any]:
    """Relative differences: the largest of variances, covariances as a whole, and the evidence."""
    covariance, reference = covariance.double(), reference.double()
    diagonal, target = (each.diagonal(dim1=-2, dim2=-1) for each in (covariance, reference))
    variance = float(((diagonal - target) / target).abs().max())
    return {
        "variance_difference": variance,
        "covariance_difference": float((covariance - reference).norm() / reference.norm()),
        "evidence": evidence,
        "reference_evidence": expected,
        "evidence_difference": abs(evidence - expected) / abs(expected),
        "tolerance": TOLERANCE,
        "agrees": variance <= TOLERANCE and abs(evidence - expected) <= TOLERANCE * abs(expected),
    }
