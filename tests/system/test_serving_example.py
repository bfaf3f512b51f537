"""The HTTP example answers as `la.predict` does, over real HTTP on this machine."""

from __future__ import annotations

import http.client
import importlib
import json
import math
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import peewit as pw
from environment import ROOT

pytest.importorskip("fastapi")
uvicorn = pytest.importorskip("uvicorn")

FOLDER = ROOT / "examples" / "serving"


class Service(NamedTuple):
    """What is served, and where."""

    posterior: pw.Laplace
    flagged: dict[str, float]
    port: int
    folder: Path
    load: ModuleType


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The example on a free port of this machine, trained in a few steps."""
    folder = tmp_path_factory.mktemp("serving") / "served"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        train, app, load = (importlib.import_module(name) for name in ("train", "app", "load"))
        la, flagged = train.main(folder, images=1500, epochs=4)
        config = uvicorn.Config(app.make_app(folder, workers=2), port=0, log_level="error", ws="none", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        until = time.monotonic() + 60
        while not server.started and thread.is_alive() and time.monotonic() < until:
            time.sleep(0.02)
        assert server.started
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Service(la, flagged, port, folder, load)
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
    for path in FOLDER.glob("*.py"):
        sys.modules.pop(path.stem, None)


def ask(service: Service, method: str, path: str, body: str | None = None) -> tuple[int, Any]:
    """Status and answer of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def images(number: int) -> Tensor:
    """Test images; the last classes are among them, which the network has never seen."""
    return pw.data.fashion_mnist()[1][0][:number]


def test_answers_are_those_of_predict(service: Service) -> None:
    x = images(60)
    status, answer = ask(service, "POST", "/predict", json.dumps({"images": x[:, 0].tolist()}))
    assert status == 200
    expected, threshold = service.posterior.predict(x), answer["threshold"]["value"]
    assert isinstance(expected, pw.Classes)
    rows = answer["predictions"]
    probs = torch.tensor([list(row["probs"].values()) for row in rows])
    epistemic = torch.tensor([row["epistemic"] for row in rows])
    torch.testing.assert_close(probs, expected.probs, rtol=0.0, atol=1e-5)
    torch.testing.assert_close(epistemic, expected.epistemic, rtol=0.0, atol=1e-5)
    assert [row["class"] for row in rows] == [pw.data.FASHION_MNIST_CLASSES[each] for each in expected.argmax]
    assert [row["unknown"] for row in rows] == (epistemic > threshold).tolist()
    assert {row["unknown"] for row in rows} == {True, False}
    assert "95% quantile" in answer["threshold"]["rule"]


def test_the_threshold_is_that_of_validation_images(service: Service) -> None:
    """About one usual image of twenty is above it, and more of those that are unknown."""
    (_, _), (x, y) = pw.data.fashion_mnist()
    epistemic = service.posterior.predict(x[y < 8][:1000]).epistemic
    stored = json.loads((service.folder / "threshold.json").read_text())["value"]
    assert stored == pytest.approx(float(epistemic.quantile(0.95)), rel=1e-5)
    assert 0.01 < service.flagged["usual"] < 0.12 < 2 * service.flagged["unknown"]


BAD: dict[str, tuple[str, str]] = {
    "shape": (json.dumps({"images": [[[0.0] * 27] * 28]}), "have shape (1, 28, 27); expected ('N', 28, 28)"),
    "none": (json.dumps({"images": []}), "have shape (0,); expected"),
    "NaN": (json.dumps({"images": [[[math.nan] * 28] * 28]}), "hold NaN or Inf; expected numbers between 0 and 1"),
    "huge": ('{"images": [[[1e999]]]}', "hold NaN or Inf"),
    "ragged": ('{"images": [[[1, 2], [3]]]}', "are not numbers in rows of one length"),
    "text": ('{"images": [["a"]]}', "are not numbers in rows of one length"),
    "many": (json.dumps({"images": [0] * 65}), "65 images were given; expected at most 64"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_get_a_sentence(service: Service, name: str) -> None:
    body, words = BAD[name]
    status, answer = ask(service, "POST", "/predict", body)
    assert status == 422 and words in answer["detail"]


def test_bodies_that_are_none(service: Service) -> None:
    for body in ('{"pictures": []}', "no json"):
        assert ask(service, "POST", "/predict", body)[0] == 422


def test_a_service_under_load(service: Service) -> None:
    """A bounded number of requests from several clients, each with its answer."""
    bodies = [json.dumps({"images": [image.tolist()]}).encode() for image in images(10)[:, 0]]
    found = service.load.ask(service.port, bodies, requests=60, clients=3, seconds=30)
    assert found["requests"] == 60 and 0 < found["p50"] <= found["p95"] <= found["p99"]
    with pytest.raises(SystemExit, match=r"requests failed, the first with: 422"):
        service.load.ask(service.port, [b"{}"], requests=2, clients=1, seconds=30)
    assert service.load.ask(service.port, bodies, requests=10**6, clients=2, seconds=0.3)["requests"] < 10**5


def test_health(service: Service) -> None:
    """The network in the service is its own: what happens to another copy does not matter."""
    assert ask(service, "GET", "/health") == (200, {"status": "ok", "predictions": "the last layer in closed form"})


def test_health_of_a_network_that_changed(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(_: pw.Predictor) -> None:
        raise pw.MismatchError("the network has changed")

    monkeypatch.setattr(pw.Predictor, "check", changed)
    assert ask(service, "GET", "/health") == (503, {"detail": "the network has changed"})
