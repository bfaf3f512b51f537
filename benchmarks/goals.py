"""The goals of the library as data, and whether a run reaches them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.journal import Record, Run

OURS, PEER = "peewit", "laplace-torch"
GIB = 2**30
TITLES = {
    "mlp": "MLP",
    "lenet": "LeNet",
    "resnet18": "ResNet-18",
    "resnet18-100": "ResNet-18, 100 classes",
    "vit": "ViT",
    "gpt": "GPT",
    "last-100": "100 outputs, 128 features",
    "last-1000": "1,000 outputs",
}


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A number of a run, and its bound."""

    what: str
    case: str
    sense: str  # "<=" or ">="
    bound: float
    unit: str
    value: Callable[[Run], float | None]
    devices: tuple[str, ...] = ("cuda",)
    precisions: tuple[str, ...] = ()  # all of them where none is named

    def concerns(self, run: Run) -> bool:
        """Whether the goal applies to this device and precision."""
        header = run.header
        return header["device"] in self.devices and (not self.precisions or header["precision"] in self.precisions)

    def outcome(self, run: Run) -> Outcome:
        """The outcome in a run."""
        judged = self.concerns(run) and not run.header.get("quick", False)  # small networks say nothing of large ones
        return Outcome(self, self.value(run) if judged else None)

    @property
    def words(self) -> str:
        """The bound as text."""
        if self.unit == "runs":
            return "runs"
        return f"{'≤' if self.sense == '<=' else '≥'} {shown(self.bound, self.unit)}"


@dataclass(frozen=True)
class Outcome:
    """A measured number beside its goal."""

    goal: Goal
    value: float | None

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None where there is no measurement."""
        if self.value is None or math.isnan(self.value):
            return None
        return self.value <= self.goal.bound if self.goal.sense == "<=" else self.value >= self.goal.bound

    @property
    def missed_by(self) -> float:
        """The factor between the measurement and the goal, above 1 where it is missed."""
        assert self.value is not None
        over = self.value / self.goal.bound if self.goal.bound else math.inf
        return over if self.goal.sense == "<=" else 1 / over if over else math.inf

    @property
    def words(self) -> str:
        """The measurement and the verdict, as text."""
        if self.met is None:
            return "–"
        assert self.value is not None
        if self.goal.unit == "runs":
            return "runs: **met**" if self.met else "does not run: **missed**"
        verdict = "**met**" if self.met else f"**missed** by {self.missed_by:.3g}x"
        return f"{shown(self.value, self.goal.unit)}: {verdict}"


def shown(value: float, unit: str) -> str:
    """Three digits with the unit."""
    digits = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{digits}{unit}" if unit in ("x", "") else f"{digits} {unit}"


def median(record: Record | None, key: str = "time") -> float | None:
    """The median of a record's times."""
    return None if record is None or key not in record else float(record[key]["median"])


def ratio(above: float | None, below: float | None) -> float | None:
    """A quotient, where both are known."""
    return None if above is None or not below else above / below


def predictive(run: Run, network: str, library: str) -> Record | None:
    """The best batch of a predictive."""
    found = run.one(section="predictives", network=network, library=library)
    return None if found is None else found.get("best")


def predictive_ratio(run: Run, network: str) -> float | None:
    """Inputs per second over laplace-torch's."""
    mine, theirs = (predictive(run, network, library) for library in (OURS, PEER))
    return None if mine is None or theirs is None else mine["per_second"] / theirs["per_second"]


def processor_ratio(run: Run, network: str) -> float | None:
    """The same by processor time over all threads, which other work on the machine disturbs less."""
    mine, theirs = (predictive(run, network, library) for library in (OURS, PEER))
    if mine is None or theirs is None or not all("processor" in each["time"] for each in (mine, theirs)):
        return None
    return ratio(theirs["time"]["processor"] / theirs["batch"], mine["time"]["processor"] / mine["batch"])


def per_input(record: Record) -> float:
    """Bytes beyond what was held, for each input of the batch."""
    return float(record["extra_bytes"]) / record["batch"]


