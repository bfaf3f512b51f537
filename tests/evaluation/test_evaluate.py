"""Evaluations of classes: every number against the same one from predictions themselves."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import peewit as pw
from environment import DEVICE
from evaluating import C, agree, classifier, images, network
from fitting import Broken, built, classes, normal, seeded
from peewit.evaluation.attacks import Attack
from peewit.evaluation.corruptions import InputRange, corrupt_images
from peewit.evaluation.methods import best_temperature, dropouts
from peewit.likelihoods import Form
from peewit.metrics import accuracy, aurc, auroc, brier, ece, ece_adaptive, ece_classwise, mce, nll
from peewit.runtime.random import seed_of
from snapshots import changed, snapshot

optimize = pytest.importorskip("scipy.optimize")

METRICS = {
    "accuracy": accuracy,
    "nll": nll,
    "brier": brier,
    "ece": ece,
    "ece_adaptive": ece_adaptive,
    "ece_classwise": ece_classwise,
    "mce": mce,
    "aurc": aurc,
}


def numbers(scores: Any) -> dict[str, float]:
    return {name: each.value for name, each in scores.metrics.items()}


def expected(probs: Tensor, labels: Tensor) -> dict[str, float]:
    return {name: metric(probs, labels) for name, metric in METRICS.items()}


def entropy(probs: Tensor) -> Tensor:
    return -torch.xlogy(probs, probs).sum(-1)


def test_every_method_has_the_metrics_of_its_own_probabilities() -> None:
    la, (x, y), held = classifier(), images(60, 5), images(30, 7)
    others = [network(), network()]
    found = pw.evaluate(la, (x, y), validation=held, ensemble=others, intervals=20, generator=seeded(3))
    names = ["Laplace", "Plain network", "Temperature scaling", "Deep ensemble", "MC dropout"]
    assert [each.name for each in found.methods] == names and found.task == "classification"
    with torch.no_grad():
        logits, held_logits = la.model(x), la.model(held[0])
        members = torch.stack([other(x).softmax(-1) for other in others])

    def loss(log_temperature: float) -> float:
        return float(nn.functional.cross_entropy(held_logits / math.exp(log_temperature), held[1]))

    best = math.exp(optimize.minimize_scalar(loss, bounds=(-6, 6), method="bounded", options={"xatol": 1e-10}).x)
    probabilities = {
        "Laplace": la.predict(x).probs,
        "Plain network": logits.softmax(-1),
        "Temperature scaling": (logits / best).softmax(-1),
        "Deep ensemble": members.mean(0),
        "MC dropout": dropped(la.model, x, seed_of(seeded(3), 62)),
    }
    for name, probs in probabilities.items():
        assert numbers(found[name]) == pytest.approx(expected(probs, y), rel=1e-5), name
        for each in found[name].metrics.values():
            assert each.low <= each.value <= each.high
        assert found[name].seconds > 0 and sum(found[name].reliability.count) == 60
        assert found[name].risk_coverage.y[-1] == pytest.approx(1 - accuracy(probs, y))


def dropped(model: nn.Module, x: Tensor, seed: int) -> Tensor:
    """The mean over 32 passes with dropout alone in training mode, one batch of all inputs."""
    with torch.random.fork_rng(devices=[DEVICE] if DEVICE != "cpu" else []), torch.no_grad():
        for module in dropouts(model):
            module.train()
        torch.manual_seed(seed)
        made = torch.stack([model(x).softmax(-1) for _ in range(32)]).mean(0)
        model.eval()
    return made


def test_unknown_inputs_are_told_by_every_score_that_a_method_has() -> None:
    la, (x, y), strange = classifier(), images(50, 5), 3 * torch.randn(30, 1, 6, 6, dtype=torch.float64, device=DEVICE)
    found = pw.evaluate(la, (x, y), ood={"strange": strange}, intervals=10, ensemble=[network(), network()])
    known, unknown = la.predict(x), la.predict(strange)
    scores = {
        "confidence": (-known.probs.amax(-1), -unknown.probs.amax(-1)),
        "entropy": (entropy(known.probs), entropy(unknown.probs)),
        "mutual_information": (known.epistemic, unknown.epistemic),
        "epistemic_variance": (known.output_variance.mean(-1), unknown.output_variance.mean(-1)),
    }
    own = found.methods[0]
    assert set(own.detection["strange"]) == set(scores)
    for name, (left, right) in scores.items():
        assert own.detection["strange"][name].auroc.value == pytest.approx(auroc(left, right), abs=1e-9), name
        sign = -1.0 if name == "confidence" else 1.0
        assert own.uncertainty["test"][name] == pytest.approx((sign * left).tolist(), rel=1e-5, abs=1e-9)
        assert own.uncertainty["strange"][name] == pytest.approx((sign * right).tolist(), rel=1e-5, abs=1e-9)
    assert set(found["Plain network"].detection["strange"]) == {"confidence", "entropy"}
    assert set(found["Deep ensemble"].detection["strange"]) == set(scores)


def test_scores_of_an_ensemble_are_those_of_its_members() -> None:
    members, (x, y) = [network(), network(), network()], images(20, 5)
    found = pw.evaluate(members[0], (x, y), likelihood="classification", ensemble=members, intervals=0)
    with torch.no_grad():
        logits = torch.stack([member(x) for member in members])
    each = logits.softmax(-1)
    mutual = entropy(each.mean(0)) - entropy(each).mean(0)
    own = found["Deep ensemble"].uncertainty["test"]
    assert own["mutual_information"] == pytest.approx(mutual.tolist(), rel=1e-5, abs=1e-9)
    assert own["epistemic_variance"] == pytest.approx(logits.var(0, correction=0).mean(-1).tolist(), rel=1e-5)
    assert [method.name for method in found.methods] == ["Plain network", "Deep ensemble"]


def test_shifts_and_attacks_are_measured_on_the_changed_inputs() -> None:
    la, (x, y) = classifier(), images(40, 5)
    ready = {2: (x.flip(-1), y), 4: (x[:10] * 0.5, y[:10])}
    found = pw.evaluate(
        la,
        (x, y),
        shifts={
            "noise": None,
            "rotation": (2,),
            "dark": lambda inputs, strength: inputs.mul_(0.5**strength),
            "r": ready,
        },
        attacks={"fgsm": (0.1,), "pgd": 0.1, "own": (lambda model, inputs, labels, epsilon: inputs + epsilon, [1])},
        intervals=10,
        generator=seeded(4),
        baselines="plain",
    )
    own = found.methods[0]
    assert own.shifts["noise"].strengths == (0, 1, 2, 3, 4, 5) and own.shifts["r"].strengths == (0, 2, 4)
    attack = Attack(la.model, la.likelihood, Form(0, (C,)), InputRange(0.0, 1.0))
    seed = seed_of(seeded(4), 62)
    inputs = {
        ("shifts", "noise", 3): (corrupt_images("noise", x, 3.0, InputRange(0.0, 1.0), 0, seed), y),
        ("shifts", "rotation", 1): (corrupt_images("rotation", x, 2.0, InputRange(0.0, 1.0), 0, seed), y),
        ("shifts", "dark", 2): (x * 0.25, y),
        ("shifts", "r", 1): ready[2],
        ("shifts", "r", 2): ready[4],
        ("attacks", "fgsm", 1): (dict(attack.fgsm(x, y, (0.1,)))[0.1], y),
        ("attacks", "pgd", 1): (dict(attack.pgd(x, y, (0.1,)))[0.1], y),
        ("attacks", "own", 1): (x + 1, y),
    }
    for (kind, name, place), (there, labels) in inputs.items():
        with torch.no_grad():
            both = {"Laplace": la.predict(there).probs, "Plain network": la.model(there).softmax(-1)}
        for method, probs in both.items():
            metrics = getattr(found[method], kind)[name].metrics
            assert metrics["accuracy"][place].value == pytest.approx(accuracy(probs, labels)), (kind, name)
            assert metrics["nll"][place].value == pytest.approx(nll(probs, labels), rel=1e-6)
            assert metrics["confidence"][place].value == pytest.approx(float(probs.amax(-1).mean()))
            assert metrics["uncertainty"][place].value == pytest.approx(float(entropy(probs).mean()))
            assert metrics["accuracy"][0] == found[method].metrics["accuracy"]
            assert all(each.low <= each.value <= each.high for values in metrics.values() for each in values)


def test_some_examples_are_enough_for_shifts() -> None:
    """Evenly spread, clean ones included; the same however batches are cut."""
    la, (x, y) = classifier(), images(40, 5)
    found = pw.evaluate(la, (x, y), shifts={"noise": 1}, shift_examples=10, intervals=5, baselines=())
    loader = DataLoader(TensorDataset(x, y), batch_size=7)
    again = pw.evaluate(la, loader, shifts={"noise": 1}, shift_examples=10, intervals=5, baselines=())
    assert found.settings["changed examples"] == 10 and any("part of the test" in note for note in found.notes)
    chosen = torch.arange(3, 40, 4, device=DEVICE)
    clean, noisy = found.methods[0].shifts["noise"].metrics["nll"]
    assert clean.value == pytest.approx(nll(la.predict(x[chosen]).probs, y[chosen]))
    there = corrupt_images("noise", x[chosen], 1.0, InputRange(0.0, 1.0), 0, 0)
    assert noisy.value == pytest.approx(nll(la.predict(there).probs, y[chosen]))
    assert [each.value for each in again.methods[0].shifts["noise"].metrics["nll"]] == pytest.approx(
        [clean.value, noisy.value]
    )


def test_some_examples_of_data_in_every_form() -> None:
    """A sampler draws from a larger data set; lists of batches can be counted."""
    la, (x, y) = classifier(), images(40, 5)
    many = TensorDataset(x.repeat(50, 1, 1, 1).cpu(), y.repeat(50).cpu())
    options: dict[str, Any] = {"shifts": {"noise": 1}, "shift_examples": 10, "intervals": 0, "baselines": ()}
    for data in (
        DataLoader(many, batch_size=7, sampler=SubsetRandomSampler(range(40))),
        [(x[:13], y[:13]), (x[13:], y[13:])],
    ):
        found = pw.evaluate(la, data, **options)
        assert found.settings["changed examples"] == 10 and list(found.methods[0].shifts) == ["noise"]
    found = pw.evaluate(la, iter([(x, y)]), **options)
    assert found.settings["changed examples"] == 40 and any("all 40 examples" in note for note in found.notes)


def test_data_that_are_ready_are_compared_with_all_test_data() -> None:
    la, (x, y) = classifier(), images(40, 5)
    shifts = {"noise": 1, "ready": {1: (x * 0.5, y)}}
    own = pw.evaluate(la, (x, y), shifts=shifts, shift_examples=10, intervals=0, baselines=()).methods[0]
    assert own.shifts["ready"].metrics["nll"][0].value == own.metrics["nll"].value
    assert own.shifts["noise"].metrics["nll"][0].value != own.metrics["nll"].value


def forms() -> dict[str, Any]:
    x, y = images(30, 5)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        yield from ((x[start : start + 8], y[start : start + 8]) for start in range(0, 30, 8))

    return {
        "loader": DataLoader(TensorDataset(x.cpu(), y.cpu()), batch_size=8),
        "list": list(batches()),
        "iterator": batches(),
        "mapping": [{"input": x[:20], "labels": y[:20]}, {"input": x[20:], "labels": y[20:]}],
    }


@pytest.mark.parametrize("form", forms())
@pytest.mark.parametrize("fitted", [True, False], ids=["posterior", "network"])
def test_data_in_every_form_gives_the_same_report(form: str, fitted: bool) -> None:
    subject = classifier() if fitted else classifier().model
    options = {} if fitted else {"likelihood": "classification"}
    x, y = images(30, 5)
    whole = pw.evaluate(subject, (x, y), intervals=20, baselines="plain", ood=2 * x[:9], **options)
    unknown = {"ood": DataLoader(TensorDataset(2 * x[:9].cpu()), batch_size=4)}
    found = pw.evaluate(subject, forms()[form], intervals=20, baselines="plain", ood=unknown, **options)
    for left, right in zip(whole.methods, found.methods, strict=True):
        for name, each in left.metrics.items():
            other = right.metrics[name]
            assert (other.value, other.low, other.high) == pytest.approx((each.value, each.low, each.high), rel=1e-6)
        for score, detected in left.detection["ood"].items():
            assert right.detection["ood"][score].auroc.value == pytest.approx(detected.auroc.value)
    assert [each.index for each in whole.surest] == [each.index for each in found.surest]


@pytest.mark.parametrize("labels", ["none", "pair", "batches", "mapping", "bare mapping", "tensors"])
def test_unknown_data_may_have_labels_that_mean_nothing(labels: str) -> None:
    la, (x, y) = classifier(), images(20, 5)
    other = x[:12] * 2
    wrong = torch.full((12,), 99, device=DEVICE)
    data: Any = {
        "none": other,
        "pair": (other, wrong),
        "batches": [(other[:5], wrong[:5]), (other[5:], wrong[5:])],
        "mapping": [{"input": other, "labels": wrong}],
        "bare mapping": [{"input": other}],
        "tensors": iter([other[:7], other[7:]]),
    }[labels]
    found = pw.evaluate(la, (x, y), ood=data, intervals=0, baselines=())
    probs = la.predict(other).probs
    assert found.methods[0].uncertainty["ood"]["confidence"] == pytest.approx(probs.amax(-1).tolist(), rel=1e-5)


class Tagger(nn.Module):
    """(N, T, 4) -> (N, T, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).tanh() * 3


