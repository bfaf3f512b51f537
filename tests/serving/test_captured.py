"""Predictors with a CUDA graph give what `la.predict` gives; what cannot be captured is refused, and harms nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE
from fitting import classes, normal
from tables import moved

LABELS = classes(3, 7)


def perceptron() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def convolutional() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 3),
    )  # fmt: skip


def attentive() -> nn.Module:
    torch.manual_seed(1)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.Sequential(encoder, nn.Flatten(), nn.Linear(40, 3))


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "perceptron": (perceptron, (4,)), "convolutional": (convolutional, (2, 8, 8)), "attentive": (attentive, (5, 8)),
}  # fmt: skip


def posterior(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> tuple[pw.Laplace, Tensor]:
    make, shape = NETWORKS[name]
    model = make().to(DEVICE, dtype)
    x = moved(normal(7, *shape).to(dtype))
    return pw.fit(model, (x, moved(LABELS)), "classification", **options), x


def assert_near(found: Any, expected: Any) -> None:
    for name in ("probs", "epistemic", "output_mean", "output_variance"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=2e-3, atol=2e-4)


@pytest.mark.skipif(DEVICE == "cuda", reason="what a CPU says")
def test_a_graph_needs_a_gpu() -> None:
    la, x = posterior("perceptron", weights="last_layer")
    with pytest.raises(pw.PeewitError, match="cuda_graph=True with inputs on cpu; expected a network and inputs on a"):
        la.predictor(x, cuda_graph=True)


@pytest.mark.cuda
@pytest.mark.parametrize("structure", ["kron", "diag", "ekfac"])
@pytest.mark.parametrize("weights", ["last_layer", "all"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_graph_gives_the_same_numbers(name: str, weights: str, structure: str) -> None:
    """At other inputs than those of the capture, again and again, and at other numbers of them."""
    la, x = posterior(name, weights=weights, structure=structure)
    predictor = la.predictor(x[:1], cuda_graph=True)
    assert predictor.how.endswith("1 at a time as a CUDA graph")
    first = predictor(x[:1])
    kept = first.probs.clone()
    for number in range(7):
        assert_near(predictor(x[number : number + 1]), la.predict(x[number : number + 1]))
    assert_near(predictor(x), la.predict(x))
    assert torch.equal(first.probs, kept)  # results are the caller's own


@pytest.mark.cuda
@pytest.mark.parametrize("link", ["bridge", "mc"])
@pytest.mark.parametrize("structure", ["kron", "full"])
def test_links_of_a_graph(structure: str, link: str) -> None:
    la, x = posterior("perceptron", weights="last_layer", structure=structure)
    assert_near(la.predictor(x[:2], link=link, cuda_graph=True)(x[2:4]), la.predict(x[2:4], link=link))


@pytest.mark.cuda
def test_threads_and_streams_share_a_graph() -> None:
    la, x = posterior("convolutional")
    predictor = la.predictor(x[:1], cuda_graph=True)
    expected = la.predict(x).probs
    streams = [torch.cuda.Stream() for _ in range(6)]
    torch.cuda.synchronize()

    def ask(number: int) -> float:
        with torch.cuda.stream(streams[number % 6]):
            chosen = number % 7
            probs = predictor(x[chosen : chosen + 1]).probs
            return float((probs - expected[chosen : chosen + 1]).abs().max())

    with ThreadPoolExecutor(6) as pool:
        assert max(pool.map(ask, range(120))) < 2e-3


class Waits(nn.Module):
    """A network with a branch that depends on the numbers."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.last, self.how = nn.Linear(4, 6), nn.Linear(6, 3), how

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        if self.how == "branch" and float(hidden.detach().sum()) > 1e9:
            return hidden
        if self.how == "copy":
            hidden = hidden + hidden.detach().cpu().mul(0).to(hidden.device)
        return self.last(hidden)


@pytest.mark.cuda
@pytest.mark.parametrize("weights", ["last_layer", "all"])
@pytest.mark.parametrize("how", ["branch", "copy"])
def test_networks_that_wait_are_refused(how: str, weights: str) -> None:
    model = Waits(how).to(DEVICE)
    x = moved(normal(7, 4).float())
    la = pw.fit(model, (x, moved(LABELS)), "classification", weights=weights)
    with pytest.raises(
        pw.PeewitError, match=r"waits for the GPU, or copies to it or from it, in .*Leave cuda_graph out"
    ):
        la.predictor(x[:1], cuda_graph=True)
    torch.rand(3, device=DEVICE)  # random numbers and kernels are as before
    assert_near(la.predictor(x[:1])(x), la.predict(x))


@pytest.mark.cuda
@pytest.mark.parametrize("options", [{"method": "sampled"}, {"joint": True, "link": "mc"}])
def test_ways_without_a_graph_are_refused(options: dict[str, Any]) -> None:
    la, x = posterior("perceptron")
    with pytest.raises(pw.PeewitError, match="cannot be captured"):
        la.predictor(x[:1], cuda_graph=True, **options)
