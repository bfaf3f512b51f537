"""Predictors give what `la.predict` gives: over networks, likelihoods, structures and links, from several threads."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn

import peewit as pw
from cases import BY_NAME, CASES
from environment import DEVICE
from fitting import built, classes, fitted, normal
from likelihood_cases import CASES as LIKELIHOODS
from likelihood_cases import LikelihoodCase
from peewit.likelihoods import NAMES, Form
from peewit.network.nests import take
from peewit.predictions.families import FAMILIES, family_of, make_prediction
from peewit.predictions.prediction import LinkName
from peewit.runtime.memory import budget
from peewit.serving.last_layer import DeferredOutputs
from snapshots import same, snapshot
from tables import moved

CLOSED = "the last layer in closed form"
RECORDED = "recorded passes"
WHOLE = "as la.predict, one call at a time"
NUMBERS = ("probs", "mean", "epistemic", "aleatoric", "output_mean", "output_variance", "covariance")


def assert_equal(found: pw.Prediction, expected: pw.Prediction, bound: float = 1e-9) -> None:
    """All that both say, in float64, to rounding."""
    assert type(found) is type(expected) and len(found) == len(expected)
    for name in NUMBERS:
        if hasattr(expected, name):
            value, wanted = getattr(found, name), getattr(expected, name)
            assert value.shape == wanted.shape and value.dtype == wanted.dtype, name
            scale = float(wanted.abs().max()) + 1e-3
            assert float((value - wanted).abs().max()) <= bound * scale, name


def compare(la: pw.Laplace, x: Any, **options: Any) -> pw.Predictor:
    """For a predictor that has seen one input: another one, and all inputs."""
    predictor = la.predictor(take(x, slice(0, 1)), **options)
    for chosen in (slice(1, 2), slice(None)):
        some = take(x, chosen)
        assert_equal(predictor(some), la.predict(some, **options))
    return predictor


@pytest.mark.filterwarnings("ignore::UserWarning")  # about classes of either axis, and weights beside the last layer
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_the_last_layer_of_every_network(name: str) -> None:
    model, x, y = BY_NAME[name].make(4)
    try:
        la = fitted(model, x, y, BY_NAME[name].likelihood, weights="last_layer")
    except pw.PeewitError as refused:
        pytest.skip(str(refused))
    compare(la, moved(x))


SEVERAL = (
    "scalar_output", "inplace_mlp", "train_mode", "frozen_bias", "unused_layer", "lora_parameters", "borrowed_weight",
    "matrix_product", "conv2d_groups", "segmentation", "weight_norm", "called_twice", "tied_gpt",
    "mapping_input", "several_inputs", "time_major_flat", "experts", "embedding_padding",
    "self_attention", "encoder_layer", "lstm", "checkpoint",
)  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL)
def test_all_weights(name: str) -> None:
    model, x, y = BY_NAME[name].make(4)
    compare(fitted(model, x, y, BY_NAME[name].likelihood), moved(x))


@pytest.mark.parametrize("case", LIKELIHOODS, ids=lambda case: case.name)
def test_every_likelihood(case: LikelihoodCase) -> None:
    """With every link that it has."""
    la = fitted(case.model, case.x, case.y, case.likelihood, weights="last_layer")
    for link in family_of(la.likelihood).links:
        try:
            la.predict(moved(case.x), link=link)
        except pw.PeewitError:  # all positions of an example together, whose covariance is not kept
            with pytest.raises(pw.PeewitError):
                la.predictor(moved(case.x), link=link)
            continue
        compare(la, moved(case.x), link=link)


def network(outputs: int = 3, bias: bool = True, *after: nn.Module) -> nn.Module:
    """A perceptron whose last linear layer may have something behind it."""
    torch.manual_seed(1)
    return built(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs, bias=bias), *after))


LABELS = classes(3, 7)
STRUCTURES: dict[str, Any] = {
    "kron": "kron", "joint": pw.Kron(bias="joint"), "ekfac": "ekfac", "diag": "diag", "block": "block", "full": "full",
}  # fmt: skip


@pytest.mark.parametrize("link", ["probit", "bridge", "bridge_normalised", "mc"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_structures_and_links(structure: str, link: str) -> None:
    la = fitted(network(), normal(7, 4), LABELS, "classification", STRUCTURES[structure], weights="last_layer")
    assert compare(la, moved(normal(5, 4, seed=8)), link=link).how == CLOSED


@pytest.mark.parametrize("weights", [["2.bias"], ["2.weight"], "some"], ids=str)
@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_parts_of_the_last_layer(structure: str, weights: Any) -> None:
    """Weights or biases alone, and some elements."""
    if weights == "some":
        if structure == "kron":
            pytest.skip("masks need diag or full")
        weights = {"2.weight": moved(torch.rand(3, 6, generator=torch.Generator().manual_seed(3)) > 0.5)}
    la = fitted(network(), normal(7, 4), LABELS, "classification", structure, weights=weights)
    compare(la, moved(normal(5, 4, seed=8)))


@pytest.mark.parametrize("prior", ["scalar", "layerwise", "diagonal"])
def test_priors(prior: str) -> None:
    """Precisions of a weight and its bias that differ, and of all weights."""
    structure = "full" if prior == "diagonal" else "kron"
    la = fitted(network(), normal(7, 4), LABELS, "classification", structure, weights="last_layer")
    sizes = {"scalar": 1, "layerwise": 2, "diagonal": la.D}
    values = moved(torch.linspace(0.5, 4.0, sizes[prior], dtype=torch.float64))
    assert compare(la.with_prior(pw.Prior(prior, values)), moved(normal(5, 4, seed=8))).how == CLOSED


@pytest.mark.parametrize("structure", ["kron", "full"])
def test_regression_without_an_axis_of_outputs(structure: str) -> None:
    """`squeeze` behind the last layer, as regressions have it; with noise."""
    model = network(1, True, nn.Flatten(0))
    la = fitted(model, normal(7, 4), normal(7, seed=2), pw.Gaussian(0.3), structure, weights="last_layer")
    predictor = compare(la, moved(normal(5, 4, seed=8)))
    assert predictor.how == CLOSED
    pred = predictor(moved(normal(5, 4, seed=8)))
    assert pred.interval(0.9)[0].shape == (5,) and pred.log_prob(moved(normal(5))).shape == (5,)


OTHERS = [{"joint": True, "link": "mc"}, {"method": "sampled", "samples": 5}, {"at": "linear_mode"}]


@pytest.mark.parametrize("weights", ["last_layer", "all"])
@pytest.mark.parametrize("options", OTHERS, ids=lambda options: next(iter(options)))
def test_other_ways_to_predict(options: dict[str, Any], weights: str) -> None:
    x, y = normal(7, 4), LABELS
    la = fitted(network(), x, y, "classification", weights=weights)
    if "at" in options:
        la = la.at_linear_mode((moved(x), moved(y)))
    compare(la, moved(normal(5, 4, seed=8)), **options)


def test_many_outputs() -> None:
    """Exact variances of a last layer, also in parts that fit the budget."""
    torch.manual_seed(0)
    model = built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 300)))
    x, y = normal(6, 3), classes(300, 6)
    la = fitted(model, x, y, "classification", "diag", weights="last_layer", curvature="empirical")
    for memory in (None, 1e4):
        predictor = la.predictor(moved(x[:1]), memory=memory)
        assert predictor.how == CLOSED
        found, expected = predictor(moved(x)), la.predict(moved(x))
        torch.testing.assert_close(found.probs, expected.probs)
        torch.testing.assert_close(found.output_variance, expected.output_variance)


def test_threads() -> None:
    """Many at once, beside `la.predict` in another thread: each gets what it asked for."""
    inputs = [moved(normal(1 + number % 3, 4, seed=number)) for number in range(48)]
    for weights in ("last_layer", "all"):
        la = fitted(network(), normal(7, 4), LABELS, "classification", weights=weights)
        predictor = la.predictor(inputs[0])
        expected = [la.predict(x) for x in inputs]
        start = threading.Barrier(8)

        def ask(number: int, predictor: pw.Predictor = predictor, start: threading.Barrier = start) -> pw.Prediction:
            if number < 8:
                start.wait()
            return predictor(inputs[number])

        with ThreadPoolExecutor(9) as pool:
            beside = pool.submit(lambda la=la: [la.predict(x).probs for x in inputs[:8]])
            found = list(pool.map(ask, range(len(inputs))))
        assert len(beside.result()) == 8
        for prediction, wanted in zip(found, expected, strict=True):
            assert_equal(prediction, wanted)


def test_the_network_is_left_alone() -> None:
    """Mode, flags, gradients, hooks and weights are as they were, and the caller's modes change nothing."""
    la = fitted(network(), normal(7, 4), LABELS, "classification", weights="last_layer")
    la.model.train()
    la.model[0].weight.requires_grad_(False)
    la.model[2].bias.grad = torch.ones_like(la.model[2].bias)
    before = snapshot(la.model)
    x = moved(normal(5, 4, seed=8))
    predictor = la.predictor(x)
    expected = la.predict(x)
    with torch.inference_mode(), torch.autocast(DEVICE, dtype=torch.bfloat16):
        inside = predictor(x)
    assert not inside.probs.is_inference() and not inside.probs.requires_grad
    assert_equal(inside, expected)
    assert_equal(predictor(x.clone().requires_grad_()), expected)
    assert same(before, snapshot(la.model)) and "forward" not in vars(la.model[2])