def test_positions_count_like_examples_and_ignored_ones_do_not() -> None:
    x, y = normal(10, 5, 4).to(DEVICE), classes(C, 10, 5).to(DEVICE)
    y[torch.rand(10, 5, device=DEVICE) < 0.3] = -100
    y[4] = -100
    la = pw.fit(built(Tagger()).to(DEVICE), (x, y), "classification", prior=5.0)
    found = pw.evaluate(la, (x, y), ood=x * 3, intervals=30)
    known = y != -100
    probs = la.predict(x).probs
    assert numbers(found.methods[0]) == pytest.approx(expected(probs[known], y[known]), rel=1e-6)
    own = found.methods[0].uncertainty["test"]["confidence"]
    sure = [float(p[k].mean()) if k.any() else float(p.mean()) for p, k in zip(probs.amax(-1), known, strict=True)]
    assert own == pytest.approx(sure)
    assert found.methods[0].uncertainty["ood"]["confidence"] == pytest.approx(
        la.predict(x * 3).probs.amax(-1).mean(1).tolist()
    )
    assert found.surest == () and found.settings["labelled positions"] == int(known.sum())


def test_labels_of_pixels() -> None:
    """Classes on the first axis (N, C, rows, columns), in batches of several sizes of image."""
    model = built(nn.Conv2d(1, C, 3, padding=1)).to(DEVICE)
    x, y = normal(6, 1, 3, 4).to(DEVICE), classes(C, 6, 3, 4).to(DEVICE)
    y[0, 1:] = -100
    la = pw.fit(model, (x, y), "classification", prior=5.0)
    found = pw.evaluate(la, [(x[:4], y[:4]), (x[4:, :, :2], y[4:, :2])], intervals=10, ood=x)
    probs = [la.predict(part).probs.movedim(1, -1).reshape(-1, C) for part in (x[:4], x[4:, :, :2])]
    plain = [model(part).detach().softmax(1).movedim(1, -1).reshape(-1, C) for part in (x[:4], x[4:, :, :2])]
    labels = torch.cat([y[:4].flatten(), y[4:, :2].flatten()])
    known = labels != -100
    for name, parts in (("Laplace", probs), ("Plain network", plain)):
        wanted = expected(torch.cat(parts)[known], labels[known])
        assert numbers(found[name]) == pytest.approx(wanted, rel=1e-6), name


