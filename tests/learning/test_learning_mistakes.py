"""What cannot be used is refused with what was given, what was expected and what to do; and nothing is lost by it."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

import peewit as pw
from peewit.learning.ascent import HyperOptimizer


def parts(outputs: int = 3) -> tuple[nn.Module, tuple[Tensor, Tensor], torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, outputs))
    x = torch.randn(12, 2)
    return model, (x, torch.arange(12) % 3), torch.optim.SGD(model.parameters(), lr=0.1)


def learner(**options: object) -> pw.learning.Learner:
    model, data, optimizer = parts()
    given = {"model": model, "data": data, "likelihood": "classification", "optimizer": optimizer, **options}
    return pw.learning.Learner(
        given.pop("model"), given.pop("data"), given.pop("likelihood"), given.pop("optimizer"), **given
    )


def other_network() -> torch.optim.Optimizer:
    return torch.optim.SGD(nn.Linear(2, 3).parameters(), lr=0.1)


class Endless(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> object:
        return iter([(torch.randn(2), torch.tensor(1))] * 8)


MISTAKES: dict[str, tuple[dict[str, object], str]] = {
    "optimizer of another network": (
        {"optimizer": other_network()},
        "does not own 0.weight, 0.bias, 2.weight and 1 more",
    ),
    "no optimizer": ({"optimizer": "adam"}, "optimizer is a str; expected a torch.optim.Optimizer"),
    "a loss of another kind": ({"loss": nn.MultiMarginLoss()}, "not a multiple of the energy under Categorical"),
    "smoothed labels": ({"loss": nn.CrossEntropyLoss(label_smoothing=0.3)}, "not a multiple of the energy"),
    "a loss without a mean": ({"loss": nn.CrossEntropyLoss(reduction="none")}, "expected one number, the mean"),
    "a loss by name": ({"loss": "mse"}, "loss is a str; expected a function"),
    "a negative factor": ({"loss": -1.0}, "loss=-1.0 was given"),
    "no length": (
        {"data": DataLoader(Endless(), batch_size=4)},
        "number of training examples is not known.*examples=N",
    ),
    "an iterator": ({"data": iter([])}, "passes over the data many times"),
    "a share": ({"share": 0.0}, "share=0.0 was given; expected a number above 0"),
    "a memory of one": ({"running": 1.0}, "running=1.0 was given"),
    "eigenvectors": ({"running": 0.5, "structure": "ekfac"}, "would keep the eigenvectors of the first step"),
    "no steps": ({"steps": 0}, "steps=0 was given"),
    "a negative rate": ({"rate": -0.1}, "rate=-0.1: expected"),
    "a noise where there is none": ({"parameters": ["noise"]}, "Categorical has no noise"),
    "a parameter": ({"parameters": "temperature"}, "parameters='temperature' is not known"),
    "a decay": ({"decay": "l2"}, "decay='l2' is not known"),
    "what is kept": ({"keep": "first"}, "keep='first' is not known"),
    "a g-prior": ({"prior": pw.Prior.g_prior()}, "takes its ratios from the curvature"),
    "single weights": ({"weights": pw.Subnetwork.largest_magnitude(5)}, "selects single elements"),
    "variances": ({"weights": pw.Subnetwork.largest_variance(5)}, "needs a trained network"),
    "examples": ({"examples": 0}, "examples=0 was given"),
    "an option": ({"learning_rate": 0.1}, "has no option 'learning_rate'"),
    "a prior of others": ({"prior": pw.Prior.layerwise([1.0, 2.0])}, "2 precisions were given; expected 1 or 4"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_are_named(what: str) -> None:
    options, message = MISTAKES[what]
    with pytest.raises(pw.PeewitError, match=message):
        learner(**options)


def test_a_weight_decay_beside_the_prior_is_refused_with_the_precision_that_means_the_same() -> None:
    model, data, _ = parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.25)
    with pytest.raises(pw.PeewitError, match=r"weight_decay=0.25 for '0.weight'.*precision that means the same is 3:"):
        learner(model=model, data=data, optimizer=optimizer)
    model, data, _ = parts()
    groups = [{"params": model[0].parameters(), "weight_decay": 0.1}, {"params": model[2].parameters()}]
    own = learner(model=model, data=data, optimizer=torch.optim.SGD(groups, lr=0.1), weights="last_layer")
    assert own.space.names == ("2.weight", "2.bias")  # the decay of the others stays the user's


def test_two_learners_of_one_optimizer_are_refused() -> None:
    model, data, optimizer = parts()
    first = learner(model=model, data=data, optimizer=optimizer)
    with pytest.raises(pw.PeewitError, match=r"already has a learner.*detach\(\)"):
        learner(model=model, data=data, optimizer=optimizer)
    first.detach()
    learner(model=model, data=data, optimizer=optimizer)


def test_parallel_training_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(pw.PeewitError, match="DistributedDataParallel or FSDP"):
        learner()


def test_a_sampler_says_how_many_examples_there_are() -> None:
    model, (x, y), optimizer = parts()
    sampler = WeightedRandomSampler([1.0] * 12, 8)
    loader = DataLoader(TensorDataset(x, y), batch_size=4, sampler=sampler)
    assert learner(model=model, data=loader, optimizer=optimizer).examples == 8


def test_broken_weights_leave_the_learner_as_it_was() -> None:
    own = learner()
    first = own.step()
    with torch.no_grad():
        own.model[0].weight[0, 0] = torch.nan
    before = own.prior.precision.clone()
    with pytest.raises(pw.NotFiniteError):
        own.step()
    assert torch.equal(own.prior.precision, before)
    assert own.history.records == (first,)
    assert torch.isfinite(own.posterior().weights).all()  # the kept ones


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_step_changes_nothing(monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> None:
    own = learner()
    own.step()
    state = own.state_dict()
    taken = HyperOptimizer._step
    calls = []

    def interrupted(self: HyperOptimizer, *arguments: object) -> None:
        calls.append(1)
        if len(calls) == 10:
            raise error
        taken(self, *arguments)

    monkeypatch.setattr(HyperOptimizer, "_step", interrupted)
    with pytest.raises(error):
        own.step()
    monkeypatch.undo()
    after = own.state_dict()
    assert torch.equal(state["hyper"]["z"], after["hyper"]["z"])
    assert state["hyper"]["taken"] == after["hyper"]["taken"] == 30
    assert len(own.history) == 1
    repeated, plain = learner(), learner()
    plain.step()
    repeated.step()
    assert own.step().log_evidence == pytest.approx(repeated.step().log_evidence)


def test_a_posterior_needs_a_step() -> None:
    with pytest.raises(pw.PeewitError, match=r"call learner.step\(\) first"):
        learner().posterior()


TRAINING: dict[str, tuple[dict[str, object], str]] = {
    "no epochs": ({"epochs": 0}, "epochs=0 was given"),
    "a long burn-in": ({"burn_in": 5}, "burn_in=5 was given; expected a whole number from 0 to epochs=2"),
    "every": ({"every": 1.5}, "every=1.5 was given"),
    "a scheduler": ({"scheduler": "cosine"}, "scheduler is a str"),
    "an option": ({"lr": 0.1}, "has no option 'lr'"),
    "a folder that is not there": ({"checkpoint": "no/such/run.pt"}, "does not exist"),
}


@pytest.mark.parametrize("what", TRAINING)
def test_mistakes_in_runs_are_named(what: str) -> None:
    options, message = TRAINING[what]
    model, data, optimizer = parts()
    with pytest.raises((pw.PeewitError, FileNotFoundError), match=message):
        pw.learning.train(model, data, "classification", optimizer, **{"epochs": 2, **options})


def test_a_loss_that_turns_nan_stops_the_run_and_the_kept_weights_stay() -> None:
    model, data, _ = parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = pw.learning.train(model, data, "classification", optimizer, epochs=4, every=1)
    records = iter(run)
    first = next(records)
    optimizer.param_groups[0]["lr"] = 1e30
    with pytest.raises(pw.NotFiniteError, match=r"epoch \d.*still has the kept weights"):
        for _ in records:
            pass
    assert first.log_evidence is not None
    assert torch.isfinite(run.posterior().weights).all()


def test_labels_that_do_not_fit_are_refused_before_training() -> None:
    model, (x, _), optimizer = parts()
    with pytest.raises(pw.PeewitError, match="label 7 is outside"):
        pw.learning.train(model, (x, torch.full((12,), 7)), "classification", optimizer, epochs=1).finish()


def test_sparse_gradients_are_refused() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Flatten(), nn.Linear(8, 3))
    x, y = torch.randint(0, 5, (12, 2)), torch.arange(12) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = learner(model=model, data=(x, y), optimizer=optimizer)
    nn.functional.cross_entropy(model(x), y).backward()
    with pytest.raises(pw.PeewitError, match=re.escape("learner.penalty()")):
        optimizer.step()
    assert own.history.records == ()


def test_a_learner_is_not_copied() -> None:
    own = learner()
    with pytest.raises(pw.PeewitError, match="cannot be copied or pickled"):
        copy.deepcopy(own)
    with pytest.raises(pw.PeewitError, match="cannot be copied or pickled"):
        pickle.dumps(own)


def test_what_is_asked_wrongly_of_the_posterior_leaves_the_network() -> None:
    own = learner()
    own.step()
    with torch.no_grad():
        own.model[0].weight.add_(1.0)
    before = own.model[0].weight.clone()
    with pytest.raises(pw.PeewitError, match="nonsense"):
        own.posterior(at="nonsense")
    assert torch.equal(own.model[0].weight, before)


def test_losses_that_agree_at_the_outputs_alone_are_refused() -> None:
    """At zero logits smoothed labels have the gradient of plain ones; near zero Huber's loss has that of squares."""
    model, data, optimizer = parts()
    with torch.no_grad():
        model[2].weight.zero_()
        model[2].bias.zero_()
    with pytest.raises(pw.PeewitError, match="not a multiple"):
        learner(model=model, data=data, optimizer=optimizer, loss=nn.CrossEntropyLoss(label_smoothing=0.1))
    model, (x, _), optimizer = parts(outputs=1)
    small = 0.01 * torch.randn(12, 1)
    with pytest.raises(pw.PeewitError, match="not a multiple"):
        learner(model=model, data=(x, small), likelihood="regression", optimizer=optimizer, loss=nn.HuberLoss())


