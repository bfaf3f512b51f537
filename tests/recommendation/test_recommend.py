"""`pw.recommend`: which recipe it chooses, what it says of it, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import peewit as pw
from environment import DEVICE
from evaluating import numbers, regressor
from fitting import normal
from peewit.recommendation import call, recipes, trials
from peewit.recommendation.examples import HeldExamples
from peewit.recommendation.recipes import RECIPES, Recipe
from recommending import (
    EVIDENCE,
    NARROW,
    PLAIN,
    TEMPERATURE,
    VALIDATION,
    WIDE,
    FakeClock,
    labelled,
    network,
    passes,
    recipe,
    states,
    use,
)
from snapshots import changed, snapshot

TRAIN = labelled(120, seed=1)
FEW = labelled(80, seed=2)  # validation examples that are not split
MANY = labelled(400, seed=3)
FAR = 30 * normal(50, 2, seed=4).to(DEVICE)


def rows(found: pw.Recommendation) -> dict[str, Any]:
    """By name."""
    return {row.name: row for row in found.table}


# What is chosen


def test_the_true_network_is_best_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels were drawn from it: a wide posterior is worse, and is returned with the reason."""
    use(monkeypatch, PLAIN, WIDE)
    found = pw.recommend(network(), TRAIN, "classification", validation=MANY)
    assert (found.best, found.recipe) == ("plain", "wide")
    assert isinstance(found.posterior, pw.Laplace) and float(found.posterior.prior.precision) == 1e-4
    assert "'plain' has the lowest NLL on 400 validation examples" in found.reasons[0]
    assert "No posterior has a lower one" in found.reasons[1] and "take the network as it is" in found.reasons[1]


def test_of_two_posteriors_the_one_nearest_to_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A narrow posterior predicts what the true network does, and a wide one does not."""
    use(monkeypatch, WIDE, NARROW)
    found = pw.recommend(network(), TRAIN, "classification", validation=FEW)
    assert (found.best, found.recipe) == ("narrow", "narrow")
    assert rows(found)["wide"].scores.differences["nll"].low > 0


def test_a_network_that_is_too_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its logits are five times the true ones: a tuned posterior is better, and a temperature finds the truth."""
    use(monkeypatch, PLAIN, NARROW, VALIDATION)
    found = pw.recommend(network(5.0), TRAIN, "classification", validation=MANY)
    assert found.best == found.recipe == "validation"
    (told,) = [reason for reason in found.reasons if reason.startswith("The plain network: its NLL is")]
    assert "may be chance" not in told
    use(monkeypatch, PLAIN, TEMPERATURE, NARROW)
    found = pw.recommend(network(5.0), TRAIN, "classification", validation=MANY)
    assert (found.best, found.recipe) == ("temperature", "narrow")
    assert any("use temperature scaling: the plain network, its outputs divided by" in each for each in found.reasons)


def test_without_validation_data_the_evidence_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among the same weights the highest; whatever the NLL of training examples is."""
    use(monkeypatch, PLAIN, WIDE, EVIDENCE, NARROW)
    found = pw.recommend(network(), TRAIN, "classification")
    table = rows(found)
    best = max(("wide", "evidence", "narrow"), key=lambda name: float(table[name].log_evidence))
    assert found.recipe == best == "evidence" and found.known == "training"
    expected = pw.fit(network(), TRAIN, "classification", weights="last_layer").tune()
    assert table["evidence"].log_evidence == pytest.approx(float(expected.log_evidence()))
    assert "There is no validation data" in found.reasons[0] and "51 uncertain weights" in found.reasons[1]


def test_without_validation_data_the_training_data_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """All weights, if their recipe did not fail and no other tells unknown inputs surely better."""
    found = pw.recommend(network(5.0), TRAIN, "classification")
    assert found.recipe == "all weights, training"
    assert any("with the most uncertain weights" in reason for reason in found.reasons)
    last = next(each for each in recipes.RECIPES if each.name == "last layer, training")
    broken = Recipe(name="broken", passes=1, fit={"structure": "krom"}, tune={"method": "training"})
    use(monkeypatch, last, broken, EVIDENCE)
    assert pw.recommend(network(5.0), TRAIN, "classification").recipe == "last layer, training"


def test_evidences_of_different_weights_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fewest weights are taken, also where the others have a higher evidence."""
    hidden = recipe("hidden", {"method": "evidence"}, weights=["0.weight", "0.bias"])
    for few, more in ((hidden, EVIDENCE), (EVIDENCE, hidden)):
        use(monkeypatch, more, few)
        found = pw.recommend(network(), TRAIN, "classification")
        assert found.recipe == "hidden"  # 48 weights, and 51
        assert "Evidences of different weights do not compare" in found.reasons[1]