def predictive_memory(run: Run, network: str) -> float | None:
    """Memory per input of laplace-torch over ours, each at its best batch."""
    mine, theirs = (predictive(run, network, library) for library in (OURS, PEER))
    return None if mine is None or theirs is None else ratio(per_input(theirs), per_input(mine))


def memory_alike(run: Run, network: str) -> float | None:
    """The same with both at laplace-torch's best batch, or ours at the next smaller one that was measured."""
    found = run.one(section="predictives", network=network, library=OURS)
    theirs = predictive(run, network, PEER)
    if found is None or theirs is None:
        return None
    mine = [each for each in found["points"] if "per_second" in each and each["batch"] <= theirs["batch"]]
    return ratio(per_input(theirs), per_input(mine[-1])) if mine else None


def variance_difference(run: Run, network: str) -> float | None:
    """The largest relative difference to laplace-torch's variances."""
    found = run.one(section="agreement", network=network, reference=PEER, structure="kron")
    return None if found is None else float(found["variance_difference"])


def measure_seconds(record: Record | None) -> float | None:
    """A fit without its decompositions."""
    whole = median(record)
    return None if whole is None else whole - (median(record, "decompositions") or 0.0)


def fit_over_unit(run: Run, network: str, curvature: str, structure: str = "kron") -> float | None:
    """A fit without decompositions over a plain pass."""
    section = "diag" if structure == "diag" else "fits"
    found = run.one(section=section, network=network, library=OURS, structure=structure, curvature=curvature)
    return None if found is None else ratio(measure_seconds(found), found.get("unit_seconds"))


def over_counted(record: Record | None) -> float | None:
    """A fit's time over what its operations take at the rate of the plain pass."""
    if record is None or "operations" not in record or "unit_seconds" not in record:
        return None
    expected = record["operations"]["total"] / record["unit_operations"] * record["unit_seconds"]
    return ratio(measure_seconds(record), expected)


def fit_over_counted(run: Run, network: str) -> float | None:
    """The same of the exact fit with Kronecker factors."""
    return over_counted(run.one(section="fits", network=network, library=OURS, structure="kron", curvature="exact"))


def fit_over_peer(run: Run, network: str) -> float | None:
    """laplace-torch's exact fit over ours, both with decompositions."""
    mine, theirs = (
        run.one(section="fits", network=network, library=library, structure="kron", curvature="exact")
        for library in (OURS, PEER)
    )
    return ratio(median(theirs), median(mine))


def diagonal_memory(run: Run, curvature: str) -> float | None:
    """GiB at the peak of a diagonal fit of ResNet-18."""
    found = run.one(section="diag", network="resnet18", library=OURS, curvature=curvature)
    return None if found is None else (found["peak_bytes"] or found["extra_bytes"]) / GIB


def latency(run: Run, network: str, weights: str, way: str) -> float | None:
    """The median of one prediction, in milliseconds."""
    found = run.one(section="single", network=network, weights=weights)
    outcome = None if found is None else found["ways"].get(way)
    return None if outcome is None or "p50" not in outcome else 1000 * float(outcome["p50"])


def beyond_forward(run: Run, network: str) -> float | None:
    """Milliseconds of a prediction under an uncertain last layer, beyond 1.3 forward passes."""
    mine, forward = (latency(run, network, "last_layer", way) for way in ("la.predictor", "forward pass"))
    return None if mine is None or forward is None else mine - 1.3 * forward


def latency_ratio(run: Run, network: str) -> float | None:
    """laplace-torch's latency over ours, all weights."""
    return ratio(latency(run, network, "all", PEER), latency(run, network, "all", "la.predictor"))


def tuning_milliseconds(run: Run, network: str) -> float | None:
    """One prior precision by the evidence."""
    seconds = median(run.one(section="tuning", network=network, library=OURS))
    return None if seconds is None else 1000 * seconds


def learning_ratio(run: Run, network: str, way: str) -> float | None:
    """Training with hyper-steps over plain training."""
    found = run.one(section="learning", network=network, library=OURS, way=way)
    return None if found is None or "ratio" not in found else float(found["ratio"])


