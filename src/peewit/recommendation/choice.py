"""Which recipe is the best, and why: by the NLL of validation data, else by the training data or the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..likelihoods import WithNoise
from ..messages.errors import PeewitError
from .examples import HeldExamples
from .trials import Attempt, RecipeTask, nll

LIKELY = 3.0  # nats between two evidences, from which on they tell recipes apart: a factor of 20 in probability


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The best recipe, the best of those with a posterior, and the reasons."""

    best: Attempt
    posterior: Attempt
    reasons: tuple[str, ...]


def choose(task: RecipeTask, attempts: Sequence[Attempt]) -> Choice:
    """By the NLL where there is validation data and something to score, else by the training data or the evidence."""
    posteriors = [attempt for attempt in attempts if attempt.la is not None]
    if not posteriors:
        problems: dict[str, list[str]] = {}
        for attempt in attempts:
            if attempt.row.problem and attempt.recipe.baseline is None:
                problems.setdefault(attempt.row.problem, []).append(attempt.row.name)
        told = " ".join(f"{list_quoted(names)}: {problem}" for problem, names in problems.items())
        raise PeewitError(f"No recipe has a posterior to recommend. {told}".rstrip())
    scored = [attempt for attempt in attempts if nll(attempt) < float("inf")]
    if task.validation is not None and any(attempt.la is not None for attempt in scored):
        choice = by_validation(task, sorted(scored, key=nll))
    elif task.validation is None and (explaining := [each for each in posteriors if explains(each)]):
        choice = by_training(task, explaining, scored)
    else:
        choice = by_evidence(task, posteriors, scored)
    return Choice(
        best=choice.best,
        posterior=choice.posterior,
        reasons=(*choice.reasons, *about_unknown(choice.posterior, scored), *about_problems(attempts)),
    )


def by_validation(task: RecipeTask, ranked: Sequence[Attempt]) -> Choice:
    """The lowest NLL; of those with a posterior, where that is a baseline."""
    best = ranked[0]
    posterior = next(attempt for attempt in ranked if attempt.la is not None)
    estimate = best.row.nll
    assert estimate is not None
    reasons = [
        f"{best.row.name!r} has the lowest NLL on {count_of(task.known, 'validation')}: "
        f"{estimate.value:.4g}, and from {estimate.low:.4g} to {estimate.high:.4g} when these are drawn anew (95 %)."
    ]
    plain = next((attempt for attempt in ranked if attempt.recipe.baseline == "plain"), None)
    if posterior is not best:
        reasons.append(
            f"No posterior has a lower one. The one returned, {posterior.row.name!r}, comes closest: "
            f"{difference(posterior)}. Use it for what comes from uncertain weights, pred.epistemic; for the lowest "
            f"NLL {advice(best)}."
        )
    if plain not in (None, best):
        reasons.append(f"The plain network: {difference(plain)}.")
    same = [each.row.name for each in ranked[1:] if each not in (plain, posterior) and not apart(each)]
    if same:
        reasons.append(
            f"These examples do not tell {best.row.name!r} from {list_quoted(same)}: the differences may be chance."
        )
    return Choice(best=best, posterior=posterior, reasons=(*reasons, *about_split(task, ranked)))


def about_split(task: RecipeTask, ranked: Sequence[Attempt]) -> list[str]:
    """Which examples tuned, and which chose."""
    tuned = [attempt.row.name for attempt in ranked if attempt.recipe.validated]
    if not tuned:
        return []
    if not task.split:
        return [
            f"The same {len(task.known):,} validation examples tuned {list_quoted(tuned)} and chose among all, since "
            "they are too few for two halves: the NLL of these rows looks a little better than it is."
        ]
    assert task.tuning is not None
    return [
        f"Half of the validation examples ({len(task.tuning):,}) tuned {list_quoted(tuned)}, and the other half "
        "chose, so that no recipe was scored on what it was tuned on."
    ]


def explains(attempt: Attempt) -> bool:
    """Whether it was tuned on the training data, whole and without a problem."""
    return attempt.recipe.explains_training and not attempt.row.problem