def test_unknown_inputs_choose_between_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one posterior tells them surely better, without validation data; else the fewest weights are taken."""
    useless = Recipe(name="useless", passes=1, fit={"weights": ["0.bias"], "prior": 1e12})
    far = torch.cat([FAR, -FAR])
    for prior, ood, expected in ((1e-3, None, "useless"), (1e-3, far, "open"), (10.0, far, "useless")):
        use(monkeypatch, useless, recipe("open", prior=prior))
        found = pw.recommend(network(30.0), TRAIN, "classification", ood=ood)
        assert found.recipe == expected
        told = [reason for reason in found.reasons if reason.startswith("Unknown inputs: the AUROC of its uncertainty")]
        assert len(told) == (ood is not None)


# What is measured


def test_scores_are_those_of_evaluate() -> None:
    """On the same examples, for every row; unknown inputs too."""
    found = pw.recommend(network(3.0), TRAIN, "classification", validation=FEW, ood={"far": FAR, "near": 0.1 * FAR})
    table = rows(found)
    wanted = pw.evaluate(
        network(3.0), FEW, likelihood="classification", validation=FEW, ood={"far": FAR, "near": 0.1 * FAR},
        baselines=["temperature"], intervals=0,
    )  # fmt: skip
    plain, temperature = wanted.methods
    pairs = [("plain network", plain), ("temperature scaling", temperature)]
    la = pw.fit(network(3.0), TRAIN, "classification", weights="all").tune("validation", validation=FEW)
    report = pw.evaluate(la, FEW, ood={"far": FAR, "near": 0.1 * FAR}, baselines=(), intervals=0)
    for name, scores in [*pairs, ("all weights, validation", report.methods[0])]:
        for metric in ("nll", "accuracy", "ece", "brier"):
            value = table[name].scores.metrics[metric].value
            assert value == pytest.approx(scores.metrics[metric].value, rel=1e-6, abs=1e-9)
        areas = [each["entropy"].auroc.value for each in scores.detection.values()]
        assert table[name].auroc.value == pytest.approx(sum(areas) / 2, abs=1e-9)
    nll = table["plain network"].nll
    assert nll.low < nll.value < nll.high


def test_differences_are_to_the_lowest_nll() -> None:
    found = pw.recommend(network(3.0), TRAIN, "classification", validation=FEW)
    table = rows(found)
    best = table[found.best].nll.value
    assert best == min(row.nll.value for row in found.table)
    for row in found.table:
        if row.name != found.best:
            assert row.scores.differences["nll"].value == pytest.approx(row.nll.value - best, abs=1e-9)


def test_a_fit_is_made_once_for_all_that_tune_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fits: list[Any] = []
    real = trials.fit
    monkeypatch.setattr(trials, "fit", lambda *given, **options: fits.append(options) or real(*given, **options))
    pw.recommend(network(), TRAIN, "classification", validation=FEW)
    assert [each["weights"] for each in fits] == ["last_layer", "all"]


def test_regression_takes_the_noise_of_the_residuals() -> None:
    """A network that was trained on squares has no noise of its own; 1 would be one that nobody meant."""
    model, train, validation = regressor(), numbers(60), numbers(40, seed=7)
    found = pw.recommend(model, train, "regression", validation=validation)
    plain = pw.evaluate(
        model, validation, likelihood=call.with_residual_noise(model, pw.Gaussian(), _batches(train)), intervals=0
    )
    assert rows(found)["plain network"].nll.value == pytest.approx(plain.methods[0].metrics["nll"].value)
    given = pw.recommend(model, train, pw.Gaussian(0.25), validation=validation)
    wanted = pw.evaluate(model, validation, likelihood=pw.Gaussian(0.25), intervals=0)
    assert rows(given)["plain network"].nll.value == pytest.approx(wanted.methods[0].metrics["nll"].value)
    assert 'pw.fit(model, train, pw.Gaussian(noise=0.25), weights="' in given.code


def _batches(data: Any) -> Any:
    return call.Batches(data, torch.device(DEVICE), "train")


# Validation data in two halves


def test_one_half_tunes_and_the_other_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 200 on; then the winner is tuned on all."""
    use(monkeypatch, PLAIN, VALIDATION)
    tuned: list[int] = []
    real = pw.Laplace.tune

    def tune(la: pw.Laplace, *given: Any, **options: Any) -> pw.Laplace:
        data = options["validation"]
        tuned.append(len(data[1]) if isinstance(data, tuple) else sum(len(targets) for _, targets in data))
        return real(la, *given, **options)

    monkeypatch.setattr(pw.Laplace, "tune", tune)
    found = pw.recommend(network(5.0), TRAIN, "classification", validation=MANY)
    assert tuned == [200, 400]
    assert any("Half of the validation examples (200) tuned 'validation'" in reason for reason in found.reasons)
    assert "The posterior returned was then tuned again on all validation data." in found.reasons
    wanted = pw.fit(network(5.0), TRAIN, "classification", weights="last_layer").tune("validation", validation=MANY)
    assert float(found.posterior.prior.precision) == pytest.approx(float(wanted.prior.precision))
    tuned.clear()
    found = pw.recommend(network(5.0), TRAIN, "classification", validation=FEW)
    assert tuned == [80] and any("too few for two halves" in reason for reason in found.reasons)
    assert rows(found)["validation"].tuned_on_validation and not rows(found)["plain"].tuned_on_validation


