"""Labels that are shifted by one position, as causal language models shift them, against dense loops in float64."""

from __future__ import annotations

import copy
import math
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import peewit as pw
import reference_dense as dense
from environment import DEVICE
from fitting import built, classes, names_of, seeded, weights_of
from tables import moved, relative

TOKENS, LENGTH, PRIOR = 5, 4, 0.7
EXACT = 1e-8
Batch = dict[str, Tensor]


class Next(nn.Module):
    """Predicts the next token from the mean of those so far; computes its own loss as causal language models do."""

    def __init__(self, shifts: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 3)
        self.head = nn.Linear(3, TOKENS)
        self.shifts = shifts

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        """Logits (N, T, C), and the loss where there are labels."""
        h = self.embed(input_ids)
        steps = torch.arange(1, h.shape[1] + 1, device=h.device, dtype=h.dtype)
        logits = self.head(torch.tanh(2 * h.cumsum(1) / steps[:, None]))
        if labels is None:
            return SimpleNamespace(logits=logits)
        f, y = (logits[:, :-1], labels[:, 1:]) if self.shifts else (logits, labels)
        return SimpleNamespace(logits=logits, loss=F.cross_entropy(f.flatten(0, 1), y.flatten()))


def network(shifts: bool = True, seed: int = 3) -> Next:
    """In float64, with weights that are not small."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return built(Next(shifts))


def tokens(count: int, seed: int = 1) -> Batch:
    """Inputs that are their own labels; the last tokens of one example have none."""
    ids = classes(TOKENS, count, LENGTH, seed=seed)
    labels = ids.clone()
    labels[0, 2:] = -100
    return {"input_ids": ids, "labels": labels}


def following(labels: Tensor) -> Tensor:
    """(N, T): the label of the next position, by a loop."""
    result = torch.full_like(labels, -100)
    for n in range(len(labels)):
        for t in range(LENGTH - 1):
            result[n, t] = labels[n, t + 1]
    return result


class Reference:
    """The posterior with shifted labels by dense loops."""

    def __init__(self, model: Next, batch: Batch, prior: float = PRIOR) -> None:
        self.model = Plain(model)
        names = [f"model.{name}" for name in names_of(model)]
        x, y = batch["input_ids"], following(batch["labels"])
        self.names, self.theta = names, weights_of(model)
        self.delta = torch.full_like(self.theta, prior)
        self.curvature = dense.ggn(self.model, x, y, "classification", names)
        self.log_likelihood = -dense.energy(self.model, x, y, "classification")

    @property
    def evidence(self) -> Tensor:
        """()."""
        zeros = torch.zeros_like(self.theta)
        return dense.log_evidence(self.log_likelihood, self.curvature, self.theta, zeros, self.delta)

    def probs(self, ids: Tensor) -> Tensor:
        """(N, T, C) by the probit, from variances alone."""
        j = dense.jacobian(self.model, ids, self.names)
        covariance = dense.functional_covariance(j, dense.posterior(self.curvature, self.delta))
        variance = covariance.diagonal(dim1=1, dim2=2).reshape(len(ids), LENGTH, TOKENS)
        f = dense.outputs(self.model, ids)
        return (f / (1 + math.pi / 8 * variance).sqrt()).softmax(-1)

    def nll(self, batch: Batch) -> float:
        """The mean over labels that follow."""
        probs, y = self.probs(batch["input_ids"]), following(batch["labels"])
        logs = [probs[n, t, y[n, t]].log() for n in range(len(y)) for t in range(LENGTH) if y[n, t] >= 0]
        return -float(sum(logs)) / len(logs)


class Plain(nn.Module):
    """The logits alone, as the reference has them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)

    def forward(self, ids: Tensor) -> Tensor:
        """(N, T, C)."""
        logits: Tensor = self.model(ids).logits
        return logits


def fitted(model: nn.Module, batches: list[Batch], **options: Any) -> pw.Laplace:
    """A full posterior; nothing says that labels are shifted but the network's own loss."""
    options = {"structure": "full", "curvature": "ggn", "prior": PRIOR, **options}
    return pw.fit(copy.deepcopy(model).to(DEVICE), [moved(batch) for batch in batches], "classification", **options)


def test_fit_and_evidence() -> None:
    """Curvature, log likelihood and evidence; labels count where they follow."""
    model, batch = network(), tokens(5)
    la, expected = fitted(model, [batch]), Reference(model, batch)
    assert la.likelihood == pw.Categorical(shift=True)
    inverse = la.precision.solve(torch.eye(la.D, dtype=torch.float64, device=DEVICE)).cpu()
    assert relative(inverse, dense.posterior(expected.curvature, expected.delta)) < EXACT
    assert relative(la.log_evidence().cpu(), expected.evidence) < EXACT
    assert la.state.totals.scalars == int((following(batch["labels"]) >= 0).sum())


