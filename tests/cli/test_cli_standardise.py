"""`--standardise`: networks of standardised columns with tables in their own units."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import peewit as pw

pytest.importorskip("typer", reason="no typer")

from commands import furnished, run, write_csv
from peewit.network.scaling import Scaling, Standardised

pytestmark = pytest.mark.filterwarnings("default:.*not used:UserWarning")  # printed as notes

MODULE = """
from torch import nn

def net(outputs=1):
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs))
"""
SHIFT, SCALE = torch.tensor([100.0, -3.0, 7.0]), torch.tensor([20.0, 0.1, 1.0])
FIT = "fit -m NET:net -w net.pt -l regression --train train.csv --standardise -o made.safetensors"
USE = "-m NET:net -w net.pt -p made.safetensors"
FEW = "--set evaluate.intervals=5"


def network(outputs: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs))


def trained(outputs: int, z: Tensor, t: Tensor) -> nn.Sequential:
    """A network of standardised columns, its last input of one value."""
    torch.manual_seed(0)
    net = network(outputs)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(300):
        optimiser.zero_grad()
        nn.functional.mse_loss(net(z), t).backward()
        optimiser.step()
    return net


class Table:
    """Raw columns x (80, 3) and targets y in thousands, with their standardised forms z and t."""

    def __init__(self, outputs: int) -> None:
        generator = torch.Generator().manual_seed(0)
        normal = torch.randn(80, 3, generator=generator)
        normal[:, 2] = 0
        self.x = SHIFT + SCALE * normal
        signs = torch.tensor([[1.0, 1.0], [1.0, -1.0], [0.0, 0.0]])[:, :outputs]
        noise = 0.1 * torch.randn(80, outputs, generator=generator)
        self.y = torch.tensor([5000.0, -2.0])[:outputs] + torch.tensor([800.0, 0.5])[:outputs] * (
            normal @ signs + noise
        )
        self.mean, self.deviation = self.y.mean(0), self.y.std(0, correction=0)
        self.z = (self.x - self.x.mean(0)) / torch.where(torch.arange(3) < 2, self.x.std(0, correction=0), 1.0)
        self.t = (self.y - self.mean) / self.deviation
        self.net = trained(outputs, self.z, self.t)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for module in furnished(tmp_path, monkeypatch):
        (tmp_path / f"{module}_scaled.py").write_text(MODULE)
        yield f"{module}_scaled"


def written(outputs: int = 1) -> Table:
    """The table and the weights as files."""
    table = Table(outputs)
    rows = torch.cat([table.x, table.y], 1).tolist()
    targets = ["price", "rate"][:outputs]
    write_csv(Path("train.csv"), ["a", "b", "c", *targets], [list(row) for row in rows])
    write_csv(Path("new.csv"), ["c", "a", "b"], [[row[2], row[0], row[1]] for row in rows[:9]])
    torch.save(table.net.state_dict(), "net.pt")
    return table


def test_predictions_are_in_the_units_of_the_targets(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As the same posterior of standardised columns gives them, scaled back by hand."""
    table = written()
    assert run(f"{FIT} --json", place, anyway=False) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["standardised"] == ["inputs", "targets"]
    assert told["noise"] == pytest.approx(float(table.deviation), rel=1e-4)
    wanted = pw.fit(table.net, (table.z, table.t), "regression").predict(table.z[:9])
    assert run(f"predict {USE} --data new.csv --level 0.9 -o p.csv -q", place) == 0
    with open("p.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    low, high = wanted.interval(0.9)
    for name, standardised in (("mean", wanted.mean), ("lower", low), ("upper", high)):
        scaled = (table.mean + table.deviation * standardised)[:, 0].tolist()
        assert [float(row[name]) for row in rows] == pytest.approx(scaled, rel=1e-4), name
    deviations = (table.deviation * wanted.variance.sqrt())[:, 0].tolist()
    assert [float(row["deviation"]) for row in rows] == pytest.approx(deviations, rel=1e-3)


@pytest.mark.parametrize("extra", ["", "--set fit.weights=last_layer", "--weights 2", "--set fit.weights=['2']"])
def test_every_command_uses_the_scaling(extra: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Tuned, measured and diagnosed; NLL and RMSE are those of the targets' units."""
    table = written()
    assert run(f"{FIT} {extra} -q", place, anyway=False) == 0
    inside = "all" if not extra else "last_layer"
    la = pw.fit(table.net, (table.z, table.t), "regression", weights=inside).tune()
    assert run(f"tune {USE} -o made.safetensors -q", place) == 0
    capsys.readouterr()
    assert run(f"evaluate {USE} --test train.csv {FEW} --json", place) == 0
    method = next(each for each in json.loads(capsys.readouterr().out)["methods"] if "Laplace" in each["name"])
    prediction = la.predict(table.z)
    rmse = float((prediction.mean - table.t).square().mean().sqrt() * table.deviation)
    nll = -float(prediction.log_prob(table.t).mean() - table.deviation.log())
    assert method["metrics"]["rmse"]["value"] == pytest.approx(rmse, rel=1e-3)
    assert method["metrics"]["nll"]["value"] == pytest.approx(nll, abs=2e-2)
    assert run(f"diagnose {USE} --train train.csv --json", place) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert findings[0]["topic"] == "fit" and findings[0]["severity"] == "fine"


def test_several_targets_have_their_own_units(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = written(2)
    given = f"{FIT} --set arguments.outputs=2 --target price --target rate --tune --json"
    assert run(given, place, anyway=False) == 0
    noise = json.loads(capsys.readouterr().out)["noise"]
    assert noise[0] / noise[1] == pytest.approx(float(table.deviation[0] / table.deviation[1]), rel=1e-4)
    assert run(f"predict {USE} --set arguments.outputs=2 --data new.csv -o p.npz -q", place) == 0
    mean = table.mean + table.deviation * table.net(table.z[:9]).detach()
    with numpy.load("p.npz") as arrays:
        numpy.testing.assert_allclose(arrays["mean"], mean.numpy(), rtol=1e-3)


def test_python_takes_raw_columns_too(place: str) -> None:
    """`pw.load` puts the scaling around the network, and the schema names it: nothing is silently in other units."""
    table = written()
    assert run(f"{FIT} -q", place, anyway=False) == 0
    la = pw.load("made.safetensors", table.net)
    assert la.schema is not None and la.schema.scaling == Scaling.of(table.x, table.y)
    assert isinstance(la.model, Standardised) and la.model.network is table.net
    mean = table.mean + table.deviation * table.net(table.z).detach()
    torch.testing.assert_close(la.predict(table.x).mean, mean, rtol=1e-4, atol=0)
    la.tune().save("again.safetensors")
    for net in (table.net, la.model):
        again = pw.load("again.safetensors", net)
        torch.testing.assert_close(again.predict(table.x).mean, mean, rtol=1e-4, atol=0)
    with pytest.raises(ValueError, match=r"expected \(N, 3\), as in the table"):
        la.predict(table.x[:, :1])


def test_inputs_alone(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """For targets that were raw in training, and for classes."""
    table = written()
    table.net[2].weight.data *= table.deviation
    table.net[2].bias.data = table.mean + table.deviation * table.net[2].bias.data
    torch.save(table.net.state_dict(), "net.pt")
    assert run(f"{FIT} --json", place, anyway=False) == 2
    assert "worse than a constant" in capsys.readouterr().err
    assert run(f"{FIT} --no-standardise --set standardise=inputs --json", place, anyway=False) == 2
    capsys.readouterr()
    given = FIT.replace("--standardise", "--set standardise=inputs")
    assert run(f"{given} --json", place, anyway=False) == 0
    assert json.loads(capsys.readouterr().out)["standardised"] == ["inputs"]
    rows = [[*row, "yes" if row[0] > 100 else "no"] for row in table.x.tolist()]
    write_csv(Path("words.csv"), ["a", "b", "c", "class"], rows)
    common = "-m NET:net -w c.safetensors --set arguments.outputs=2"
    torch.manual_seed(0)
    save_file(
        trained(2, table.z, nn.functional.one_hot((table.x[:, 0] > 100).long(), 2) * 4.0).state_dict(), "c.safetensors"
    )
    given = f"fit {common} -l classification --train words.csv --standardise -q"
    assert run(given, place, anyway=False) == 0
    assert run(f"predict {common} -p posterior.safetensors --data words.csv -o p.csv -q", place) == 0
    with open("p.csv", newline="") as file:
        right = [row["predicted"] == raw[-1] for row, raw in zip(csv.DictReader(file), rows, strict=True)]
    assert sum(right) > 75


def test_an_ensemble_and_a_recommendation(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights of others go into the network inside; the best recipe keeps the scaling."""
    table = written()
    other = trained(1, table.z.flip(0), table.t.flip(0))
    torch.save(other.state_dict(), "other.pt")
    assert run(f"{FIT} -q", place, anyway=False) == 0
    capsys.readouterr()
    given = f"evaluate {USE} --test train.csv {FEW} --ensemble other.pt --json"
    assert run(given, place) == 0
    methods = {each["name"]: each["metrics"] for each in json.loads(capsys.readouterr().out)["methods"]}
    mean = (table.net(table.z) + other(table.z)).detach() / 2
    rmse = float((mean - table.t).square().mean().sqrt() * table.deviation)
    assert methods["Deep ensemble"]["rmse"]["value"] == pytest.approx(rmse, rel=1e-3)
    given = "recommend -m NET:net -w net.pt -l regression --train train.csv --standardise -o best.safetensors"
    assert run(given, place, anyway=False) == 0
    assert "with its scaling" in capsys.readouterr().out
    schema = pw.load("best.safetensors", table.net).schema
    assert schema is not None and schema.scaling is not None and schema.scaling.parts == ("inputs", "targets")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("fit -m BASE:images -l classification --train pixels.npz --standardise", "is not a table of numbers"),
        ("fit -m BASE:classifier -l classification --train BASE:batches --standardise", "is not a table of numbers"),
        ("fit -m BASE:pair -l heteroscedastic --train numbers.csv --standardise", "--set standardise=inputs"),
        (
            "fit -m BASE:regressor -l regression --train numbers.csv --set standardise=targets",
            "expected true, false or",
        ),
        ("evaluate -m BASE:regressor -l regression --test numbers.csv --set standardise=true", "kept by a posterior"),
    ],
)
def test_refusals(given: str, words: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    numpy.savez("pixels.npz", x=numpy.zeros((4, 3, 4, 4), dtype="float32"), y=numpy.array([0, 1, 0, 1]))
    assert run(given.replace("BASE", place.removesuffix("_scaled")), place) == 2
    told = capsys.readouterr().err
    assert words in told and told.count("\n") == 1


@pytest.mark.parametrize("outputs", [1, 3])
def test_outputs_that_are_not_those_of_the_targets(
    outputs: int, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is broadcast: one output is not that of two targets."""
    written(2)
    torch.save(network(outputs).state_dict(), "other.pt")
    given = FIT.replace("net.pt", "other.pt")
    given = f"{given} --set arguments.outputs={outputs} --target price --target rate"
    assert run(given, place) == 2
    assert f"outputs are of shape (80, {outputs}); expected (N, 2), one for each" in capsys.readouterr().err


def test_columns_of_one_value_are_only_shifted() -> None:
    scaling = Scaling.of(torch.tensor([[0.1, 1.0], [0.1, 3.0], [0.1, 5.0]]), None)
    assert scaling.input_deviations == pytest.approx((1.0, (8 / 3) ** 0.5)) and scaling.target_means == ()
    assert Scaling.of(torch.full((7, 1), 0.1, dtype=torch.float64), None).input_means == (0.1,)
    for means, deviations in (((1.0,), (0.0,)), ((1.0,), ()), ((float("nan"),), (1.0,))):
        with pytest.raises(pw.PeewitError, match="deviations above zero"):
            Scaling(means, deviations)
