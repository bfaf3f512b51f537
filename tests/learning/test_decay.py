"""What an optimizer's step gets of the prior: the gradient of its part of the objective, whoever computes the rest."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import peewit as pw

PRIORS = {
    "scalar": (pw.Prior.scalar(3.0), "kron"),
    "a mean": (pw.Prior.scalar(3.0, mean=0.5), "kron"),
    "means": (pw.Prior.layerwise([1.0, 2.0, 3.0, 4.0], mean=torch.linspace(-1, 1, 27)), "kron"),
    "unitwise": (pw.Prior.unitwise(torch.arange(1.0, 15.0)), "diag"),
    "diagonal": (pw.Prior.diagonal(torch.arange(1.0, 28.0)), "diag"),
    "groups": (pw.Prior.groups({"0.*": 2.0, "*": 9.0}), "kron"),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(15, 2, dtype=torch.float64, generator=generator), torch.arange(15) % 3


def dense_penalty(prior: pw.Prior, model: nn.Module, la: pw.Laplace, weights: Tensor, number: float) -> Tensor:
    """`1/2 sum delta_i (theta_i - mu_i)^2 / N`, weight by weight."""
    delta = prior.precision[prior.group(la.space)].double()
    mean = torch.as_tensor(prior.mean, dtype=torch.float64).expand(len(weights))
    return sum(0.5 * delta[i] * (weights[i] - mean[i]) ** 2 for i in range(len(weights))) / number


@pytest.mark.parametrize("name", PRIORS)
def test_the_hook_adds_the_gradient_of_the_dense_penalty(name: str) -> None:
    prior, structure = PRIORS[name]
    model, (x, y) = network(), data()
    la = pw.fit(model, (x, y), "classification", structure=structure, prior=prior)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    learner = pw.learning.Learner(model, (x, y), "classification", optimizer, prior=prior, structure=structure)
    weights = la.weights.requires_grad_()
    dense_penalty(prior, model, la, weights, 15.0).backward()
    assert torch.allclose(learner.penalty(), dense_penalty(prior, model, la, la.weights, 15.0))
    learner.loss(model(x), y).backward()
    plain = torch.cat([p.grad.flatten().clone() for p in model.parameters()])
    optimizer.step()
    step = la.weights - la.space.vector(model)
    assert torch.allclose(step, plain + weights.grad, atol=1e-12)


def one_step(way: str, decay: str) -> Tensor:
    """Weights after one step of the same objective, whose gradient comes in several ways."""
    model, (x, y) = network(), data()
    fused = way == "scaled, fused"
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=0.1, fused=fused
    )
    learner = pw.learning.Learner(
        model, (x, y), "classification", optimizer, prior=pw.Prior.layerwise([5.0, 4.0, 3.0, 2.0]), decay=decay
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = learner.loss(model(x), y) + (learner.penalty() if decay == "loss" else 0.0)
        loss.backward()
        return loss

    if way == "closure":
        optimizer.step(closure)
    elif way == "closure by name":
        optimizer.step(closure=closure)
    elif way.startswith("scaled"):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale(learner.loss(model(x), y) + (learner.penalty() if decay == "loss" else 0.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    elif way == "accumulated":
        for chosen in (slice(0, 5), slice(5, 15)):
            (learner.loss(model(x[chosen]), y[chosen]) * len(y[chosen]) / 15).backward()
        if decay == "loss":
            learner.penalty().backward()
        optimizer.step()
    else:
        closure()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("decay", ["coupled", "decoupled", "loss"])
@pytest.mark.parametrize("way", ["closure", "closure by name", "scaled", "scaled, fused", "accumulated"])
def test_every_way_to_step_is_the_same_step(way: str, decay: str) -> None:
    """With plain SGD the two decays and the penalty in the loss are the same, too."""
    assert torch.allclose(one_step(way, decay), one_step("plain", "coupled"), atol=1e-9)


def test_weights_without_a_gradient_stay() -> None:
    model, (x, y) = network(), data()
    model[2].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = pw.learning.Learner(model, (x, y), "classification", optimizer, prior=100.0)
    before = model[2].bias.clone()
    optimizer.zero_grad()
    optimizer.step()
    assert torch.equal(model[2].bias, before)
    learner.loss(model(x), y).backward()
    optimizer.step()
    assert torch.equal(model[2].bias, before)


def test_unused_weights_have_no_part_in_it() -> None:
    model = network()
    model.register_parameter("idle", nn.Parameter(torch.ones(3, dtype=torch.float64)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    learner = pw.learning.Learner(
        model, data(), "classification", optimizer, prior=pw.Prior.layerwise(2.0), structure="full"
    )
    record = learner.step()
    assert record.precision[0] == pytest.approx(2.0)  # the idle one stands first, and the data say nothing of it
    assert record.effective_dimensions[0] == 0
    assert (record.precision[1:] != 2.0).all()
    assert learner.posterior().D == 27


def test_several_optimizers_share_one_learner() -> None:
    model, (x, y) = network(), data()
    several = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.SGD(model[2].parameters(), lr=0.1)]
    learner = pw.learning.Learner(
        model, (x, y), "classification", several, prior=pw.Prior.layerwise([5.0, 4.0, 3.0, 2.0])
    )
    learner.loss(model(x), y).backward()
    for optimizer in several:
        optimizer.step()
    assert torch.allclose(torch.cat([p.detach().flatten() for p in model.parameters()]), one_step("plain", "coupled"))


def test_an_optimizer_that_is_given_twice_pulls_once() -> None:
    model, (x, y) = network(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    prior = pw.Prior.layerwise([5.0, 4.0, 3.0, 2.0])
    learner = pw.learning.Learner(model, (x, y), "classification", [optimizer, optimizer], prior=prior)
    learner.loss(model(x), y).backward()
    optimizer.step()
    assert torch.allclose(torch.cat([p.detach().flatten() for p in model.parameters()]), one_step("plain", "coupled"))


def test_an_optimizer_that_climbs_has_the_prior_with_the_other_sign() -> None:
    model, (x, y) = network(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, maximize=True)
    prior = pw.Prior.layerwise([5.0, 4.0, 3.0, 2.0])
    learner = pw.learning.Learner(model, (x, y), "classification", optimizer, prior=prior)
    (-learner.loss(model(x), y)).backward()
    optimizer.step()
    assert torch.allclose(torch.cat([p.detach().flatten() for p in model.parameters()]), one_step("plain", "coupled"))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD])
def test_a_step_that_a_scaler_leaves_out_moves_nothing(kind: type[torch.optim.Optimizer], fused: bool) -> None:
    model, (x, y) = network().float(), data()
    optimizer = kind(model.parameters(), lr=0.1, fused=fused)
    if kind is torch.optim.AdamW:
        optimizer.param_groups[0]["weight_decay"] = 0.0
    learner = pw.learning.Learner(model, (x.float(), y), "classification", optimizer, prior=50.0)
    before = [p.detach().clone() for p in model.parameters()]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(learner.loss(model(x.float()), y) * torch.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(old, p) for old, p in zip(before, model.parameters(), strict=True))


def test_a_run_whose_prior_is_in_the_loss_follows_it() -> None:
    sizes = {}
    for decay in ("coupled", "loss"):
        model, (x, y) = network(), data()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        options = {"prior": 200.0, "rate": 0.0, "epochs": 20, "batch_size": 15, "decay": decay}
        pw.learning.train(model, (x, y), "classification", optimizer, **options).finish()
        sizes[decay] = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert torch.allclose(sizes["coupled"], sizes["loss"], atol=1e-10)
    assert float(sizes["loss"].norm()) < 0.5