def test_predict() -> None:
    """Outputs at every position, the last one too, which says what comes next."""
    model, batch, new = network(), tokens(5), classes(TOKENS, 3, LENGTH, seed=8)
    la, expected = fitted(model, [batch]), Reference(model, batch)
    pred = la.predict(moved(new))
    assert isinstance(pred, pw.Classes)
    assert relative(pred.probs.cpu(), expected.probs(new)) < 1e-6
    y = following(new)
    logs = expected.probs(new).log()
    total = torch.stack([sum(logs[n, t, y[n, t]] for t in range(LENGTH - 1)) for n in range(len(new))])
    assert relative(pred.log_prob(moved(new)).reshape(3, -1).sum(1).cpu(), total) < 1e-6


def test_evaluate() -> None:
    """The NLL of a report, of the posterior and of the plain network."""
    model, batch, new = network(), tokens(5), tokens(6, seed=9)
    la = fitted(model, [batch])
    report = pw.evaluate(la, [moved(new)], baselines="plain")
    assert report.methods[0].metrics["nll"].value == pytest.approx(Reference(model, batch).nll(new), rel=1e-6)
    with torch.no_grad():
        own = float(model(**new).loss)
    assert report.methods[1].metrics["nll"].value == pytest.approx(own, rel=1e-6)
    alone = pw.evaluate(copy.deepcopy(model).to(DEVICE), [moved(new)], likelihood="classification")
    assert alone.methods[0].metrics["nll"].value == pytest.approx(own, rel=1e-6)


def likely(model: Next, count: int) -> Batch:
    """Tokens that are drawn from the network, at twice its temperature."""
    ids = classes(TOKENS, count, LENGTH, seed=6)
    generator = seeded(9)
    for t in range(1, LENGTH):
        with torch.no_grad():
            probs = (model(ids).logits[:, t - 1] / 2).softmax(-1)
        # Not by torch.multinomial, which draws others in other versions of torch.
        drawn = torch.rand(count, 1, generator=generator, dtype=torch.float64, device="cpu")
        ids[:, t] = (probs.double().cpu().cumsum(-1) < drawn).sum(-1).clamp(max=TOKENS - 1)
    return {"input_ids": ids, "labels": ids.clone()}


def likeliest(model: Next, count: int) -> Batch:
    """Every token is the likeliest one of a network made sure; labels are the next tokens, the last one unknown."""
    with torch.no_grad():
        model.head.weight.mul_(20)
    ids = classes(TOKENS, count, LENGTH, seed=6)
    for t in range(1, LENGTH):
        with torch.no_grad():
            ids[:, t] = model(ids).logits[:, t - 1].argmax(-1)
    return {"input_ids": ids, "labels": following(ids)}


def test_tune_on_validation_data() -> None:
    """The precision that is chosen has the least NLL of labels that follow."""
    model = network()
    batch, new, priors = likely(model, 30), likely(model, 9), [0.001, 0.05, 0.3, 2.0, 12.0]
    la = fitted(model, [batch])
    tuned = la.tune("grid", validation=[moved(new)], grid=priors)
    scores = {prior: Reference(model, batch, prior).nll(new) for prior in priors}
    assert float(tuned.prior.precision) == min(scores, key=lambda prior: scores[prior])
    free = la.tune(validation=[moved(new)])
    assert Reference(model, batch, float(free.prior.precision)).nll(new) < min(scores.values()) + 1e-3


def test_update_and_files(tmp_path: Path) -> None:
    """Later data are shifted too, also after a file."""
    model, first, second = network(), tokens(4), tokens(3, seed=5)
    both = {name: torch.cat([first[name], second[name]]) for name in first}
    la = fitted(model, [first])
    la.save(tmp_path / "la.safetensors")
    loaded = pw.load(tmp_path / "la.safetensors", copy.deepcopy(la.model))
    assert loaded.likelihood == pw.Categorical(shift=True)
    for posterior in (la.update([moved(second)]), loaded.update([moved(second)])):
        assert relative(posterior.log_evidence().cpu(), Reference(model, both).evidence) < EXACT


@pytest.mark.parametrize("structure", ["kron", "diag", "ekfac"])
def test_structures_agree_with_labels_shifted_by_hand(structure: str) -> None:
    """The same fit as of a network without a loss to labels that were moved before."""
    model, batch = network(), tokens(5)
    by_hand = {"input_ids": batch["input_ids"], "labels": following(batch["labels"])}
    la = fitted(model, [batch], structure=structure)
    pair = (moved(by_hand["input_ids"]), moved(by_hand["labels"]))
    given = pw.fit(
        Plain(model).to(DEVICE),
        pair,
        pw.Categorical(shift=False),
        structure=structure,
        curvature="ggn",
        prior=PRIOR,
    )
    assert relative(la.log_evidence(), given.log_evidence()) < EXACT


