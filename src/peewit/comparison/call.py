"""`compare`: from several posteriors to a table of them, ranked by evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import torch

from ..evaluation.call import EvaluationOptions
from ..laplace import Laplace
from ..messages.errors import ArgumentTypeError, PeewitError
from ..network.batches import Batches
from ..network.isolation import entry_point
from ..network.nests import Data
from ..network.scaling import network_name
from .assessment import assess
from .result import Comparison, rank

Posteriors: TypeAlias = Iterable[Laplace] | Mapping[str, Laplace]
"""Posteriors to compare: several, or a mapping of names to them."""

INTERVALS = 1000  # draws of the test examples, as in `evaluate`
EXPECTED = "expected posteriors, which peewit.fit returns, in a list or by name, as in {'small': la, 'large': other}"
# What a posterior without a name is called after, as far as they differ.
TRAITS: tuple[Callable[[Laplace], str], ...] = (
    lambda la: network_name(la.model),
    lambda la: f"{la.D:,} weights",
    lambda la: type(la.structure).__name__,
    lambda la: la.curvature.name,
    lambda la: "trained weights" if la.state.linear_mode is None else "linear mode",
)


@entry_point
def compare(
    posteriors: Posteriors,
    *,
    test: Data | None = None,
    predict: Mapping[str, Any] | None = None,
    generator: torch.Generator | None = None,
    memory: float | None = None,
    progress: bool = False,
) -> Comparison:
    """Rank posteriors by their log evidence, with data fit and complexity apart, beside their predictions of test data.

    The evidence needs no data. It compares models that were fitted to the same data under one likelihood and one
    structure, each at its best prior, `la.tune()` or `la.tune(at="linear_mode", train=...)`; the notes of the result
    say which of yours do not compare.

    Args:
        posteriors: Several posteriors, in a list or as a mapping of names to them; one alone is fine. Those of a list
            are named after their place and what they differ in, such as "[0] 51 weights".
        test: Data that no network was trained on, as in `pw.fit`, which all networks take. None for evidence alone.
        predict: Options of `la.predict` for the test data, such as {"link": "mc"}.
        generator: Source of the seed of the draws for intervals. None for a fixed seed.
        memory: Bytes for temporary results. None for the limits that the posteriors have.
        progress: Whether to show a bar for each pass over the test data.

    Returns:
        A `pw.Comparison`.

    Raises:
        PeewitError: There are no posteriors, a name is used twice, or the test data is a one-shot iterator or does not
            fit a network.
        MismatchError: The test data was given, and a network has changed since its fit.
        ArgumentTypeError: `posteriors` holds something else, or an argument has the wrong type.

    Example:
        >>> last = pw.fit(model, (x, y), "classification", weights="last_layer")
        >>> found = pw.compare({"all weights": la.tune(), "last layer": last.tune()}, test=(x, y))
        >>> sorted(row.name for row in found), found.best.rank
        (['all weights', 'last layer'], 1)
        >>> found.notes[0].partition(" (")[0]
        'Different weights are uncertain'
    """
    named = names_of(posteriors)
    options = EvaluationOptions.of(INTERVALS, generator, predict, None)
    if test is None and predict is not None:
        raise PeewitError("predict= has options of predictions, and no test data was given; give test=(x, y).")
    if test is not None and len(named) > 1:
        first = next(iter(named.values()))
        Batches(test, first.model, "test").refuse_one_shot("Every posterior predicts the test data")
    return rank([assess(name, la, test, options, memory=memory, progress=progress) for name, la in named.items()])


def names_of(posteriors: Any) -> dict[str, Laplace]:
    """Posteriors by name; refuses what holds others, or none."""
    if isinstance(posteriors, Laplace) or not isinstance(posteriors, Iterable) or isinstance(posteriors, str | bytes):
        raise ArgumentTypeError(f"posteriors is a {type(posteriors).__name__}; {EXPECTED}.")
    by_name = isinstance(posteriors, Mapping)
    items = list(posteriors.items()) if isinstance(posteriors, Mapping) else list(enumerate(posteriors))
    if not items:
        raise PeewitError(f"posteriors is an empty {type(posteriors).__name__}; {EXPECTED}.")
    for name, la in items:
        if by_name and not isinstance(name, str):
            raise ArgumentTypeError(f"posteriors has the name {name!r}, a {type(name).__name__}; expected texts.")
        if not isinstance(la, Laplace):
            raise ArgumentTypeError(f"posteriors[{name!r}] is a {type(la).__name__}; {EXPECTED}.")
    if by_name:
        return dict(items)
    names = place_names([la for _, la in items])
    return dict(zip(names, (la for _, la in items), strict=True))


def place_names(posteriors: list[Laplace]) -> list[str]:
    """'[0] 51 weights': places, with as many traits as it takes to tell the posteriors apart, where these do."""
    telling: list[list[str]] = []
    for trait in TRAITS:
        values = [trait(la) for la in posteriors]
        if len(set(values)) > 1 and len(set(zip(*telling, strict=True))) < len(posteriors):
            telling.append(values)
    return [
        f"[{place}] {', '.join(values[place] for values in telling) or TRAITS[0](la)}"
        for place, la in enumerate(posteriors)
    ]