def test_histograms_are_of_at_most_2000_inputs_from_first_to_last() -> None:
    model = built(nn.Linear(1, 2)).to(DEVICE)
    x = torch.linspace(0, 1, 3001, dtype=torch.float64, device=DEVICE)[:, None]
    found = pw.evaluate(model, (x, (x[:, 0] > 0.5).long()), likelihood="classification", intervals=0)
    own = found.methods[0].uncertainty["test"]["confidence"]
    with torch.no_grad():
        ends = model(x[[0, -1]]).softmax(-1).amax(-1).tolist()
    assert len(own) == 2000 and [own[0], own[-1]] == pytest.approx(ends, rel=1e-5)


def test_one_example_and_one_class() -> None:
    la, (x, y) = classifier(), images(1, 5)
    found = pw.evaluate(la, (x, y), ood=x, intervals=10)
    own = found.methods[0].metrics
    assert own["accuracy"].low == own["accuracy"].high == own["accuracy"].value
    assert len(found.surest) == 1 and found.least_sure == ()
    x, _ = images(12, 6)
    zeros = torch.zeros(12, dtype=torch.long, device=DEVICE)
    assert numbers(pw.evaluate(la, (x, zeros), intervals=0).methods[0]) == pytest.approx(
        expected(la.predict(x).probs, zeros), rel=1e-6
    )


