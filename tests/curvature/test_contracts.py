"""What a structure and a curvature have to say, and what they need not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import peewit as pw
from peewit.curvature.contracts import Curvature, Structure
from peewit.curvature.kinds import NAMES
from peewit.curvature.stream import Source
from peewit.weights.space import Space


@dataclass(frozen=True)
class Plain(Structure):
    """The diagonal by its four methods, with no optional ability."""

    def measure(self, source: Source) -> Any:
        return pw.Diag().measure(source)

    def more(self, source: Source, earlier: Any) -> Any:
        return pw.Diag().more(source, earlier)

    def check(self, sums: Any, space: Space) -> None:
        pw.Diag().check(sums, space)

    def curvature(self, sums: Any, space: Space) -> Curvature:
        return pw.Diag().curvature(sums, space)


def data() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    return nn.Linear(2, 3), (torch.randn(9, 2, generator=generator), torch.arange(9) % 3)


def test_a_structure_of_four_methods() -> None:
    """It fits, is asked and updated as `Diag`."""
    model, pairs = data()
    ours, diag = (pw.fit(model, pairs, "classification", structure=structure) for structure in (Plain(), pw.Diag()))
    assert torch.equal(ours.precision.variance(), diag.precision.variance())
    assert float(ours.log_evidence()) == float(diag.log_evidence())
    assert torch.equal(ours.update(pairs).precision.variance(), diag.update(pairs).precision.variance())
    assert ours.state.conditions == ()


def test_abilities_that_a_structure_does_not_have() -> None:
    """Each has a default that refuses."""
    model, pairs = data()
    mask = torch.arange(9) % 2 == 0
    with pytest.raises(pw.PeewitError, match="structure=Plain cannot hold single elements of a tensor"):
        pw.fit(model, pairs, "classification", structure=Plain(), weights=mask)
    with pytest.raises(pw.PeewitError, match="curvature='hessian' with structure=Plain"):
        pw.fit(model, pairs, "classification", structure=Plain(), curvature="hessian")


def test_what_is_no_structure() -> None:
    model, pairs = data()
    with pytest.raises(pw.ArgumentTypeError, match=r"or of a subclass of peewit\.curvature\.Structure"):
        pw.fit(model, pairs, "classification", structure=nn.Identity())  # type: ignore[arg-type]


def test_every_kind_of_curvature_has_a_degree() -> None:
    assert {kind.degree for kind in NAMES.values()} <= {1, 2}