def test_halves_are_disjoint_and_by_the_seed() -> None:
    """Whatever the order of the examples, and of the batches that they come in."""
    y = torch.arange(301)
    held = HeldExamples.of([(y[start : start + 7, None], y[start : start + 7]) for start in range(0, 301, 7)], 999, "d")
    first, second = held.halves(0)
    labels = [torch.cat([targets for _, targets in half.batches]) for half in (first, second)]
    assert torch.equal(torch.cat(labels).sort().values, y) and [len(first), len(second)] == [150, 151]
    assert all(torch.equal(x[:, 0], targets) for half in (first, second) for x, targets in half.batches)
    share = float((labels[0] % 2).double().mean())  # examples of two classes in turns
    assert 0.3 < share < 0.7
    other = torch.cat([targets for _, targets in held.halves(1)[0].batches])
    assert not torch.equal(other, labels[0])
    again = torch.cat([targets for _, targets in held.halves(0)[0].batches])
    assert torch.equal(again, labels[0])


@pytest.mark.parametrize("form", ["pair", "list", "loader", "endless"])
def test_held_examples_are_spread_evenly(form: str) -> None:
    """At most so many; an iterable that cannot be counted gives its first."""

    class Endless:
        def __iter__(self) -> Any:
            for start in range(0, 10**9, 10):
                yield torch.arange(start, start + 10)[:, None], torch.arange(start, start + 10)

    y = torch.arange(100)
    forms: dict[str, Any] = {
        "pair": (y[:, None], y),
        "list": list(zip(y[:, None].split(30), y.split(30), strict=True)),
        "loader": DataLoader(TensorDataset(y[:, None], y), batch_size=30),
        "endless": Endless(),
    }
    held = HeldExamples.of(forms[form], 20, "known")
    labels = torch.cat([targets for _, targets in held.batches])
    assert len(held) == 20 and not held.whole
    assert torch.equal(labels.diff().unique(), torch.tensor([1 if form == "endless" else 5]))
    if form != "endless":
        whole = HeldExamples.of(forms[form], 500, "known")
        assert len(whole) == 100 and whole.whole