def test_the_same_twice_and_another_with_another_seed() -> None:
    la, test = classifier(), images(30, 5)
    first, again = (pw.evaluate(la, test, shifts="noise", intervals=30, generator=seeded(1)) for _ in range(2))
    assert agree(first, again)
    other = pw.evaluate(la, test, shifts="noise", intervals=30, generator=seeded(2))
    assert other.methods[0].metrics["nll"].value == first.methods[0].metrics["nll"].value
    assert other.methods[0].metrics["nll"].low != first.methods[0].metrics["nll"].low


def test_modes_of_the_caller_change_nothing() -> None:
    la, test = classifier(), images(20, 5)
    plain = pw.evaluate(la, test, shifts="blur", attacks="fgsm", intervals=10)
    with torch.inference_mode(), torch.autocast(DEVICE.partition(":")[0], dtype=torch.bfloat16):
        made = pw.evaluate(la, test, shifts="blur", attacks="fgsm", intervals=10)
    assert agree(made, plain)
    options: dict[str, Any] = {"likelihood": "classification", "shifts": ["noise", "blur"], "attacks": "pgd"}
    plain = pw.evaluate(la.model, test, ood=test[0], intervals=10, **options)
    with torch.device("meta"):
        made = pw.evaluate(la.model, test, ood=test[0], intervals=10, **options)
    assert agree(made, plain)