def test_a_sum_over_the_batch_is_refused() -> None:
    with pytest.raises(pw.PeewitError, match="is a sum over the batch"):
        learner(loss=nn.CrossEntropyLoss(reduction="sum"))


def test_a_mean_over_labels_whose_number_varies_is_said() -> None:
    """One of two batches has half as many labels: the factor is the mean of both, whichever comes first."""
    model = nn.Linear(2, 3)
    x, y = torch.randn(4, 6, 2), torch.randint(0, 3, (4, 6))
    ignored = y.clone()
    ignored[:, 3:] = -100
    factors = []
    for batches in ([(x, y), (x, ignored)], [(x, ignored), (x, y)]):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def loss(f: Tensor, targets: Tensor) -> Tensor:
            return nn.functional.cross_entropy(f.flatten(0, 1), targets.flatten())

        with pytest.warns(pw.FitWarning, match="averages over labels"):
            factors.append(learner(model=model, data=batches, optimizer=optimizer, loss=loss).loss_factor)
    assert factors == [pytest.approx((1 / 6 + 1 / 3) / 2), pytest.approx(factors[0])]


def test_states_of_another_kind_change_nothing() -> None:
    own, other = learner(), learner(structure="diag")
    own.step()
    with pytest.raises(pw.MismatchError, match="of the structure Kron"):
        other.load_state_dict(own.state_dict())
    assert len(other.history) == 0


def test_logs_and_finished_runs_are_not_overwritten(tmp_path: Path) -> None:
    def run(epochs: int, **options: object) -> pw.learning.Training:
        model, data, optimizer = parts()
        files = {"log": tmp_path / "run.jsonl", "checkpoint": tmp_path / "run.pt", **options}
        return pw.learning.train(model, data, "classification", optimizer, epochs=epochs, **files)

    run(3).finish()
    with pytest.raises(pw.PeewitError, match=r"run.jsonl exists already"):
        run(3, checkpoint=tmp_path / "other.pt")
    with pytest.raises(pw.PeewitError, match="3 epochs finished, and epochs=2"):
        run(2, resume=True)
    model, data, _ = parts()
    with pytest.raises(pw.MismatchError, match=r"optimizers \['SGD'\], and this one has \['Adam'\]"):
        pw.learning.train(
            model,
            data,
            "classification",
            torch.optim.Adam(model.parameters()),
            epochs=4,
            checkpoint=tmp_path / "run.pt",
            resume=True,
        )