def learning_memory(run: Run, network: str, way: str) -> float | None:
    """Peak memory of training with hyper-steps over that of plain training."""
    found = run.one(section="learning", network=network, library=OURS, way=way)
    return None if found is None or found.get("memory") is None else float(found["memory"])


def last_variances(run: Run, structure: str) -> Record | None:
    """Variances of the last layer with 1,000 outputs."""
    found = run.one(section="last", network="last-1000", library=OURS, structure=structure)
    inner = None if found is None else found["variances"]
    return None if inner is None or "failure" in inner else {**inner, "classes": found["classes"]} if found else None


def variances_over_forward(run: Run, structure: str) -> float | None:
    """Variances over the network's own forward pass."""
    found = last_variances(run, structure)
    return None if found is None else ratio(median(found), median(found["forward"]))


def variances_memory(run: Run, structure: str) -> float | None:
    """Memory beyond the forward pass's, over that of one (N, C, C) tensor."""
    found = last_variances(run, structure)
    if found is None:
        return None
    whole = 4.0 * found["batch"] * found["classes"] ** 2
    return max(0.0, found["extra_bytes"] - found["forward"]["extra_bytes"]) / whole


def full_runs(run: Run) -> float | None:
    """1 where the full last layer runs, 0 where it was tried and failed."""
    tried = run.find(section="last", network="last-100", library=OURS, structure="full")
    if not tried:
        return None
    return float("failure" not in tried[-1] and "failure" not in tried[-1]["variances"])


def decomposition_seconds(run: Run) -> float | None:
    """All eigendecompositions of ResNet-18."""
    found = run.one(section="fits", network="resnet18", library=OURS, structure="kron", curvature="exact")
    return median(found, "decompositions")


def growth(run: Run, axis: str, task: str = "fit", library: str = OURS, curvature: str = "exact") -> list[Record]:
    """The points of one curve, by size."""
    found = run.find(section="growth", axis=axis, task=task, library=library, curvature=curvature)
    return sorted((each for each in found if "failure" not in each), key=lambda each: float(each["size"]))


def slope(points: Iterable[tuple[float, float]]) -> float | None:
    """The slope of the line through log-log points, by least squares."""
    logs = [(math.log(x), math.log(y)) for x, y in points if x > 0 and y > 0]
    if len(logs) < 2:
        return None
    centre_x, centre_y = (sum(each[i] for each in logs) / len(logs) for i in (0, 1))
    spread = sum((x - centre_x) ** 2 for x, _ in logs)
    return ratio(sum((x - centre_x) * (y - centre_y) for x, y in logs), spread)


def time_slope(run: Run, axis: str = "examples", **which: Any) -> float | None:
    """How a curve's time grows: 1 is linear."""
    return slope((each["size"], each["time"]["median"]) for each in growth(run, axis, **which))


def memory_growth(run: Run) -> float | None:
    """Memory of a fit under `memory=` to the most examples over that to a quarter of them."""
    by_size = {each["size"]: each["extra_bytes"] for each in growth(run, "examples", "bounded fit")}
    most = max(by_size, default=0)
    return ratio(by_size[most], by_size[most / 4]) if most / 4 in by_size else None


def bounded_memory(run: Run, axis: str, task: str) -> float | None:
    """Memory that was taken over `memory=`, at most."""
    found = growth(run, axis, task)
    taken = [each.get("beyond_bytes", each["extra_bytes"]) / each["limit_bytes"] for each in found]
    return max(taken) if taken else None


def tuned_precisions(run: Run, network: str, key: str) -> float | None:
    """A number about tuning at the mode of the linear model."""
    found = run.one(section="linear", network=network)
    return None if found is None else float(found["tuning"][key])


def weight_copies(run: Run, network: str) -> float | None:
    """Memory of a solve beyond `memory=`, in vectors of all weights."""
    found = run.one(section="linear", network=network)
    return None if found is None else float(found["copies"])