def test_only_so_many_examples_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the winner is tuned on all."""
    use(monkeypatch, PLAIN, VALIDATION)
    monkeypatch.setattr(call, "SCORED", 60)
    found = pw.recommend(network(5.0), TRAIN, "classification", validation=FEW)
    assert any("on 60 validation examples" in reason for reason in found.reasons)
    wanted = pw.fit(network(5.0), TRAIN, "classification", weights="last_layer").tune("validation", validation=FEW)
    assert float(found.posterior.prior.precision) == pytest.approx(float(wanted.prior.precision))
    use(monkeypatch, PLAIN, WIDE)
    monkeypatch.setattr(call, "SEEN", 30)
    found = pw.recommend(network(), TRAIN, "classification")
    assert any("On 30 training examples" in reason for reason in found.reasons)


def test_the_only_posterior_is_not_called_the_best_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one recipe alone explains the training data."""
    use(monkeypatch, PLAIN, next(each for each in recipes.RECIPES if each.name == "last layer, training"))
    reasons = " ".join(pw.recommend(network(5.0), TRAIN, "classification").reasons)
    assert "'last layer, training' was taken, the only one that was tried" in reasons
    assert "most uncertain weights" not in reasons


# Time


def test_no_recipe_is_begun_when_the_time_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that moves in fits alone: ten seconds each."""
    clock = FakeClock(monkeypatch, fit_seconds=10.0)
    use(monkeypatch, PLAIN, WIDE, NARROW, EVIDENCE)
    found = pw.recommend(network(), TRAIN, "classification", seconds=15)
    assert states(found) == {"plain": "done", "wide": "done", "narrow": "done", "evidence": "not tried"}
    assert rows(found)["evidence"].problem == "not tried: the 15 seconds are spent"
    assert [row.seconds for row in found.table] == [0.0, 10.0, 10.0, 0.0] and clock.now == 20.0
    assert "Not tried, for lack of time: 'evidence'." in found.reasons


def test_no_recipe_is_begun_that_takes_longer_than_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain pass takes two seconds; one that takes fewer passes is still tried."""
    FakeClock(monkeypatch, fit_seconds=10.0, plain_seconds=2.0)
    slow = recipe("slow", passes=30, prior=2.0)
    use(monkeypatch, PLAIN, WIDE, slow, NARROW)
    found = pw.recommend(network(), TRAIN, "classification", seconds=50)
    assert states(found) == {"plain": "done", "wide": "done", "slow": "not tried", "narrow": "done"}
    assert rows(found)["slow"].problem == "not tried: it takes about 60 seconds, and 40 are left"
    assert states(pw.recommend(network(), TRAIN, "classification"))["slow"] == "done"


def test_one_posterior_is_made_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain network first, then the first recipe that has one; also where that one fails."""
    FakeClock(monkeypatch, fit_seconds=10.0, plain_seconds=1.0)
    bad = recipe("bad", structure="no such name")
    use(monkeypatch, PLAIN, TEMPERATURE, bad, EVIDENCE, WIDE)
    found = pw.recommend(network(), TRAIN, "classification", validation=FEW, seconds=0.5)
    assert states(found) == {
        "plain": "done",
        "temperature": "not tried",
        "bad": "structure='no such name' is not known; Known",
        "evidence": "done",
        "wide": "not tried",
    }


def test_a_plain_pass_is_timed_on_some_batches() -> None:
    """And counts for all of them: the clock moves one second with each forward pass."""
    ticks = [0.0]

    class Timed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Tensor) -> Tensor:
            ticks[0] += 1
            return self.inner(x)

    task = call.task_of(Timed(), [TRAIN] * 10, "classification", None, None, None, 0)
    assert trials.time_plain_pass(task, lambda: ticks[0], 4) == 10.0
    assert trials.time_plain_pass(task, lambda: ticks[0], 20) == 10.0


# What goes wrong


def test_failures_are_rows_with_their_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the library, and of anything below it."""

    def out_of_memory(*_: Any, **options: Any) -> pw.Laplace:
        if options.get("prior") == 7.0:
            raise torch.OutOfMemoryError("CUDA out\nof memory")
        return real(*_, **options)

    real = trials.fit
    monkeypatch.setattr(trials, "fit", out_of_memory)
    use(monkeypatch, PLAIN, recipe("wrong", structure="krno"), recipe("large", prior=7.0), EVIDENCE)
    found = pw.recommend(network(), TRAIN, "classification", validation=FEW)
    table = rows(found)
    assert found.recipe == "evidence" and "did you mean 'kron'?" in table["wrong"].problem
    assert table["large"].problem == "OutOfMemoryError: CUDA out of memory" and table["large"].scores is None
    assert "Failed, or without scores, see the table: 'wrong' and 'large'." in found.reasons
    assert "large: OutOfMemoryError: CUDA out of memory" in repr(found)


