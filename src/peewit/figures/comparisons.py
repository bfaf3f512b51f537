"""The figure of a comparison: whether the evidence ranks models as test data do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..messages.errors import ArgumentTypeError, PeewitError
from . import style
from .style import brief, graph_objects

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

LABELLED = 12  # points that have room for their names; of more, the best ones alone have theirs
ABOVE, BELOW = "top center", "bottom center"


@dataclass(frozen=True, kw_only=True)
class EvidencePoints:
    """The posteriors of one comparison as points."""

    name: str  # of the comparison, where there are several
    labels: tuple[str, ...]
    evidences: tuple[float, ...]  # log evidence per example of the fit
    fits: tuple[float, ...]  # log-likelihood per example of the test data
    words: tuple[str, ...]  # what is said of each
    correlation: float | None

    @property
    def correlation_text(self) -> str:
        """With two digits."""
        return "unknown" if self.correlation is None else f"{self.correlation:.2f}"

    @property
    def best(self) -> str:
        """The name of the best by evidence."""
        return self.labels[max(range(len(self.labels)), key=self.evidences.__getitem__)]

    @property
    def telling(self) -> frozenset[int]:
        """The best by evidence, and the best by test data."""
        places = range(len(self.labels))
        return frozenset(max(places, key=values.__getitem__) for values in (self.evidences, self.fits))


def evidence_points(source: Any) -> list[EvidencePoints]:
    """The numbers behind the figure: of one comparison, or of several by name."""
    comparisons = source if isinstance(source, Mapping) else {"": source}
    if not comparisons:
        raise PeewitError(f"An empty {type(source).__name__} was given; expected comparisons by name.")
    return [points_of(str(name), comparison) for name, comparison in comparisons.items()]


def points_of(name: str, comparison: Any) -> EvidencePoints:
    """The posteriors of a comparison that have test data."""
    if not hasattr(comparison, "rank_correlation"):
        raise ArgumentTypeError(
            f"A {type(comparison).__name__} was given; expected a comparison, which peewit.compare returns, or a "
            "mapping of names to comparisons."
        )
    rows = [row for row in comparison.rows if row.test_log_likelihood is not None]
    if not rows:
        raise PeewitError("The comparison has no test data; give it some: pw.compare(posteriors, test=(x, y)).")
    return EvidencePoints(
        name=name,
        labels=tuple(row.name for row in rows),
        evidences=tuple(row.log_evidence_per_example for row in rows),
        fits=tuple(row.test_log_likelihood for row in rows),
        words=tuple(words_of(row) for row in rows),
        correlation=comparison.rank_correlation,
    )


def words_of(row: Any) -> str:
    """What is said of a posterior under the pointer."""
    return (
        f"{style.literal(row.name)}<br>log evidence {row.log_evidence:,.1f} = fit {row.log_likelihood:,.1f} "
        f"and complexity {row.complexity:,.1f}<br>{row.effective_dimensions:,.1f} of {row.D:,} weights determined by "
        f"data<br>test log-likelihood {brief(row.test_log_likelihood)} per example"
    )


def evidence_against_test(source: Any) -> Figure:
    """Draw the log evidence of models against their log-likelihood of test data, both per example.

    Models that rise from left to right are ranked by the evidence as test data rank them. The pointer shows a model's
    name, its evidence in parts, and its effective dimensions. Names stand beside the points where there are 12 or
    fewer; of more, beside the best by evidence and the best by test data.

    Args:
        source: What `pw.compare(posteriors, test=...)` returned; or several of these by name, such as one with the
            evidence at the trained weights and one at the linear mode.

    Returns:
        A plotly figure with a point for each posterior; the rank correlation is in its title, or beside each name.

    Raises:
        ArgumentTypeError: `source` is neither a comparison nor a mapping of names to comparisons.
        PeewitError: A comparison has no test data, or the mapping is empty.

    Example:
        >>> found = pw.compare({"prior 1": la, "tuned": la.tune()}, test=(x, y))
        >>> figure = pw.figures.evidence_against_test(found)
        >>> len(figure.data[0].x), figure.layout.xaxis.title.text
        (2, 'log evidence per example of the fit')
    """
    groups = evidence_points(source)
    figure = graph_objects().Figure()
    few = sum(len(points.labels) for points in groups) <= LABELLED
    for number, points in enumerate(groups):
        figure.add_trace(trace_of(points, number, few, len(groups) > 1))
    if len(groups) == 1:
        figure.add_trace(mark_best(groups[0]))
    correlations = style.join([points.correlation_text for points in groups])
    several = len(groups) > 1
    models = len(groups[0].labels)
    alt = (
        f"Log evidence against test log-likelihood per example, {models} point{'s' * (models != 1)}"
        f"{f' each for {style.join([points.name for points in groups])}' if several else ''}. Rank correlation "
        f"{correlations}. The best evidence is that of {style.join([points.best for points in groups])}."
    )
    title = "Evidence and test data" + ("" if several else f": rank correlation {correlations}")
    x, y = "log evidence per example of the fit", "test log-likelihood per example"
    style.finish(figure, title, alt, x=x, y=y)
    return figure


def trace_of(points: EvidencePoints, number: int, few: bool, several: bool) -> Any:
    """The points of one comparison."""
    texts = [
        style.literal(label) if few or place in points.telling else "" for place, label in enumerate(points.labels)
    ]
    return graph_objects().Scatter(
        x=list(points.evidences),
        y=list(points.fits),
        mode="markers+text",
        text=texts,
        textposition=label_places(points.evidences, points.fits),
        textfont={"size": 11, "color": style.TEXT},
        cliponaxis=False,
        name=f"{style.literal(points.name)}, rank correlation {points.correlation_text}" if several else "posteriors",
        showlegend=True,
        customdata=list(points.words),
        hovertemplate="%{customdata}<extra></extra>",
        marker={"color": style.colour(number), "symbol": style.symbol(number), "size": 11},
    )


def mark_best(points: EvidencePoints) -> Any:
    """A circle around the best by evidence."""
    place = points.labels.index(points.best)
    return graph_objects().Scatter(
        x=[points.evidences[place]],
        y=[points.fits[place]],
        mode="markers",
        name="best by evidence",
        marker={"color": style.ORANGE, "size": 20, "symbol": "circle-open", "line": {"width": 3}},
        hoverinfo="skip",
    )


def label_places(x: Sequence[float], y: Sequence[float]) -> list[str]:
    """Above and below in turn from left to right, so that names of neighbours seldom meet."""
    order = sorted(range(len(x)), key=lambda place: (x[place], y[place]))
    sides = {place: ABOVE if number % 2 == 0 else BELOW for number, place in enumerate(order)}
    return [sides[place] for place in range(len(x))]
