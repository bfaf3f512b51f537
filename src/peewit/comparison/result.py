"""What `compare` returns: posteriors in the order of their evidence, with notes on what does not compare."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..messages.errors import MissingPackageError, PeewitError
from ..metrics.results import Estimate
from ..posterior.evidence import TRAINED
from . import ranks, table
from .notes import notes_on


@dataclass(frozen=True, kw_only=True)
class ComparedPosterior:
    """One row of a comparison: the evidence of a posterior in parts, and how well it predicts test data.

    Attributes:
        name: Name of the posterior.
        rank: Place by log evidence, from 1; posteriors with equal evidence share one.
        behind: Log evidence of the best posterior less that of this one, in nats.
        log_likelihood: The data fit: `log p(D | theta)`, over the temperature.
        distance: `|theta - mu|^2` in the prior's precisions.
        log_volume: `log |P| - log |delta|`: posterior precision P, prior precision delta.
        effective_dimensions: How many weights the data determine.
        D: Number of uncertain weights.
        N: Number of examples of the fit.
        fixed: Number of weights of the network that are held fixed.
        likelihood: Class of the likelihood.
        structure: Class of the structure.
        curvature: Name of the kind of curvature.
        noise: Standard deviation of the noise, or several; None where the likelihood has none.
        temperature: The temperature.
        where: In words, the weights at which the evidence was taken: the trained ones, or the mode of the linear model.
        notes: Why this evidence does not compare, or is not at its mode; empty else.
        metrics: Metrics on the test data by name, such as "nll", as `pw.evaluate` has them; empty without test data.
        test_log_likelihood: Log-likelihood of the test data per example; None without test data. It is less the NLL
            wherever an example has one label.
        log_evidence: The log evidence, `log_likelihood + complexity`.
        complexity: `-1/2 (distance + log_volume)`: the price of the weights.
        log_evidence_per_example: The log evidence over N.
        test_nll: NLL of the test data per label; None without test data.

    Example:
        >>> row = pw.compare([la], test=(x, y)).best
        >>> row.rank, row.D, row.N, row.where
        (1, 51, 60, 'the trained weights')
        >>> abs(row.test_nll + row.test_log_likelihood) < 1e-9
        True
    """

    name: str
    rank: int = 1
    behind: float = 0.0
    log_likelihood: float
    distance: float
    log_volume: float
    effective_dimensions: float
    D: int
    N: int
    fixed: int = 0
    likelihood: str
    structure: str
    curvature: str
    noise: Any = None
    temperature: float = 1.0
    where: str = TRAINED
    notes: tuple[str, ...] = ()
    metrics: Mapping[str, Estimate] = field(default_factory=dict)
    test_log_likelihood: float | None = None

    @property
    def complexity(self) -> float:
        """`-1/2 (distance + log_volume)`: the price of the weights in the evidence."""
        return -0.5 * (self.distance + self.log_volume)

    @property
    def log_evidence(self) -> float:
        """The log evidence."""
        return self.log_likelihood + self.complexity

    @property
    def log_evidence_per_example(self) -> float:
        """The log evidence over N."""
        return self.log_evidence / self.N

    @property
    def test_nll(self) -> float | None:
        """NLL of the test data per label."""
        return self.metrics["nll"].value if "nll" in self.metrics else None

    def numbers(self) -> dict[str, Any]:
        """List the row as plain numbers and names, as `Comparison.to_pandas` and JSON have it.

        Returns:
            Values by name; metrics on test data have the names "test_nll", "test_accuracy" and so on.

        Example:
            >>> numbers = pw.compare([la], test=(x, y)).best.numbers()
            >>> numbers["D"], 0 <= numbers["test_accuracy"] <= 1
            (51, True)
        """
        plain = ("rank", "log_evidence", "behind", "log_evidence_per_example", "log_likelihood", "complexity")
        more = ("distance", "log_volume", "effective_dimensions", "D", "N", "fixed", "likelihood", "structure")
        last = ("curvature", "where", "noise", "temperature")
        values = {name: getattr(self, name) for name in ("name", *plain, *more, *last)}
        if self.test_log_likelihood is not None:
            values["test_log_likelihood"] = self.test_log_likelihood
        return values | {f"test_{name}": estimate.value for name, estimate in self.metrics.items()}


@dataclass(frozen=True, repr=False, kw_only=True)
class Comparison:
    """Posteriors ranked by log evidence, with notes on what does not compare.

    `pw.compare` returns it, and printing it shows a table. `comparison["small"]` is the row of a posterior, and
    iteration goes through the rows.

    Attributes:
        rows: One `pw.ComparedPosterior` per posterior, the best evidence first.
        notes: Sentences: which evidences cannot be compared and why, and whether the first two are close.
        best: The first row.
        rank_correlation: Spearman's rank correlation of the log evidence and the test log-likelihood; None without test
            data, and where there is nothing to rank.

    Example:
        >>> found = pw.compare({"prior 1": la, "tuned": la.tune()})
        >>> found.best.name, found["prior 1"].rank, len(found)
        ('tuned', 2, 2)
    """

    rows: tuple[ComparedPosterior, ...]
    notes: tuple[str, ...]

    @property
    def best(self) -> ComparedPosterior:
        """The row with the largest log evidence."""
        return self.rows[0]

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's correlation of log evidence and test log-likelihood, over the posteriors with test data."""
        pairs = [
            (row.log_evidence, row.test_log_likelihood) for row in self.rows if row.test_log_likelihood is not None
        ]
        return ranks.rank_correlation([pair[0] for pair in pairs], [pair[1] for pair in pairs])

    def to_pandas(self) -> Any:
        """Give one row per posterior, the best first, as a data frame of pandas.

        Returns:
            A `pandas.DataFrame` with the columns "name", "rank", "log_evidence", "log_likelihood", "complexity" and the
            other numbers of a row; with test data also "test_log_likelihood" and each metric, such as "test_nll".

        Raises:
            MissingPackageError: pandas is not installed.

        Example:
            >>> frame = pw.compare({"prior 1": la, "tuned": la.tune()}).to_pandas()
            >>> frame["name"].tolist(), frame["rank"].tolist()
            (['tuned', 'prior 1'], [1, 2])
        """
        try:
            import pandas
        except ImportError as error:
            raise MissingPackageError("to_pandas needs pandas, which is not installed: pip install pandas") from error
        return pandas.DataFrame([row.numbers() for row in self.rows])

    def __iter__(self) -> Iterator[ComparedPosterior]:
        """The rows, the best first."""
        return iter(self.rows)

    def __len__(self) -> int:
        """How many posteriors there are."""
        return len(self.rows)

    def __getitem__(self, name: str) -> ComparedPosterior:
        """The row of a posterior."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"{name!r} is not a posterior of this comparison; it has {', '.join(row.name for row in self)}.")

    def __repr__(self) -> str:
        """The table and the notes."""
        return table.text(self)


def rank(rows: Sequence[ComparedPosterior]) -> Comparison:
    """The comparison of some rows: places are shared where evidence is equal, and what is not finite comes last."""
    names = [row.name for row in rows]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise PeewitError(f"posteriors has the name {repeated[0]!r} twice; expected a name of its own for each.")
    values = {row.name: row.log_evidence if math.isfinite(row.log_evidence) else -math.inf for row in rows}
    best = max(values.values())
    ranked = tuple(
        replace(
            row,
            rank=1 + sum(value > values[row.name] for value in values.values()),
            behind=0.0 if values[row.name] == best else best - values[row.name],
        )
        for row in sorted(rows, key=lambda row: -values[row.name])
    )
    return Comparison(rows=ranked, notes=notes_on(ranked))
