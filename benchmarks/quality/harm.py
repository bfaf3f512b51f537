"""What training data tell of harm: `python -m benchmarks.quality.harm --data DIR`; without --data it prints.

The recipe without validation data leaves some networks worse than they were. Here are networks like those of the
benchmark's tables, more of them and trained apart, each with the NLL of the recipe less the plain network's, its own
standard error over the test examples, what validation data would gain, and all that `tune(train=...)` could look at.
The numbers are in `harm.json`; a table that is there with all splits is not measured again.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import peewit as pw
from benchmarks.quality import batchnorm
from benchmarks.quality.answers import BATCH, noise_of, outputs
from benchmarks.quality.batchnorm import Read, lines, read_results, split_of
from benchmarks.quality.board import HALVES
from benchmarks.quality.cases import Examples, Half, Likelihood, Parts
from benchmarks.quality.cells import number
from benchmarks.quality.goals import EQUAL, WARNED
from benchmarks.quality.scores import WIDTH, detection, paired_error
from benchmarks.quality.store import rounded
from benchmarks.quality.tables import RECIPES, TRAININGS, uci, uci_classes
from benchmarks.quality.tasks import BY_NAME
from benchmarks.quality.training import Recipe, train_perceptrons
from benchmarks.tables import Row, Table, markdown
from peewit.diagnostics.noise import FAR

RESULTS = Path(__file__).with_name("harm.json")
SPLITS, LARGE = 10, 3  # of each table; of those with many examples
CLASSES: Likelihood = "classification"
NUMBERS: Likelihood = "regression"
TABLES: Mapping[Likelihood, Mapping[str, Read]] = {
    CLASSES: {**batchnorm.TABLES[CLASSES], "satellite": uci_classes("satellite")},
    NUMBERS: {**batchnorm.TABLES[NUMBERS], "kin8nm": uci("kin8nm"), "power": uci("power")},
}
GAIN = 0.1  # nats that validation data gain, from which on it would have been good to know
ALL = "all of them, by logistic regression"
MOST = 0.999  # of a leverage
SIZES = "Runs that got worse, of networks trained apart"
SIGNALS: Mapping[Likelihood, str] = {CLASSES: "Signals of harm, classes", NUMBERS: "Signals of harm, numbers"}
LEGEND = (
    "AUROC: how often a run that got worse has the signal more than one that improved; 0.5 is chance. Which way a "
    "signal points, and the limit that one in ten of the improved runs exceeds, come from the half to choose on. "
    "Caught are runs that got worse beyond the limit, with their share of the summed harm. The last column is for the "
    f"other question, whether validation data gain more than {GAIN:g} nats: there a high value of the signal counts."
)
EXPLAINED = {
    SIZES: "Errors are standard errors over the test examples of the paired difference, each run its own. Validation "
    f"gains {GAIN:g} where the recipe's NLL is so much above that of tuning on validation data. `la.diagnose` calls a "
    f"noise of {FAR:g} times the training residuals a problem.",
    SIGNALS[NUMBERS]: LEGEND,
}
Record = dict[str, Any]
Judge = Callable[[Record], bool]


def nlls(la: pw.Laplace, examples: Examples) -> Tensor:
    """(N,) of the predictive."""
    pieces = zip(*(part.split(BATCH) for part in examples), strict=True)
    return torch.cat([-la.predict(x).log_prob(y).double().reshape(len(x), -1).sum(1) for x, y in pieces])


def plain_nlls(model: nn.Module, parts: Parts, examples: Examples, likelihood: Likelihood) -> Tensor:
    """(N,) of the network; for numbers with the noise of its training residuals."""
    answers = outputs(model, examples[0]).double()
    if likelihood == CLASSES:
        return F.cross_entropy(answers, examples[1], reduction="none")
    density = torch.distributions.Normal(answers, noise_of(model, parts.train))
    return -density.log_prob(examples[1].double()).sum(1)


def measure(model: nn.Module, parts: Parts, likelihood: Likelihood) -> Record:
    """Harm, its error, what validation data gain, and the signals."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = pw.fit(model, parts.train, likelihood)
        la = fitted.tune(train=parts.train)
    told = [str(each.message).split(":")[0] for each in caught if issubclass(each.category, pw.TuningWarning)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        validated = fitted.tune("validation", validation=parts.validation)
    own, plain = nlls(la, parts.test), plain_nlls(model, parts, parts.test, likelihood)
    lost = float((nlls(la, parts.train) - plain_nlls(model, parts, parts.train, likelihood)).mean())
    more = signs_of_classes(la, model, parts) if likelihood == CLASSES else signs_of_numbers(la, parts)
    return {
        "likelihood": likelihood,
        "harm": float((own - plain).mean()),
        "error": paired_error(own, plain),
        "gain": float((own - nlls(validated, parts.test)).mean()),
        "warned": told,
        "signals": {
            "effective dimensions per label": la.evidence().gamma / la.N,
            "logarithm of the prior precision": float(la.prior.precision.log().mean()),
            "NLL of the training data less the network's": lost,
            **more,
        },
    }


def signs_of_classes(la: pw.Laplace, model: nn.Module, parts: Parts) -> dict[str, float]:
    """Accuracy and confidence on the training data, and how far the precision was raised."""
    x, y = parts.train
    answers = outputs(model, x).double()
    right = float((answers.argmax(1) == y).double().mean())
    sure = float(torch.cat([la.predict(piece).probs.amax(1) for piece in x.split(BATCH)]).double().mean())
    assert la.trace is not None
    return {
        "NLL of the training data by the network": float(F.cross_entropy(answers, y)),
        "training error": 1 - right,
        "training accuracy less mean confidence": right - sure,
        "logarithm of the factor that raised the precision": math.log(la.trace.raised),
    }


def signs_of_numbers(la: pw.Laplace, parts: Parts) -> dict[str, float]:
    """The noise beside residuals and targets, intervals of the training targets, and each predicted without itself."""
    x, y = parts.train
    predictions = [la.predict(piece) for piece in x.split(BATCH)]
    mean, variance, epistemic = (
        torch.cat([getattr(each, name) for each in predictions]).double() for name in ("mean", "variance", "epistemic")
    )
    assert isinstance(la.likelihood, pw.Gaussian)
    noise, residual = float(la.likelihood.noise), y.double() - mean
    size = float(residual.square().mean().sqrt())
    z = residual.square() / variance
    leverage = (epistemic / noise**2).clamp(max=MOST)
    without, spread = residual / (1 - leverage), noise**2 / (1 - leverage)
    own = without.square() / spread + spread.log()
    plain = without.square() / size**2 + 2 * math.log(size)
    return {
        "noise over residuals": noise / size,
        "noise over the targets' deviation": noise / float(y.double().std()),
        "training targets in 90 % intervals": float((z <= WIDTH**2).double().mean()),
        "squared standardised residuals": float(z.mean()),
        "leave-one-out NLL less the network's": 0.5 * float((own - plain).mean()),
    }


def half_of(key: str) -> Half:
    """Of a case."""
    return BY_NAME[key.split("/")[0]].half


def cases(data: Path, splits: int, done: Mapping[str, Record]) -> Iterator[tuple[str, Record]]:
    """Train and measure the tables that are not done, all splits of a table at once."""
    for likelihood, tables in TABLES.items():
        for task, read in tables.items():
            own = range(min(splits, LARGE if task in RECIPES else BY_NAME[task].splits))
            if all(f"{task}/{training}/{split}" in done for training in TRAININGS for split in own):
                continue
            found = [split_of(read(data), likelihood, split) for split in own]
            parts = [each for each, _ in found]
            networks = train_perceptrons(
                [each.train for each in parts],
                [each.stop for each in parts],
                [1000 * split for split in own],
                [0.0 for _ in own],
                found[0][1],
                likelihood,
                RECIPES.get(task, Recipe()),
            )
            for training, trained in zip(TRAININGS, networks, strict=True):
                for split in own:
                    yield f"{task}/{training}/{split}", measure(trained[split], parts[split], likelihood)


# --- tables


def worse(record: Record) -> bool:
    """Whether the NLL is above the plain network's."""
    return bool(record["harm"] > EQUAL)


def improved(record: Record) -> bool:
    return bool(record["harm"] < 0)


def gains(record: Record) -> bool:
    """Whether validation data would have been worth having."""
    return bool(record["gain"] > GAIN)


def noisy(record: Record) -> bool:
    """Whether `la.diagnose` calls the noise a problem."""
    return bool(record["signals"].get("noise over residuals", 0.0) > FAR)


def of(results: Mapping[str, Record], likelihood: str, half: str | None = None) -> list[Record]:
    """Records of a likelihood, and of a half if one is named."""
    return [
        record for key, record in results.items() if record["likelihood"] == likelihood and half in (None, half_of(key))
    ]


def area(records: Sequence[Record], signal: str, judge: Judge, others: Judge) -> float | None:
    """How often a record that `judge` picks has the higher signal than one of the others; None without any."""
    high, low = ([record["signals"][signal] for record in records if chosen(record)] for chosen in (judge, others))
    return detection(torch.tensor(low), torch.tensor(high)) if high and low else None


def with_all(records: Sequence[Record], fitted: Sequence[Record]) -> list[Record]:
    """With one more signal: a logistic regression, fitted to some records, on the ranks of all signals among these."""
    known = [record for record in fitted if worse(record) or improved(record)]
    table = torch.tensor([list(record["signals"].values()) for record in fitted], dtype=torch.float64).sort(0).values

    def ranks(found: Sequence[Record]) -> Tensor:
        values = torch.tensor([list(record["signals"].values()) for record in found], dtype=torch.float64)
        places = torch.searchsorted(table.T.contiguous(), values.T.contiguous(), right=True).T
        return places.double() / len(table) - 0.5

    x, y = ranks(known), torch.tensor([worse(record) for record in known], dtype=torch.float64)
    weights = torch.zeros(x.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")
    balance = torch.where(y > 0, (1 - y).sum() / y.sum().clamp(min=1), 1.0)

    def loss() -> Tensor:
        search.zero_grad()
        lost = F.binary_cross_entropy_with_logits(x @ weights[:-1] + weights[-1], y, balance)
        value = lost + weights[:-1].square().sum() / len(x)
        torch.autograd.backward([value])
        return value

    search.step(loss)
    scores = (ranks(records) @ weights[:-1]).tolist()
    return [
        {**record, "signals": {**record["signals"], ALL: score}} for record, score in zip(records, scores, strict=True)
    ]


def bound(records: Sequence[Record], signal: str, sign: int) -> float:
    """The value that at most one in ten of the runs that improved exceeds."""
    values = sorted((sign * record["signals"][signal] for record in records if improved(record)), reverse=True)
    return float(values[int(WARNED * len(values))])


def caught(records: Sequence[Record], signal: str, sign: int, limit: float) -> tuple[str, str]:
    """Runs that got worse beyond a limit with their share of all harm, and the share of improved runs there."""
    harmed, better = ([record for record in records if chosen(record)] for chosen in (worse, improved))
    beyond = [record for record in harmed if sign * record["signals"][signal] > limit]
    alarms = sum(sign * record["signals"][signal] > limit for record in better)
    share = sum(record["harm"] for record in beyond) / max(sum(record["harm"] for record in harmed), 1e-12)
    return f"{len(beyond)} of {len(harmed)} ({share:.0%})", f"{alarms / len(better):.1%}" if better else ""


def signal_table(results: Mapping[str, Record], likelihood: str, title: str) -> Table:
    """A row per signal: which way it points and where its limit is comes from the half to choose on."""
    fitted = of(results, likelihood, "choose")
    choose, confirm, both = (
        with_all(own, fitted) if own and fitted else own
        for own in (of(results, likelihood, half) for half in ("choose", "confirm", None))
    )
    rows: list[Row] = []
    for signal in both[0]["signals"] if both else ():
        first = area(choose, signal, worse, improved)
        if first is None:
            continue
        sign = 1 if first >= 0.5 else -1
        limit = bound(choose, signal, sign)
        harmed, alarms = caught(confirm, signal, sign, limit)
        rows.append(
            (
                signal,
                "high" if sign > 0 else "low",
                number(pointed(first, sign), 2),
                number(pointed(area(confirm, signal, worse, improved), sign), 2),
                caught(choose, signal, sign, limit)[0],
                harmed,
                alarms,
                number(area(both, signal, gains, lambda record: not gains(record)), 2),
            )
        )
    columns = (
        "signal",
        "warn where",
        "AUROC, choose",
        "AUROC, confirm",
        "caught, choose",
        "caught, confirm",
        "false alarms, confirm",
        "AUROC, validation gains",
    )
    return Table(title, columns, tuple(rows))


def pointed(value: float | None, sign: int) -> float | None:
    return None if value is None else value if sign > 0 else 1 - value


def size_table(results: Mapping[str, Record]) -> Table:
    """How many runs got worse, and how many of them surely."""
    rows: list[Row] = []
    for likelihood, name in ((CLASSES, "classes"), (NUMBERS, "numbers")):
        for half in (*HALVES, None):
            own = of(results, likelihood, half)
            harmed = [record for record in own if worse(record)]
            if not own:
                continue
            sure = [record for record in harmed if record["harm"] > 2 * record["error"]]
            largest = max((record["harm"] for record in harmed), default=0.0)
            gained = [record for record in own if gains(record)]
            rows.append(
                (
                    name,
                    half or "all",
                    str(len(own)),
                    str(len(harmed)),
                    str(len(sure)),
                    number(largest),
                    number(sum(record["harm"] for record in own) / len(own)),
                    str(sum(bool(record["warned"]) for record in harmed)),
                    str(len(gained)),
                    str(sum(bool(record["warned"]) for record in gained)),
                    str(sum(noisy(record) for record in gained)) if likelihood == NUMBERS else "",
                )
            )
    columns = (
        "tasks",
        "half",
        "runs",
        "worse",
        "by more than two errors",
        "largest harm",
        "mean difference",
        "worse and warned",
        "validation gains .1",
        "of these warned",
        "of these a problem for diagnose",
    )
    return Table(SIZES, columns, tuple(rows))


def harm_tables(results: Mapping[str, Record]) -> list[Table]:
    """All of them; none without results."""
    return [
        size_table(results),
        signal_table(results, CLASSES, SIGNALS[CLASSES]),
        signal_table(results, NUMBERS, SIGNALS[NUMBERS]),
    ]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder with data sets; without it nothing is measured")
    parser.add_argument("--splits", type=int, default=SPLITS, help=f"of each table; {SPLITS} if not given")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file with the numbers")
    options = parser.parse_args()
    results = read_results(options.out)
    if options.data is not None:
        torch.set_num_threads(1)
        for key, record in cases(options.data, options.splits, results):
            results[key] = rounded(record)
            options.out.write_text(lines(results), encoding="utf-8")
    for table in harm_tables(results):
        print("\n".join(markdown(table)))


if __name__ == "__main__":
    main()