@pytest.mark.parametrize("breaks", [False, True])
def test_networks_and_generators_are_as_they_were(breaks: bool) -> None:
    """Also after an exception, in training mode, with gradients and hooks."""
    x, y = images(20, 5)
    model, other = network(0.5), network(0.5)
    for each in (model, other):
        each.train()
        each[0].eval()
        each(x).sum().backward()
        each[5].register_forward_hook(lambda *_: None)
    la = pw.fit(model, (x, y), "classification")
    before = snapshot(model), snapshot(other)
    data: Any = [(x[:10], y[:10]), (x[10:], y[10:])]
    options: dict[str, Any] = {"shifts": ["noise"], "attacks": ["pgd"], "ensemble": [model, other], "intervals": 5}
    if breaks:
        with pytest.raises(KeyboardInterrupt):
            pw.evaluate(la, Broken(data, KeyboardInterrupt()), validation=(x, y), **options)
    else:
        pw.evaluate(la, data, validation=(x, y), ood=x, **options)
    assert changed(model, before[0]) == [] and changed(other, before[1]) == []


def test_a_shuffled_loader_leaves_the_global_generator() -> None:
    x, y = images(20, 5)
    loader = DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True)
    state = torch.get_rng_state()
    pw.evaluate(classifier(), loader, intervals=5, baselines=(), ood=loader, validation=loader)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_surest_and_least_sure_inputs() -> None:
    la, (x, y) = classifier(), images(40, 5)
    found = pw.evaluate(la, [(x[:15], y[:15]), (x[15:], y[15:])], intervals=0, baselines=(), classes=["a", "b", "c"])
    probs = la.predict(x).probs
    order = probs.amax(-1).argsort(descending=True).tolist()
    assert [each.index for each in found.surest] == order[:8]
    assert [each.index for each in found.least_sure] == order[::-1][:8]
    one = found.surest[0]
    assert (one.label, one.predicted) == (int(y[one.index]), int(probs[one.index].argmax()))
    assert (one.confidence, one.uncertainty) == pytest.approx(
        (float(probs[one.index].max()), float(entropy(probs[one.index])))
    )
    shown = torch.tensor(one.image)
    assert shown.shape == (6, 6, 1)
    torch.testing.assert_close(shown[..., 0].double(), x[one.index, 0].cpu(), atol=3e-3, rtol=0)
    assert found.classes == ("a", "b", "c")