def by_training(task: RecipeTask, posteriors: Sequence[Attempt], scored: Sequence[Attempt]) -> Choice:
    """The most weights of those that explain the training data; or the one that surely tells unknown inputs better."""
    best, why = max(posteriors, key=weights), "with the most uncertain weights"
    what = "whose predictions explain the training data about as well as the network does"
    assert best.la is not None
    if isinstance(best.la.likelihood, WithNoise):
        what = "that choose prior and noise by the training data"
        why += ": few weights leave the noise at the residuals of an overfitted network"
    elif surest := surely_first(posteriors):
        best, why = surest, "which tells unknown inputs best, by AUROC"
    chosen = f"Of the recipes {what}, {best.row.name!r} was taken, {why}"
    if len(posteriors) == 1:
        chosen = f"{best.row.name!r} was taken, the only one that was tried of the recipes {what}"
    reason = f"There is no validation data. {chosen}. Give validation= to choose by predictions."
    return Choice(best=best, posterior=best, reasons=(reason, *about_training(task, best, scored)))


def surely_first(attempts: Sequence[Attempt]) -> Attempt | None:
    """The one whose AUROC is surely above all others'; None where there is none."""
    ranked = sorted((each for each in attempts if each.row.auroc is not None), key=auroc, reverse=True)
    if len(ranked) < 2 or len(ranked) < len(attempts):
        return None
    first, second = ranked[0].row.auroc, ranked[1].row.auroc
    assert first is not None and second is not None
    return ranked[0] if first.low > second.high else None


def by_evidence(task: RecipeTask, posteriors: Sequence[Attempt], scored: Sequence[Attempt]) -> Choice:
    """The highest evidence among posteriors of the same weights; between weights, unknown inputs or the fewest."""
    groups: dict[tuple[str, ...], list[Attempt]] = {}
    for attempt in [each for each in posteriors if not each.row.problem] or posteriors:
        assert attempt.la is not None
        groups.setdefault((*attempt.la.space.names, str(attempt.la.D)), []).append(attempt)
    reasons = [why_no_validation(task, posteriors)]
    tops: list[Attempt] = []
    for group in groups.values():
        group.sort(key=evidence, reverse=True)
        tops.append(group[0])
        if len(group) > 1:
            reasons.append(why_evidence(group[0], group[1]))
    best = tops[0]
    if len(tops) > 1:
        best, why = between_weights(tops)
        reasons.append(
            "Evidences of different weights do not compare, since weights that stay fixed count as known, at no price. "
            + why
        )
    assert best.la is not None
    if best.la.likelihood.caveat:
        reasons.append(f"The evidence is not a marginal likelihood here: {best.la.likelihood.caveat}.")
    return Choice(best=best, posterior=best, reasons=(*reasons, *about_training(task, best, scored)))


def why_no_validation(task: RecipeTask, posteriors: Sequence[Attempt]) -> str:
    """What chose, and what could not."""
    if task.validation is not None:
        problem = next((attempt.row.problem for attempt in posteriors if attempt.row.problem), "the NLL is not finite")
        return f"The log evidence chose, and not the validation data. {problem[:1].upper()}{problem[1:]}"
    return (
        "There is no validation data, so the log evidence chose. It says nothing about the plain network, which has "
        "none: give validation= to compare with that, and to choose by predictions."
    )


def why_evidence(first: Attempt, second: Attempt) -> str:
    """Why the evidence chose, among posteriors of the same weights."""
    ahead = evidence(first) - evidence(second)
    assert first.la is not None
    sentence = (
        f"Of the recipes with these {first.la.D:,} uncertain weights, {first.row.name!r} has the highest log evidence, "
        f"{evidence(first):.1f}; {second.row.name!r} has {evidence(second):.1f}"
    )
    return sentence + ("." if ahead >= LIKELY else f", and {ahead:.2g} nats are weak grounds to prefer one.")