def test_nothing_is_shifted_where_the_loss_is_not() -> None:
    """Taggers have labels of the same shape."""
    model, batch = network(shifts=False), tokens(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        la = fitted(model, [batch])
    assert la.likelihood == pw.Categorical(shift=False)
    expected = dense.energy(Plain(model), batch["input_ids"], batch["labels"], "classification")
    assert la.state.totals.energy == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize(("outputs", "labels"), [((6, 3), (6,)), ((6, 3, 4, 4), (6, 4, 4))])
def test_shift_needs_tokens(outputs: tuple[int, ...], labels: tuple[int, ...]) -> None:
    """Labels without an order are refused, with the shapes."""
    with pytest.raises(pw.PeewitError, match=r"shift=True\).*expected outputs \(N, T, C\)"):
        pw.Categorical(shift=True).form(torch.zeros(outputs), torch.zeros(labels, dtype=torch.long))


def test_pairs_are_shifted_too() -> None:
    """Inputs and labels apart, of a network that computes a loss."""
    model, batch = network(), tokens(5)
    la = pw.fit(
        copy.deepcopy(model).to(DEVICE),
        (moved(batch["input_ids"]), moved(batch["labels"])),
        "classification",
        structure="full",
        curvature="ggn",
        prior=PRIOR,
    )
    assert relative(la.log_evidence().cpu(), Reference(model, batch).evidence) < EXACT


@pytest.mark.parametrize("pair", [False, True], ids=["batch", "pair"])
@pytest.mark.parametrize("last", [-100, 2], ids=["no last label", "a last label"])
def test_labels_that_were_shifted_by_hand_are_not_shifted_again(pair: bool, last: int) -> None:
    """Labels are the next tokens already: nothing is said where they are the likelier ones."""
    model = network()
    batch = likeliest(model, 30)
    batch["labels"][:, -1] = last
    data: Any = moved(batch)
    data = (data["input_ids"], data["labels"]) if pair else [data]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        la = pw.fit(copy.deepcopy(model).to(DEVICE), data, "classification", structure="diag")
    assert la.likelihood == pw.Categorical(shift=False)
    expected = dense.energy(Plain(model), batch["input_ids"], batch["labels"], "classification")
    assert la.state.totals.energy == pytest.approx(float(expected), rel=1e-9)


def test_a_network_that_learnt_labels_shifted_twice_is_named() -> None:
    """Its own loss is the lower one."""
    model = network()
    batch = likeliest(model, 30)
    plain = model.forward

    def lower(input_ids: Tensor, labels: Tensor | None = None) -> Any:
        result = plain(input_ids, labels)
        return result if labels is None else SimpleNamespace(logits=result.logits, loss=1e-3 * result.loss)

    model.forward = lower  # type: ignore[method-assign]
    with pytest.warns(UserWarning, match="own loss on its first examples is 0.*expected the same"):
        la = pw.fit(model.to(DEVICE), [moved(batch)], "classification", structure="diag")
    assert la.likelihood == pw.Categorical(shift=False)


class NextForCausalLM(Next):
    """The same under a name that says what it predicts."""


def test_one_token_throughout_is_no_shift_by_hand() -> None:
    """Its labels are the inputs and the next inputs, and both losses are equal: the name of the class decides."""
    ids = torch.full((6, LENGTH), 3)
    la = fitted(built(NextForCausalLM()), [{"input_ids": ids, "labels": ids}])
    assert la.likelihood == pw.Categorical(shift=True)
    with pytest.warns(pw.FitWarning, match="The labels are the inputs themselves"):
        la = fitted(network(), [{"input_ids": ids, "labels": ids}])
    assert la.likelihood == pw.Categorical()


@pytest.mark.parametrize("shifts", [True, False])
def test_losses_that_are_close_are_told_apart(shifts: bool) -> None:
    """An untrained network is about as surprised at every token; its own loss is exactly one of both."""
    model = network(shifts)
    with torch.no_grad():
        model.head.weight *= 1e-4
        model.head.bias *= 0
    ids = classes(TOKENS, 6, LENGTH)
    assert fitted(model, [{"input_ids": ids, "labels": ids}]).likelihood == pw.Categorical(shift=shifts)


def test_products_are_shifted_too() -> None:
    """Matrix-free products of the same curvature."""
    model, batch = network(), tokens(5)
    v = torch.linspace(-1, 1, len(weights_of(model)), dtype=torch.float64)
    products = pw.products(copy.deepcopy(model).to(DEVICE), [moved(batch)], "classification")
    assert relative(products.mv(v.to(DEVICE)).cpu(), Reference(model, batch).curvature @ v) < EXACT