def test_inputs_that_are_sure_and_wrong_and_unknown_ones_that_are_sure() -> None:
    la, (x, y) = classifier(), images(40, 5)
    far = {"dark": x * 0.1, "light": 1 - 0.2 * x}
    found = pw.evaluate(la, [(x[:15], y[:15]), (x[15:], y[15:])], ood=far, intervals=0, baselines=())
    probs = la.predict(x).probs
    order = probs.amax(-1).argsort(descending=True).tolist()
    wrong = [index for index in order if int(probs[index].argmax()) != int(y[index])]
    assert [each.index for each in found.sure_wrong] == wrong[:8] and len(wrong) > 8
    assert all(each.label == int(y[each.index]) != each.predicted and not each.features for each in found.sure_wrong)
    for name, inputs in far.items():
        there = la.predict(inputs).probs
        one, order = found.unknown_surest[name][0], there.amax(-1).argsort(descending=True).tolist()
        assert [each.index for each in found.unknown_surest[name]] == order[:8]
        assert (one.label, one.predicted) == (None, int(there[one.index].argmax()))
        assert one.confidence == pytest.approx(float(there[one.index].max())) and one.image is not None


def test_the_best_constant_is_the_frequencies_of_the_classes() -> None:
    la, (x, y) = classifier(), images(40, 5)
    found = pw.evaluate(la, (x, y), intervals=20).constant
    shares = torch.bincount(y).double() / len(y)
    assert found["accuracy"].value == pytest.approx(float(shares.max()))
    assert found["nll"].value == pytest.approx(float(torch.special.entr(shares).sum()))
    assert found["brier"].value == pytest.approx(1 - float(shares.square().sum()))


def test_confidence_minus_accuracy_of_corrupted_inputs() -> None:
    la, (x, y) = classifier(), images(40, 5)
    found = pw.evaluate(la, (x, y), shifts={"dark": (lambda inputs, s: inputs / s, [2, 4])}, intervals=30)
    metrics = found.methods[0].shifts["dark"].metrics
    probs = la.predict(x / 4).probs
    excess = probs.amax(-1) - (probs.argmax(-1) == y).double()
    assert metrics["overconfidence"][2].value == pytest.approx(float(excess.mean()))
    for place in range(3):
        gap = metrics["confidence"][place].value - metrics["accuracy"][place].value
        assert metrics["overconfidence"][place].value == pytest.approx(gap)
        assert metrics["overconfidence"][place].low < gap < metrics["overconfidence"][place].high


def test_inputs_that_are_equally_sure_are_in_one_list_each() -> None:
    model = nn.Linear(2, 2, bias=False).double().to(DEVICE)
    nn.init.eye_(model.weight)
    x, y = torch.tensor([[1e4, 0.0]], dtype=torch.float64, device=DEVICE).repeat(40, 1), classes(2, 40).to(DEVICE)
    equal = pw.evaluate(model, (x, y), likelihood="classification", intervals=0)
    assert equal.surest == equal.least_sure == ()  # of all the same, none is surest
    x[30] = 0.0
    found = pw.evaluate(model, (x, y), likelihood="classification", intervals=0)
    assert [each.index for each in found.surest] == list(range(8))
    assert [each.index for each in found.least_sure] == [30, *range(8, 15)]
    noise = pw.evaluate(nn.Linear(2, 1).double().to(DEVICE), (x, x[:, :1]), likelihood="regression", intervals=0)
    assert noise.surest == noise.least_sure == ()


def test_strengths_are_explained_where_they_are_shares_of_a_range() -> None:
    la, (x, y) = classifier(), images(20, 5)
    for shifts, told in ((["noise"], True), (["blur"], False), ({"noise": lambda inputs, strength: inputs}, False)):
        found = pw.evaluate(la, (3 * x, y), shifts=shifts, intervals=0, baselines=())
        assert any("range of the inputs" in note for note in found.notes) == told