def test_a_posterior_whose_predictions_fail_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by the evidence: where there is no memory, and where its predictions alone cannot be scored."""
    use(monkeypatch, PLAIN, EVIDENCE, WIDE)
    real = pw.Laplace.predict
    for error, problem in ((RuntimeError("no memory"), "RuntimeError"), (pw.NotFiniteError("NaN"), "not scored")):

        def predict(la: pw.Laplace, *given: Any, error: Exception = error, **options: Any) -> Any:
            if la.trace is not None:
                raise error
            return real(la, *given, **options)

        monkeypatch.setattr(pw.Laplace, "predict", predict)
        for validation in (None, FEW):
            found = pw.recommend(network(), TRAIN, "classification", validation=validation)
            assert found.recipe == "wide" and states(found)["evidence"] == problem


def test_where_every_posterior_fails_the_reasons_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, PLAIN, recipe("wrong", structure="krno"))
    with pytest.raises(pw.PeewitError, match=r"No recipe has a posterior to recommend. 'wrong': structure='krno'"):
        pw.recommend(network(), TRAIN, "classification", validation=FEW)


def test_warnings_go_into_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nowhere else: here, a warning is an error."""
    hasty = recipe("hasty", {"method": "evidence", "steps": 1})
    use(monkeypatch, PLAIN, hasty)
    found = pw.recommend(network(), TRAIN, "classification")
    (text,) = rows(found)["hasty"].warnings
    assert "converge" in text or "step" in text
    assert f"hasty: warning: {text}" in repr(found) and "1 warning" in repr(found)
    assert any(reason.startswith("It gave 1 warning: ") for reason in found.reasons)


def test_a_posterior_that_cannot_be_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probabilities as targets have no accuracy: the evidence chooses, and says so."""
    use(monkeypatch, PLAIN, WIDE, EVIDENCE)
    x, y = FEW
    soft = nn.functional.one_hot(y, 3).double() * 0.8 + 0.2 / 3
    chosen = "The log evidence chose, and not the validation data. Not scored: Targets are class probabilities"
    for given, words in (((x, soft), chosen), (None, "There is no validation data, so the log evidence chose")):
        found = pw.recommend(network(), (x, soft), "classification", validation=given)
        assert found.recipe == "evidence" and found.reasons[0].startswith(words)
        assert set(states(found).values()) == {"not scored"} and "not scored" in repr(found)


def test_a_winner_that_cannot_be_tuned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is the one that was tuned on half of the data, and a reason says so."""
    use(monkeypatch, PLAIN, VALIDATION)

    def fail(*_: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(call, "tune", fail)
    found = pw.recommend(network(5.0), TRAIN, "classification", validation=MANY)
    assert found.recipe == "validation"
    assert "Tuning it again on all validation data failed: RuntimeError: no memory" in found.reasons


def test_a_network_that_is_worse_than_a_constant_is_named_first(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = TRAIN
    found = pw.recommend(network(5.0), (x, y.roll(7)), "classification")
    assert found.reasons[0].startswith("The network is worse than a constant: ")


def test_one_example_of_a_regression() -> None:
    """The reason does not claim that predictions explain the training data, which a noise does not promise."""
    torch.manual_seed(0)
    found = pw.recommend(nn.Linear(2, 1), (torch.ones(1, 2), torch.ones(1, 1)), "regression")
    told = " ".join(found.reasons)
    assert "recipes that choose prior and noise by the training data" in told and "explain the training" not in told
    assert "On 1 training example its NLL" in told


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"train": passes([TRAIN])}, "train is a one-shot iterator"),
        ({"validation": passes([TRAIN])}, "validation is a one-shot iterator"),
        ({"ood": passes([FAR])}, r"ood={'ood': ...} is a one-shot iterator"),
        ({"ood": {"far": torch.zeros(5, 9)}}, r"ood={'far': ...} does not fit the network"),
        ({"seconds": 0}, "expected a positive number"),
        ({"seconds": True}, "expected a positive number"),
        ({"seconds": "1"}, "expected a positive number"),
        ({"likelihood": "clasification"}, "did you mean 'classification'"),
        ({"likelihood": nn.CrossEntropyLoss()}, "Did you mean 'classification'"),
        ({"model": None}, "model is a NoneType; expected the network itself"),
        ({"model": "la"}, "model is a Laplace; expected the network itself"),
        ({"validation": (TRAIN[0], TRAIN[1][:3])}, "leading axes differ"),
        ({"validation": []}, "no examples"),
        ({"generator": 3}, "expected a torch.Generator"),
        ({"second": 3}, "did you mean 'seconds'"),
    ],
)
def test_refusals(given: dict[str, Any], words: str) -> None:
    options = {"model": network(), "train": TRAIN, "likelihood": "classification", **given}
    if options["model"] == "la":
        options["model"] = pw.fit(network(), TRAIN, "classification")
    with pytest.raises(pw.PeewitError) as caught:
        pw.recommend(options.pop("model"), options.pop("train"), options.pop("likelihood"), **options)
    assert words in str(caught.value)