def test_a_changed_network_is_refused_when_asked() -> None:
    """The copies share the memory of the weights: predictions go on with what they are now."""
    la = fitted(network(), normal(7, 4), LABELS, "classification", weights="last_layer")
    x = moved(normal(5, 4, seed=8))
    predictor = la.predictor(x)
    predictor.check()
    with torch.no_grad():
        la.model[0].weight.mul_(1.5)
        torch.testing.assert_close(predictor(x).output_mean, la.model(x))
    for ask in (predictor.check, lambda: la.predictor(x)):
        with pytest.raises(pw.MismatchError, match="no longer those it was fitted with"):
            ask()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x[0], r"are \(N\) float64; this predictor was made for \(N, 4\) float64.*x\[None\]"),
        (lambda x: x.long(), r"\(N, 4\) int64"),
        (lambda x: (x, x), r"0: \(N, 4\) float64 and 1: \(N, 4\)"),
        (lambda x: x[:0], "no examples"),
        (lambda x: x[:, :3], r"\(N, 3\)"),
        (lambda x: "text", "x is a str"),
    ],
    ids=["one", "dtype", "two", "none", "shape", "text"],
)
def test_other_kinds_of_inputs(change: Any, words: str) -> None:
    la = fitted(network(), normal(7, 4), LABELS, "classification", weights="last_layer")
    x = moved(normal(5, 4, seed=8))
    predictor = la.predictor(x)
    with pytest.raises(pw.PeewitError, match=words):
        predictor(change(x))