def test_large_and_normalised_images_are_shown_small_and_in_range() -> None:
    from peewit.evaluation.specimens import pixels_of

    made = torch.tensor(pixels_of(torch.randn(3, 200, 100), InputRange(-3.0, 3.0)))
    assert made.shape == (64, 32, 3) and float(made.min()) >= 0 and float(made.max()) <= 1
    assert pixels_of(torch.randn(5, 8, 8), InputRange(0.0, 1.0)) is None
    assert pixels_of(torch.randn(8), InputRange(0.0, 1.0)) is None


def test_very_many_classes_are_measured_without_what_takes_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    la, (x, y) = classifier(), images(20, 5)
    batches = [(x[:12], y[:12]), (x[12:], y[12:])]
    whole = pw.evaluate(la, batches, intervals=0, ood=x)
    monkeypatch.setattr("peewit.evaluation.gathering.PROBABILITIES", 40)
    monkeypatch.setattr("peewit.evaluation.scorers.MANY_CLASSES", 2)
    found = pw.evaluate(la, batches, intervals=0, ood=x)
    expected = numbers(whole.methods[0])
    expected.pop("ece_classwise")
    assert numbers(found.methods[0]) == expected
    assert set(found.methods[0].detection["ood"]) == {"confidence", "entropy", "epistemic_variance"}
    assert any("left out" in note for note in found.notes) and found.surest == whole.surest


def test_yes_or_no_labels_are_two_classes() -> None:
    x = normal(30, 4).to(DEVICE)
    y = classes(2, 30, 2).double().to(DEVICE)
    y[3, 1] = -1
    model = built(nn.Linear(4, 2)).to(DEVICE)
    la = pw.fit(model, (x, y), pw.Bernoulli(ignore_index=-1), prior=2.0)
    held = torch.bernoulli((2 * model(x).detach()).sigmoid())
    found = pw.evaluate(la, (x, y), intervals=10, validation=(x, held), ood=x * 2)
    for name, ones in (("Laplace", la.predict(x).probs), ("Plain network", model(x).detach().sigmoid())):
        both = torch.stack([1 - ones, ones], -1)[y != -1]
        assert numbers(found[name]) == pytest.approx(expected(both, y[y != -1].long()), rel=1e-6), name
    assert {"mutual_information", "epistemic_variance"} < set(found.methods[0].detection["ood"])
    logits = model(x).detach()

    def loss(log_temperature: float) -> float:
        return float(nn.functional.binary_cross_entropy_with_logits(logits / math.exp(log_temperature), held))

    best = math.exp(optimize.minimize_scalar(loss, bounds=(-4, 4), method="bounded", options={"xatol": 1e-10}).x)
    ones = (logits / best).sigmoid()
    both = torch.stack([1 - ones, ones], -1)[y != -1]
    assert numbers(found["Temperature scaling"]) == pytest.approx(expected(both, y[y != -1].long()), rel=1e-5)


def test_options_of_predictions_are_passed_on() -> None:
    la, (x, y) = classifier(), images(20, 5)
    found = pw.evaluate(la, (x, y), intervals=0, predict={"link": "bridge"}, baselines=())
    assert numbers(found.methods[0]) == pytest.approx(expected(la.predict(x, link="bridge").probs, y), rel=1e-6)
    assert found.settings["predict"] == {"link": "bridge"}
    sampled = pw.evaluate(la, (x, y), intervals=0, predict={"method": "sampled", "samples": 5}, baselines=(), ood=x)
    assert numbers(sampled.methods[0]) == pytest.approx(
        expected(la.predict(x, method="sampled", samples=5).probs, y), rel=1e-6
    )


def test_the_posterior_in_numbers() -> None:
    la = classifier().with_prior(pw.Prior.layerwise(2.0)).tune()
    found = pw.evaluate(la, images(10, 5), intervals=0)
    own = found.posterior
    evidence = la.evidence()
    assert own["log_evidence"] == pytest.approx(evidence.total)
    assert own["groups"] == list(evidence.groups) and own["prior_precision"] == pytest.approx(
        la.prior.precision.tolist()
    )
    assert sum(own["effective_dimensions"]) == pytest.approx(evidence.gamma)
    assert sum(own["group_weights"]) == la.D == sum(layer["weights"] for layer in own["layers"])
    means = [layer["variance_mean"] * layer["weights"] for layer in own["layers"]]
    assert sum(means) == pytest.approx(float(la.precision.variance().sum()))
    before = [1 / precision for precision in own["prior_precision"]]
    assert [layer["prior_variance"] for layer in own["layers"]] == pytest.approx(before)
    assert own["trace"]["values"] == list(la.trace.values)
    assert [row["parameter"] for row in found.coverage] == [row.name for row in la.coverage()]
    assert found.versions["peewit"] == pw.__version__ and found.settings["training examples"] == la.N