BOTH = ("cpu", "cuda")
FIVE = ("mlp", "lenet", "resnet18", "resnet18-100", "vit")
FOUR = ("mlp", "lenet", "resnet18", "vit")
RATE = "closed-form predictive, `kron`, all weights: inputs/s over laplace-torch's"


def per_network(
    what: str, bounds: dict[str, float], sense: str, unit: str, value: Callable[..., float | None], **more: Any
) -> list[Goal]:
    """The same goal for several networks."""
    devices, precisions = more.pop("devices", ("cuda",)), more.pop("precisions", ())
    return [
        Goal(
            what=what,
            case=TITLES[name],
            sense=sense,
            bound=bound,
            unit=unit,
            value=partial(value, network=name, **more),
            devices=devices,
            precisions=precisions,
        )
        for name, bound in bounds.items()
    ]


AS_THEY_COME = ("default", "fp32")  # a CPU has fp32 alone
EQUAL = ("fp32", "tf32")  # laplace-torch has no products in bf16
GOALS: tuple[Goal, ...] = (
    *per_network(
        f"{RATE}, equal precision",
        {"mlp": 100, "lenet": 60, "resnet18": 30, "resnet18-100": 30, "vit": 30},
        ">=",
        "x",
        predictive_ratio,
        precisions=EQUAL,
    ),
    *per_network(
        f"{RATE}, both in their defaults",
        dict.fromkeys(FIVE, 100),
        ">=",
        "x",
        predictive_ratio,
        precisions=("default",),
    ),
    *per_network(
        "variances in these defaults, relative to laplace-torch's",
        dict.fromkeys(FIVE, 1e-3),
        "<=",
        "",
        variance_difference,
        precisions=("default",),
    ),
    *per_network(f"{RATE}, on the CPU", {"mlp": 300, "lenet": 50}, ">=", "x", predictive_ratio, devices=("cpu",)),
    *per_network(
        "likewise, by the processor's time: what else the machine does matters less",
        {"mlp": 300, "lenet": 50},
        ">=",
        "x",
        processor_ratio,
        devices=("cpu",),
    ),
    *per_network(
        "memory of that predictive per input: laplace-torch's over ours",
        dict.fromkeys(FIVE, 20),
        ">=",
        "x",
        predictive_memory,
        devices=BOTH,
    ),
    *per_network(
        "likewise, both at laplace-torch's best batch", dict.fromkeys(FIVE, 20), ">=", "x", memory_alike, devices=BOTH
    ),
    *per_network(
        "one input at a time, last layer, `la.predictor`: beyond 1.3 forward passes",
        dict.fromkeys(FIVE, 0.3),
        "<=",
        "ms",
        beyond_forward,
        devices=BOTH,
        precisions=AS_THEY_COME,
    ),
    *per_network(
        "one input at a time, all weights, `la.predictor`: laplace-torch's latency over ours",
        dict.fromkeys(FIVE, 1),
        ">=",
        "x",
        latency_ratio,
        devices=BOTH,
        precisions=AS_THEY_COME,
    ),
    *per_network(
        "fit, MC(1), without decompositions, over forward and backward",
        {"mlp": 1.4, "lenet": 2.5, "resnet18": 2.5, "vit": 1.4},
        "<=",
        "x",
        fit_over_unit,
        curvature="MC(1)",
    ),
    *per_network(
        "fit, exact, likewise, over its counted operations at that rate",
        dict.fromkeys(FOUR, 1.3),
        "<=",
        "x",
        fit_over_counted,
    ),
    *per_network(
        "fit, exact, likewise, over forward and backward",
        {"mlp": 5, "lenet": 5, "resnet18": 8, "vit": 12},
        "<=",
        "x",
        fit_over_unit,
        curvature="exact",
    ),
    *per_network(
        "fit, exact, with decompositions: laplace-torch's time over ours",
        {"mlp": 10, "lenet": 10, "resnet18": 4, "vit": 4},
        ">=",
        "x",
        fit_over_peer,
    ),
    *(
        Goal(
            what="`diag` fit of ResNet-18 at batch 128, peak",
            case=kind,
            sense="<=",
            bound=6,
            unit="GiB",
            value=partial(diagonal_memory, curvature=kind),
        )
        for kind in ("exact", "MC(1)")
    ),
    *(
        Goal(
            what="`diag` fit of ResNet-18 over forward and backward",
            case=kind,
            sense="<=",
            bound=bound,
            unit="x",
            value=partial(fit_over_unit, network="resnet18", curvature=kind, structure="diag"),
        )
        for kind, bound in (("exact", 10.0), ("MC(1)", 3.0))
    ),
    *per_network(
        "tuning the prior by the evidence", dict.fromkeys((*FIVE, "gpt"), 50), "<=", "ms", tuning_milliseconds
    ),
    *(
        Goal(
            what=f"learning while training, over plain training: {way}",
            case=TITLES[network],
            sense="<=",
            bound=bound,
            unit="x",
            value=partial(learning_ratio, network=network, way=way),
            devices=("cuda", "cpu"),
        )
        for way, bound in (
            ("kron, MC(1)", 1.5),
            ("kron, MC(1), a tenth of the data", 1.5),
            ("kron, exact", 2.0),
            ("diag, exact", 2.0),
        )
        for network in ("lenet", "resnet18")
    ),
    *(
        Goal(
            what="likewise, memory",
            case=TITLES["resnet18"],
            sense="<=",
            bound=2,
            unit="x",
            value=partial(learning_memory, network="resnet18", way=way),
        )
        for way in ("kron, MC(1)",)
    ),
    *(
        Goal(
            what="last layer, 1,000 outputs: variances over the network's forward pass",
            case=f"`{kind}`",
            sense="<=",
            bound=2,
            unit="x",
            value=partial(variances_over_forward, structure=kind),
        )
        for kind in ("kron", "ekfac", "diag")
    ),
    *(
        Goal(
            what="last layer, 1,000 outputs: memory beyond that pass, over one (N, C, C)",
            case=f"`{kind}`",
            sense="<=",
            bound=0.5,
            unit="x",
            value=partial(variances_memory, structure=kind),
        )
        for kind in ("kron", "ekfac", "diag")
    ),
    Goal(what="last layer, `full`", case=TITLES["last-100"], sense=">=", bound=1, unit="runs", value=full_runs),
    Goal(
        what="decompositions of ResNet-18's factors",
        case="`kron`",
        sense="<=",
        bound=0.4,
        unit="s",
        value=decomposition_seconds,
    ),
    *per_network(
        "tuning at the mode of the linear model: products with the Jacobian per solve",
        {"resnet18": 10},
        "<=",
        "",
        tuned_precisions,
        key="products_per_solve",
    ),
    *per_network(
        "likewise: largest error of a log precision",
        {"resnet18": 0.05},
        "<=",
        "",
        tuned_precisions,
        key="precision_error",
    ),
    *per_network(
        "mode of the linear model: memory beyond `memory=`, in copies of the weights",
        {"resnet18": 3},
        "<=",
        "",
        weight_copies,
    ),
    Goal(
        what="growth: time of a fit in N, slope in log-log",
        case="MLP",
        sense="<=",
        bound=1.05,
        unit="",
        value=time_slope,
        devices=BOTH,
    ),
    Goal(
        what="growth: memory of a fit under `memory=`, most examples over a quarter of them",
        case="MLP",
        sense="<=",
        bound=1.1,
        unit="x",
        value=memory_growth,
        devices=BOTH,
    ),
    Goal(
        what="growth: memory of a fit over `memory=`, any number of outputs",
        case="MLP",
        sense="<=",
        bound=1,
        unit="x",
        value=partial(bounded_memory, axis="outputs", task="bounded fit"),
        devices=BOTH,
    ),
    Goal(
        what="growth: memory of a predictive over `memory=`",
        case="LeNet",
        sense="<=",
        bound=1,
        unit="x",
        value=partial(bounded_memory, axis="memory", task="predictive"),
        devices=BOTH,
    ),
)
