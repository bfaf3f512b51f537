"""Options that are names have a type that lists them, and the code accepts just these."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from torch import nn

import peewit as pw
from peewit import likelihoods
from peewit.curvature import kinds, structures
from peewit.evaluation.attacks import ATTACKS
from peewit.evaluation.corruptions import CORRUPTIONS
from peewit.evaluation.subject import Baseline
from peewit.evaluation.sweeps import SEARCHES, SearchMethod
from peewit.evaluation.variations import AttackName, ShiftName
from peewit.figures.directions import DirectionName
from peewit.figures.losses import REACH
from peewit.figures.unknown import SCORES, ScoreName
from peewit.metrics.catalogue import METRICS, MetricName
from peewit.metrics.results import MethodScores, Results, VariationName
from peewit.predictions.families import FAMILIES
from peewit.predictions.prediction import LinkName
from peewit.tracing.selection import SubnetworkRule, Weights
from peewit.weights.space import WeightsName

X, Y = torch.zeros(4, 2), torch.tensor([0, 1, 2, 0])
# Texts that are no choice among names, or one among those of classes or tensors.
FREE = {"path", "name", "device", "title", "layer"}
# What modules import for type checkers alone, and what stands for it.
TYPES = {"Figure": object, "Laplace": pw.Laplace, "MethodScores": MethodScores, "Results": Results}
QUESTIONS = {name: each for name, each in vars(pw.Laplace).items() if inspect.isfunction(each) and name[0] != "_"}
FIGURES = {
    f"figures.{name}": function
    for name in pw.figures.__all__
    if inspect.isfunction(function := getattr(pw.figures, name))
}
FACES: dict[str, Callable[..., Any]] = {
    "fit": pw.fit,
    "products": pw.products,
    "load": pw.load,
    "validation_nll": pw.validation_nll,
    "Subnetwork": pw.Subnetwork,
    "sweep": pw.sweep,
    "evaluate": pw.evaluate,
    "compare": pw.compare,
    "recommend": pw.recommend,
    "Prior.scale_invariant": pw.Prior.scale_invariant,
    **FIGURES,
    **QUESTIONS,
}


def hints_of(name: str) -> dict[str, Any]:
    """The types of what a function or class takes."""
    function = FACES[name]
    hints = get_type_hints(function.__init__ if inspect.isclass(function) else function, localns=TYPES)
    return {option: hint for option, hint in hints.items() if option != "return"}


def literals(hint: Any) -> Iterator[str]:
    """The names in a type."""
    if get_origin(hint) is Literal:
        yield from (name for name in get_args(hint) if isinstance(name, str))
    elif get_origin(hint) is not None:
        for each in get_args(hint):
            yield from literals(each)


@pytest.mark.parametrize(
    ("type_", "known"),
    [
        (likelihoods.LikelihoodName, likelihoods.NAMES),
        (structures.StructureName, structures.NAMES),
        (kinds.CurvatureName, kinds.NAMES),
        (LinkName, {link for family in FAMILIES.values() for link in family.links}),
        (SearchMethod, SEARCHES),
        (MetricName, METRICS),
        (Baseline, ("plain", "temperature", "ensemble", "dropout")),
        (VariationName, ("shifts", "attacks")),
        (DirectionName, REACH),
        (ShiftName, CORRUPTIONS),
        (AttackName, ATTACKS),
        (ScoreName, SCORES),
    ],
    ids=[
        *("likelihood", "structure", "curvature", "link", "search", "metric", "baseline", "variation", "directions"),
        *("shift", "attack", "score"),
    ],
)
def test_types_list_the_rows_of_tables(type_: Any, known: Any) -> None:
    """A new row needs its name in the type."""
    assert set(get_args(type_)) == set(known)


@pytest.mark.parametrize("name", FACES)
def test_no_option_is_any_text(name: str) -> None:
    """An option that takes names or data says which, so that editors complete them and type checkers look."""
    for option, hint in hints_of(name).items():
        if option not in FREE and hint != Weights:
            assert hint is not str and str not in get_args(hint), option
        if option in ("data", "train", "validation", "test", "ood", "shifts", "attacks"):
            assert hint is not Any, option


def ask(option: str, call: Callable[..., Any]) -> str:
    """What is said of a name that is not known."""
    with pytest.raises(pw.PeewitError) as caught:
        call(**{option: "no such name"})
    return str(caught.value)


@pytest.fixture(scope="module")
def la() -> pw.Laplace:
    """A small posterior."""
    torch.manual_seed(0)
    return pw.fit(nn.Linear(2, 3), (X, Y), "classification")


@pytest.fixture(scope="module")
def report(la: pw.Laplace) -> pw.Report:
    """Of it."""
    return pw.evaluate(la, (X, Y), intervals=0)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        (name, option)
        for name in sorted(FACES.keys() - {"load"})  # which reads the file first
        for option, hint in hints_of(name).items()
        if [*literals(hint)] and option not in {"parameters", "grid", "weights", "link", "metric", "score", "plotlyjs"}
    ],
)
def test_errors_list_the_names_of_the_type(name: str, option: str, la: pw.Laplace, report: pw.Report) -> None:
    """What the code accepts at run time is what its type says."""
    function = FACES[name]
    given: dict[str, Any] = {"model": la.model, "data": (X, Y), "likelihood": "classification", "size": 1, "self": la}
    given |= {"x": X, "samples": 1, "la": la, "validation": (X, Y), "train": (X, Y), "test": (X, Y), "source": la}
    given |= {"la_or_model": la.model if option == "likelihood" else la, "report": report}
    parameters = inspect.signature(function).parameters
    needed = [each for each, own in parameters.items() if own.default is own.empty and own.kind is not own.VAR_KEYWORD]
    needed += ["x"] if function in (pw.Laplace.predict, pw.Laplace.predictor, pw.figures.monte_carlo) else []
    needed += ["data"] if name.startswith("figures.landscape_") else []  # numbers that are ready take none
    own = {each: given[each] for each in needed if each != option}
    first = [own.pop("self")] if "self" in own else []
    said = ask(option, lambda **asked: function(*first, **own, **asked))
    listed = said.partition("Known: ")[2].partition(". ")[0].rstrip(".")
    assert set(listed.split(", ")) - {"auto"} == set(literals(hints_of(name)[option])) - {"auto"}, said


def test_lists_of_names(la: pw.Laplace) -> None:
    """Parameters of `tune`, links of a likelihood and choices of weights."""
    with pytest.raises(pw.PeewitError, match="Known: prior, noise, temperature"):
        la.tune(parameters=["no such name"])  # type: ignore[list-item]
    with pytest.raises(pw.PeewitError, match="Known there: probit, bridge, bridge_normalised, mc"):
        la.predict(X, link="no such name")  # type: ignore[arg-type]
    assert set(get_args(SubnetworkRule)) == {"variance", "magnitude", "random"}
    for name in get_args(WeightsName):
        if name != "lora":
            pw.fit(la.model, (X, Y), "classification", weights=name)
    with pytest.raises(pw.PeewitError, match="lora"):
        pw.fit(la.model, (X, Y), "classification", weights="lora")