class Odd(nn.Module):
    """Does in its forward pass what copies for several threads cannot share."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.first, self.last, self.what, self.calls = nn.Linear(4, 6), nn.Linear(6, 3), what, 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        if self.what == "count":
            self.calls += 1
        if self.what == "buffer":
            self.seen += 1
        if self.what == "random":
            torch.rand(1, device=x.device)
        if self.what == "checkpoint":
            hidden = torch.utils.checkpoint.checkpoint(torch.tanh, hidden, use_reentrant=False)
        return self.last(hidden)


@pytest.mark.parametrize("what", ["count", "buffer", "random", "checkpoint", "lock"])
@pytest.mark.parametrize("weights", ["last_layer", "all"])
def test_networks_that_are_asked_one_call_at_a_time(what: str, weights: str) -> None:
    torch.manual_seed(2)
    model = built(Odd(what)).to(DEVICE)
    if what == "lock":
        model.lock = threading.Lock()  # cannot be copied
    la = pw.fit(model, (moved(normal(7, 4)), moved(LABELS)), "classification", weights=weights, curvature="ggn")
    before = snapshot(model)
    assert compare(la, moved(normal(5, 4, seed=8))).how == WHOLE
    assert same(before, snapshot(model))


def test_a_last_layer_that_cannot_be_watched() -> None:
    """No module applies it: passes are recorded, on copies."""
    model, x, y = BY_NAME["functional_head"].make(4)
    assert compare(fitted(model, x, y, "classification", weights="last_layer"), moved(x)).how == RECORDED


def test_words() -> None:
    la = fitted(network(), normal(7, 4), LABELS, "classification")
    words = "Predictor(Categorical, link='probit', (N, 4) float64: recorded passes)"
    assert repr(la.predictor(moved(normal(1, 4)))) == words or DEVICE != "cpu"


@pytest.mark.cuda
@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_no_waiting_for_the_device(structure: str) -> None:
    model = network().float().to(DEVICE)
    x = moved(normal(7, 4).float())
    la = pw.fit(model, (x, moved(LABELS)), "classification", weights="last_layer", structure=structure)
    predictor = la.predictor(x)
    expected = predictor(x).probs
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = predictor(x).probs
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found, expected)


def test_labels_of_a_batch_are_left_out() -> None:
    """As `la.predict` leaves them out."""
    model, x, y = BY_NAME["mapping_input"].make(4)
    la = fitted(model, x, y, "classification", weights="last_layer")
    batch = {**moved(x), "labels": moved(y)}
    predictor = la.predictor(batch)
    assert_equal(predictor(batch), la.predict(batch))
    assert_equal(predictor(moved(x)), la.predict(batch))


@pytest.mark.parametrize("weights", ["last_layer", "all"])
def test_rewards_of_pairs_and_of_single_inputs(weights: str) -> None:
    """Pairs have probabilities, single inputs rewards; one is not asked for the other."""
    torch.manual_seed(3)
    model = built(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1, bias=False)))
    la = pw.fit(model, pw.Pair(moved(normal(7, 4)), moved(normal(7, 4, seed=5))), "preference", weights=weights)
    pairs = pw.Pair(moved(normal(5, 4, seed=8)), moved(normal(5, 4, seed=9)))
    predictor = compare(la, pairs)
    assert_equal(predictor(pw.Pair(*(each[:2] for each in pairs))), la.predict(pw.Pair(*(each[:2] for each in pairs))))
    single = compare(la, pairs.first)
    for asked, x in ((predictor, pairs.first), (single, pairs)):
        with pytest.raises(pw.MismatchError, match="first of a pair"):
            asked(x)


def test_inputs_by_name_in_any_order() -> None:
    model, x, y = BY_NAME["several_inputs"].make(4)
    la = fitted(model, x, y, BY_NAME["several_inputs"].likelihood)
    compare(la, moved(x))  # a tuple
    model, x, y = BY_NAME["mapping_input"].make(4)
    la = fitted(model, x, y, "classification", weights="last_layer")
    batch = {**moved(x), "labels": moved(y)}
    predictor = la.predictor(**batch)
    expected = la.predict(moved(x))
    for found in (predictor(**batch), predictor(dict(reversed(batch.items())))):
        assert_equal(found, expected)
    with pytest.raises(pw.PeewitError, match=r"predictor was given x and also .*; expected predictor\(x\)"):
        predictor(batch, **batch)
    for call, name in ((la.predictor, "la.predictor"), (predictor, "predictor")):
        with pytest.raises(pw.PeewitError, match=rf"x is a NoneType.*as in {name}\(x\)"):
            call()


def test_recorded_passes_give_the_same_bits() -> None:
    la = fitted(network(), normal(7, 4), LABELS, "classification")
    predictor = la.predictor(moved(normal(1, 4)))
    for x in (moved(normal(1, 4, seed=8)), moved(normal(6, 4, seed=9))):
        found, expected = predictor(x), la.predict(x)
        assert torch.equal(found.probs, expected.probs) and torch.equal(found.covariance, expected.covariance)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy, copy.copy])
def test_predictors_stay_in_their_process(copied: Any) -> None:
    la = fitted(network(), normal(7, 4), LABELS, "classification", weights="last_layer")
    with pytest.raises(pw.PeewitError, match=r"cannot be pickled or copied.*la\.save\(path\)"):
        copied(la.predictor(moved(normal(1, 4))))


@pytest.mark.parametrize("weights", ["last_layer", "all"])
def test_nobody_looks_at_what_is_not_finite(weights: str) -> None:
    """Looking waits for the device; other examples have their numbers."""
    la = fitted(network(), normal(7, 4), LABELS, "classification", weights=weights)
    x = moved(normal(3, 4, seed=8))
    predictor, expected = la.predictor(x), la.predict(x[1:])
    x[0, 0] = torch.nan
    found = predictor(x).probs
    assert bool(found[0].isnan().all())
    torch.testing.assert_close(found[1:], expected.probs)


class Picky(nn.Module):
    """Fails in the middle of a pass for some numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        output = self.last(torch.tanh(self.first(x)))
        if float(x.detach()[0, 0]) > 100:
            raise OverflowError("too hot")
        return output