def test_the_package_stays_light() -> None:
    code = """
import sys, peewit as pw
ours = ("peewit.evaluation", "peewit.metrics", "peewit.figures")
loaded = [name for name in sys.modules if name.startswith(ours) or name.partition(".")[0] in
          ("optuna", "sklearn", "torchmetrics", "plotly", "scipy")]
assert loaded == [], loaded
assert callable(pw.evaluate) and callable(pw.metrics.ece)
from peewit.evaluation import evaluate, sweep
assert evaluate is pw.evaluate and sweep is pw.sweep
assert dir(pw) == sorted(pw.__all__) and {"evaluate", "figures", "metrics"} <= {*dir(pw)}
assert not [n for n in sys.modules if n.partition(".")[0] in ("optuna", "sklearn", "torchmetrics", "scipy")]
try:
    pw.evaluat
except AttributeError:
    print("fine")
"""
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert made.stdout == "fine\n", made.stderr
    assert "shifts" in inspect.signature(pw.evaluate).parameters
    with pytest.raises(TypeError, match=r"no option 'corruptions'"):
        pw.evaluate(classifier(), images(), corruptions="noise")


def test_a_posterior_over_single_elements() -> None:
    """Variances are of the elements that are uncertain, and a tensor without any is left out."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(DEVICE)
    masks = {name: torch.rand_like(parameter) > 0.5 for name, parameter in model.named_parameters()}
    masks["0.bias"][:] = False
    data = (torch.randn(30, 4, device=DEVICE), torch.randint(3, (30,), device=DEVICE))
    la = pw.fit(model, data, "classification", weights=masks, structure="diag")
    layers = pw.evaluate(la, data, intervals=0).posterior["layers"]
    chosen = {name: int(mask.sum()) for name, mask in masks.items() if mask.any()}
    assert {layer["name"]: layer["weights"] for layer in layers} == chosen
    places = iter(la.precision.variance().double().cpu().split(list(chosen.values())))
    assert [layer["variance_mean"] for layer in layers] == pytest.approx([float(each.mean()) for each in places])


def test_differences_from_the_method_asked_about() -> None:
    """Of every metric, from the sets that all methods are drawn on."""
    la, data = classifier(), images(40, 5)
    found = pw.evaluate(la, data, intervals=50, baselines="plain")
    first, base = found.methods
    assert not first.differences and base.differences.keys() == base.metrics.keys()
    for name, each in base.differences.items():
        assert each.value == pytest.approx(base.metrics[name].value - first.metrics[name].value)
        assert each.low <= each.value <= each.high
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    pair = (torch.randn(30, 2), torch.randn(30, 1))
    numbers, plain = pw.evaluate(pw.fit(net, pair, "regression"), pair, intervals=20, baselines="plain").methods
    away = [abs(each.metrics["coverage90"].value - 0.9) for each in (numbers, plain)]
    assert plain.differences["coverage90"].value == pytest.approx(away[1] - away[0])
    with_intervals = base.differences["nll"]
    assert with_intervals.high - with_intervals.low < 2 * (base.metrics["nll"].high - base.metrics["nll"].low)
    assert type(found).from_json(found.to_json()) == found


def test_temperature_has_the_smallest_loss() -> None:
    labels = torch.randint(4, (200,))
    logits = 4 * (torch.randn(200, 4) + torch.nn.functional.one_hot(labels, 4))
    found = best_temperature(logits.double(), labels)
    losses = [torch.nn.functional.cross_entropy(logits / (found * factor), labels) for factor in (0.95, 1.0, 1.05)]
    assert found > 1.5  # they are too sure
    assert losses[1] < min(losses[0], losses[2])