# What stays as it was


def test_nothing_is_changed() -> None:
    """A network in training mode with BatchNorm and dropout, loaders that shuffle, hooks and gradients."""
    torch.manual_seed(0)
    inner = [nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3)]
    model = nn.Sequential(*inner).double().to(DEVICE).train()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model[0].register_forward_hook(lambda *_: None)
    loaders = [
        DataLoader(TensorDataset(*data), batch_size=32, shuffle=True, generator=None) for data in (TRAIN, MANY, FEW)
    ]
    before = snapshot(model)
    found = pw.recommend(model, loaders[0], "classification", validation=loaders[1], ood=loaders[2], seconds=1e9)
    assert changed(model, before) == []
    assert set(states(found).values()) == {"done"}
    again = pw.recommend(model, loaders[0], "classification", validation=loaders[1], ood=loaders[2])
    assert [row.name for row in again.table] == [row.name for row in found.table]
    assert changed(model, before) == []


def test_the_same_call_says_the_same() -> None:
    """But for the seconds; another generator makes other halves."""
    first, second = (pw.recommend(network(5.0), TRAIN, "classification", validation=MANY) for _ in range(2))
    assert first.reasons == second.reasons and first.code == second.code
    assert [row.nll for row in first.table] == [row.nll for row in second.table]
    seed = torch.Generator().manual_seed(5)
    other = pw.recommend(network(5.0), TRAIN, "classification", validation=MANY, generator=seed)
    assert other.table[0].nll != first.table[0].nll


def test_an_interruption_is_not_a_row(monkeypatch: pytest.MonkeyPatch, bars: list[int]) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trials, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pw.recommend(network(), TRAIN, "classification", progress=True)
    assert bars == [1, 0]


# What is shown


def test_the_code_makes_the_posterior() -> None:
    """Of every recipe in the table that has one."""
    for each in RECIPES:
        if each.baseline is not None:
            continue
        place: dict[str, Any] = {
            "pw": pw, "model": network(5.0), "train": TRAIN, "validation": FEW, "x": FEW[0],
        }  # fmt: skip
        exec(each.code('"classification"'), place)
        with pytest.MonkeyPatch.context() as patch:
            use(patch, each)
            found = pw.recommend(network(5.0), TRAIN, "classification", validation=FEW)
        assert found.code == each.code('"classification"')
        la = place["la"]
        assert float(found.posterior.prior.precision) == pytest.approx(float(la.prior.precision), rel=1e-6)
        assert torch.allclose(found.posterior.predict(FEW[0]).probs, place["prediction"].probs)


def test_code_of_other_options() -> None:
    given = Recipe(
        name="x",
        passes=1,
        fit={"structure": pw.Diag(), "at": "linear_mode"},
        tune={"method": "grid", "grid": [1.0, 2.0]},
        predict={"link": "mc", "samples": 8},
    )
    assert given.code("pw.Gaussian(noise=0.1)").splitlines() == [
        'la = pw.fit(model, train, pw.Gaussian(noise=0.1), structure=pw.Diag(), at="linear_mode")',
        'la = la.tune("grid", grid=[1.0, 2.0], train=train, validation=validation)',
        'prediction = la.predict(x, link="mc", samples=8)',
    ]
    assert recipe("y").code('"count"').splitlines()[1] == "prediction = la.predict(x)"