@pytest.mark.parametrize("weights", ["last_layer", "all"])
def test_a_pass_that_fails_leaves_nothing_behind(weights: str) -> None:
    torch.manual_seed(2)
    la = pw.fit(built(Picky()), (moved(normal(7, 4)), moved(LABELS)), "classification", weights=weights)
    x = moved(normal(3, 4, seed=8))
    predictor = la.predictor(x)
    for _ in range(3):
        with pytest.raises(OverflowError, match="too hot"):
            predictor(x + 200)
        assert_equal(predictor(x), la.predict(x))


class TimeMajor(nn.Module):
    """Its layers see times first and examples second."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x.transpose(0, 1)))).transpose(0, 1)


@pytest.mark.filterwarnings("ignore:The class axis")
@pytest.mark.parametrize("number", [1, 2, 5])  # five times, too
def test_times_first(number: int) -> None:
    torch.manual_seed(2)
    likelihood = pw.Categorical(axis=2)
    la = pw.fit(built(TimeMajor()), (moved(normal(7, 5, 4)), moved(classes(3, 7, 5))), likelihood, weights="last_layer")
    x = moved(normal(6, 5, 4, seed=8))
    predictor = la.predictor(x[:number])
    for some in (x[:1], x[:5], x):
        assert_equal(predictor(some), la.predict(some))


def test_weights_that_are_replaced_do_not_arrive() -> None:
    """As the reference says; `check` does."""
    la = fitted(network(), normal(7, 4), LABELS, "classification", weights="last_layer")
    x = moved(normal(5, 4, seed=8))
    predictor, before = la.predictor(x), la.predict(x)
    la.model[2].weight = nn.Parameter(torch.zeros_like(la.model[2].weight))
    assert_equal(predictor(x), before)
    with pytest.raises(pw.MismatchError, match="no longer those it was fitted with"):
        predictor.check()


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(("family", "link"), [(family, link) for family, row in FAMILIES.items() for link in row.links])
def test_links_that_take_variances_alone(family: str, link: LinkName, outputs: int) -> None:
    """As their rows say: labels come without the covariances, which would be expensive."""
    likelihood = next((kind() for kind in NAMES.values() if kind().link_family == family), None)
    if likelihood is None or (family, outputs) == ("categorical", 1):
        return
    if outputs > FAMILIES[family].links[link].by_variance:
        return

    def whole() -> Any:
        raise AssertionError("the covariances were asked for")

    mean = normal(5, 1, outputs)
    form, limit = Form(0, (outputs,)), budget(None, mean.device)
    belief = DeferredOutputs(
        form=form, budget=limit, centre=mean, points=64, seed=1, blocks=None, now=mean.square(), later=whole
    )
    labels = make_prediction(belief, likelihood, link)
    assert bool(torch.isfinite(labels.probs if hasattr(labels, "probs") else labels.variance).all())
