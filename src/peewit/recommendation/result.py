"""What `recommend` returns: a posterior, the table of all that was tried, and the reasons."""

from __future__ import annotations

from dataclasses import dataclass

from ..laplace import Laplace
from ..metrics.results import Estimate, MethodScores
from . import table

UNCERTAINTY = ("entropy", "variance")  # the score that unknown inputs are told by: that of classes, and of numbers


@dataclass(frozen=True, kw_only=True)
class TriedRecipe:
    """One row of the table: a recipe, and what came of it.

    Attributes:
        name: Name of the recipe.
        scores: Its scores on the known examples, and against unknown inputs, as `pw.evaluate` has them; `differences`
            are to the recipe with the lowest NLL. None where there are none.
        log_evidence: Log evidence of its posterior; None for a baseline.
        seconds: Time that it took; a fit is counted in the first row that uses it.
        tuned_on_validation: Whether something in it was chosen on validation data.
        problem: Why it failed, or was not tried; "" else.
        warnings: Texts of the warnings that were given on the way.
        nll: Negative log-likelihood of the known examples; None where there are no scores.
        auroc: Area under the ROC curve of its entropy (or variance) for unknown inputs against known ones, the mean
            over the sets of unknown inputs; None without these.

    Example:
        >>> row = pw.recommend(model, (x, y), "classification").table[0]
        >>> row.name, row.nll.value > 0, row.log_evidence
        ('plain network', True, None)
    """

    name: str
    scores: MethodScores | None = None
    log_evidence: float | None = None
    seconds: float = 0.0
    tuned_on_validation: bool = False
    problem: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def nll(self) -> Estimate | None:
        """NLL of the known examples."""
        return None if self.scores is None else self.scores.metrics.get("nll")

    @property
    def auroc(self) -> Estimate | None:
        """The mean over the sets of unknown inputs, and of the ends of their intervals."""
        if self.scores is None:
            return None
        areas = [
            scores[name].auroc for scores in self.scores.detection.values() for name in UNCERTAINTY if name in scores
        ]
        if not areas:
            return None
        ends = zip(*((area.value, area.low, area.high) for area in areas), strict=True)
        return Estimate(*(sum(values) / len(areas) for values in ends))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Recommendation:
    """The best posterior of some recipes, with the table of all that was tried and the reasons.

    `pw.recommend` returns it; printing it shows all of it.

    Attributes:
        posterior: The posterior of the best recipe that has one, a `pw.Laplace`.
        recipe: Name of the recipe of `posterior`.
        best: Name of the best row of the table; it is another than `recipe` where a plain network, or one with a
            temperature, is better than every posterior.
        table: What was tried, a tuple of rows in the order of the trials. A row has `name`, `scores`, `nll`, `auroc`,
            `log_evidence`, `seconds`, `tuned_on_validation`, `problem` and `warnings`.
        reasons: Sentences: why this one, and what to know about the choice.
        code: Python that makes the same posterior from `model`, `train` and `validation`.
        known: The examples that were scored: "validation" or "training".

    Example:
        >>> found = pw.recommend(model, (x, y), "classification")
        >>> found.recipe
        'all weights, training'
        >>> print(found.code.splitlines()[0])
        la = pw.fit(model, train, "classification", weights="all", structure="kron")
    """

    posterior: Laplace
    recipe: str
    best: str
    table: tuple[TriedRecipe, ...]
    reasons: tuple[str, ...]
    code: str
    known: str

    def __repr__(self) -> str:
        """The table, the reasons, and the code."""
        return "\n".join(
            [
                f"Recommendation: {self.recipe}",
                "",
                *table.text(self.table, self.known),
                "",
                *(f"- {reason}" for reason in self.reasons),
                "",
                *(f"    {line}" for line in self.code.splitlines()),
            ]
        )