def test_predict_options_of_a_recipe_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled = Recipe(name="sampled", passes=1, fit={"prior": 10.0}, predict={"method": "sampled", "samples": 16})
    use(monkeypatch, sampled)
    found = pw.recommend(network(), TRAIN, "classification", validation=FEW)
    la = pw.fit(network(), TRAIN, "classification", prior=10.0)
    wanted = pw.evaluate(la, FEW, baselines=(), intervals=0, predict={"method": "sampled", "samples": 16})
    assert rows(found)["sampled"].nll.value == pytest.approx(wanted.methods[0].metrics["nll"].value)


def test_the_table_of_recipes() -> None:
    """Names differ, cheap ones come first, and the plain network leads."""
    assert len({each.name for each in RECIPES}) == len(RECIPES) and RECIPES[0].baseline == "plain"
    assert [each.passes for each in RECIPES] == sorted(each.passes for each in RECIPES)
    assert recipes.RECIPES is RECIPES


def test_recipes_that_need_validation_data_are_left_out_without_it() -> None:
    names = [row.name for row in pw.recommend(network(), TRAIN, "classification").table]
    assert names == [each.name for each in RECIPES if not each.validated] and "temperature scaling" not in names


@pytest.mark.parametrize("likelihood", ["binary", "count", "heteroscedastic"])
def test_other_likelihoods(likelihood: str) -> None:
    """With validation data and unknown inputs."""
    torch.manual_seed(0)
    outputs = 2 if likelihood == "heteroscedastic" else 1
    model = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, outputs)).double().to(DEVICE)
    x = normal(90, 2).to(DEVICE)
    y = {"binary": (x[:, :1] > 0).double(), "count": (x[:, :1] > 0).double() + 1, "heteroscedastic": x[:, :1]}[
        likelihood
    ]
    found = pw.recommend(model, (x[:50], y[:50]), likelihood, validation=(x[50:], y[50:]), ood=FAR)  # type: ignore[arg-type]
    assert set(states(found).values()) == {"done"}, [row.problem for row in found.table]
    assert all(row.nll is not None and row.auroc is not None for row in found.table)
    assert ("temperature scaling" in states(found)) == (likelihood != "count")


def test_progress_shows_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bars: list[int]
) -> None:
    """On stderr, row by row, and nothing unasked."""
    use(monkeypatch, PLAIN, EVIDENCE)
    quiet = pw.recommend(network(), TRAIN, "classification")
    assert capsys.readouterr() == ("", "") and bars == [0, 0]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    loud = pw.recommend(network(), TRAIN, "classification", progress=True)
    told = capsys.readouterr()
    assert told.out == "" and bars == [1, 0]
    assert "log evidence" in told.err and f"{loud.table[0].nll.value:.3f}" in told.err
    assert loud.reasons == quiet.reasons


def test_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table in columns, the reasons, and the code."""
    use(monkeypatch, PLAIN, EVIDENCE)
    found = pw.recommend(network(), TRAIN, "classification", ood=FAR)
    lines = repr(found).splitlines()
    assert lines[0] == "Recommendation: evidence"
    head = lines[2]
    assert head.split("  ")[0] == "recipe" and "NLL (training)" in head and "AUROC" in head and "log evidence" in head
    assert f"{found.table[0].nll.value:.3f}" in lines[3] and lines[3].startswith("plain")
    assert all(f"- {reason}" in lines for reason in found.reasons)
    assert lines[-2:] == ["    la = la.tune()", "    prediction = la.predict(x)"]


def test_memory_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """To fits, tuning and predictions; numbers stay."""
    given: list[Any] = []
    real = trials.fit
    monkeypatch.setattr(
        trials, "fit", lambda *inputs, **options: given.append(options["memory"]) or real(*inputs, **options)
    )
    free = pw.recommend(network(5.0), TRAIN, "classification", validation=FEW)
    tight = pw.recommend(network(5.0), TRAIN, "classification", validation=FEW, memory=1e5)
    assert given == [None, None, 1e5, 1e5]
    assert [row.nll.value for row in tight.table if row.nll] == pytest.approx(
        [row.nll.value for row in free.table if row.nll], rel=1e-2
    )