def between_weights(tops: Sequence[Attempt]) -> tuple[Attempt, str]:
    """The best of several choices of weights, and why."""
    if surest := surely_first(tops):
        return surest, f"{surest.row.name!r} was taken, which tells unknown inputs best, by AUROC."
    fewest = min(tops, key=weights)
    return fewest, (
        f"{fewest.row.name!r} was taken, which has the fewest uncertain weights: its predictions stay "
        "nearest to those of the network that was trained, and are the cheapest."
    )


def about_training(task: RecipeTask, best: Attempt, scored: Sequence[Attempt]) -> list[str]:
    """A word of caution where it is much less sure of labels that it has seen than the network is."""
    plain = next((attempt for attempt in scored if attempt.recipe.baseline == "plain"), None)
    if task.validation is not None or plain is None or best.row.nll is None or plain.row.nll is None:
        return []
    between = None if best.row.scores is None else best.row.scores.differences.get("nll")
    if plain is not min(scored, key=nll) or between is None or between.low <= 0:
        return []
    return [
        f"On {count_of(task.known, 'training')} its NLL is {best.row.nll.value:.3g}, and that of the plain network "
        f"{plain.row.nll.value:.3g}. Whether that is due caution or too much of it, validation data would say."
    ]


def about_unknown(chosen: Attempt, scored: Sequence[Attempt]) -> list[str]:
    """How well it tells unknown inputs, and whether another does that better."""
    area = chosen.row.auroc
    if area is None:
        return []
    sentence = f"Unknown inputs: the AUROC of its uncertainty is {area.value:.3f}"
    best = max((attempt for attempt in scored if attempt.row.auroc is not None), key=auroc)
    top = best.row.auroc
    if top is None or top.low <= area.high:
        return [f"{sentence}."]
    return [f"{sentence}; {best.row.name!r} has {top.value:.3f}, if that matters more than the NLL."]


def about_problems(attempts: Sequence[Attempt]) -> list[str]:
    """What is not in the comparison."""
    untried = [each.row.name for each in attempts if each.row.problem.startswith("not tried")]
    failed = [each.row.name for each in attempts if each.row.problem and each.row.name not in untried]
    sentences = [f"Not tried, for lack of time: {list_quoted(untried)}."] if untried else []
    return [*sentences, f"Failed, or without scores, see the table: {list_quoted(failed)}."] if failed else sentences


def count_of(examples: HeldExamples, kind: str) -> str:
    """`1 training example`, `2,000 training examples`."""
    return f"{len(examples):,} {kind} example{'s' * (len(examples) != 1)}"


def list_quoted(names: Sequence[str]) -> str:
    """`'a', 'b' and 'c'`."""
    names = [repr(name) for name in names]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else list(names))


def difference(attempt: Attempt) -> str:
    """Its NLL, and how far it is from the best."""
    assert attempt.row.scores is not None and attempt.row.nll is not None
    between = attempt.row.scores.differences["nll"]
    chance = "" if apart(attempt) else ", which may be chance"
    return (
        f"its NLL is {attempt.row.nll.value:.4g}, higher by {between.value:.2g} ({between.low:.2g} to "
        f"{between.high:.2g}){chance}"
    )


def apart(attempt: Attempt) -> bool:
    """Whether its NLL is surely above the lowest."""
    scores = attempt.row.scores
    return scores is not None and "nll" in scores.differences and scores.differences["nll"].low > 0


def advice(best: Attempt) -> str:
    """How to predict with a baseline."""
    if best.recipe.baseline == "plain":
        return "take the network as it is"
    description = "" if best.method is None else best.method.description
    return f"use temperature scaling: {description.rstrip('.')}"


def evidence(attempt: Attempt) -> float:
    """The evidence in nats; the lowest where there is none."""
    value = attempt.row.log_evidence
    return -float("inf") if value is None or value != value else value


def auroc(attempt: Attempt) -> float:
    """For sorting."""
    estimate = attempt.row.auroc
    return 0.0 if estimate is None else estimate.value


def weights(attempt: Attempt) -> int:
    """Uncertain ones."""
    assert attempt.la is not None
    return attempt.la.D
