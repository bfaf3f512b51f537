"""`peewit fit` and `peewit tune`: posteriors, as files."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import Tensor

import peewit as pw

from .. import likelihoods
from ..laplace import Laplace
from ..posterior.schema import Schema
from . import options as given
from .asking import Option, Run, asks
from .datasets import Wanted, load
from .networks import likelihood as chosen_likelihood
from .networks import network, posterior
from .options import examples
from .output import Problem, Voice, place
from .settings import needed, section
from .tables import shown as some

Out = Annotated[Path, typer.Option("--out", "-o", help="Where to write the posterior (.safetensors).")]
FIT = examples(
    "peewit fit -m networks:lenet -w lenet.safetensors -l classification --train train.npz -o posterior.safetensors",
    "peewit fit -c run.toml --set fit.weights=last_layer --set fit.structure=full --tune",
    "peewit fit -m networks:mlp -l regression --train houses.csv --target price --json",
)
TUNE = examples(
    "peewit tune -c run.toml -p posterior.safetensors -o tuned.safetensors",
    "peewit tune -c run.toml -p posterior.safetensors --method validation --validation held_out.npz",
    "peewit tune -c run.toml -p posterior.safetensors --at linear_mode --train train.npz",
)


@asks(
    "model",
    "weights",
    "likelihood",
    "train",
    "target",
    "classes",
    "header",
    "size",
    "device",
    structure=Option("fit.structure", given.Structure),
    select=Option(
        "fit.weights",
        Annotated[
            str | None, typer.Option("--select", help="Uncertain weights: all, last_layer, lora, or a module's name.")
        ],
    ),
    curvature=Option("fit.curvature", given.Curvature),
    prior=Option(
        "fit.prior",
        Annotated[float | None, typer.Option("--prior", help="Prior precision, 1 / variance (default: 1).")],
    ),
    noise=Option("noise", Annotated[float | None, typer.Option("--noise", help="Standard deviation in regression.")]),
)
def fit(
    run: Run,
    out: Out = Path("posterior.safetensors"),
    tuned: Annotated[bool, typer.Option("--tune", help="Choose prior and noise by the evidence at once.")] = False,
) -> None:
    """Measure a trained network's curvature on its training data: a posterior over its weights, in a file."""
    settings, voice = run.settings, run.voice
    target_file = place(out, (".safetensors",))
    net, family = network(settings), chosen_likelihood(settings)
    categorical = family == "classification" or isinstance(family, pw.Categorical)
    data = load(needed(settings, "train", "--train DATA"), Wanted.of(settings, net, categorical))
    began = time.perf_counter()
    with voice.stage("the fit", own=False):
        la = pw.fit(net, data.value, family, **section(settings, "fit"), progress=voice.progress)
    check_classes(la, data.schema.classes, data.source)
    la = pw.Laplace(replace(la.state, schema=None if data.schema == Schema() else data.schema))
    if tuned:
        with voice.stage("prior and noise by the evidence"):
            la = la.tune()
    la.save(target_file)
    tell(voice, la, target_file, time.perf_counter() - began)


@asks(
    "posterior",
    "model",
    "weights",
    "validation",
    "train",
    "target",
    "classes",
    "header",
    "size",
    "device",
    method=Option(
        "tune.method",
        Annotated[
            str | None, typer.Option("--method", help="evidence, fixed_point, validation or grid (default: evidence).")
        ],
    ),
    at=Option(
        "tune.at",
        Annotated[
            str | None,
            typer.Option(
                "--at",
                help="Weights at which the evidence is taken: trained_weights (default), or linear_mode, the mode of "
                "the linearised model, which needs --train.",
            ),
        ],
    ),
)
def tune(run: Run, out: Out = Path("tuned.safetensors")) -> None:
    """Choose the prior precision, and the noise, of a posterior: by the evidence, or on validation data."""
    settings, voice = run.settings, run.voice
    target_file = place(out, (".safetensors",))
    la = posterior(settings)
    asked = section(settings, "tune")
    way = asked.pop("method", "evidence")
    wanted = matched(settings, la)
    if asked.get("at") == "linear_mode":
        asked["train"] = load(needed(settings, "train", "--train DATA"), wanted).value
        asked["progress"] = voice.progress
    elif way in ("validation", "grid") and "validation" in settings:
        asked["validation"] = load(settings["validation"], wanted).value
    elif way == "validation":
        raise Problem("--method validation needs data that the network was not trained on: --validation DATA.")
    began = time.perf_counter()
    with voice.stage(f"tuning by {way}", own="progress" not in asked):
        tuned = la.tune(way, **asked)
    tuned.save(target_file)
    tell(voice, tuned, target_file, time.perf_counter() - began, before=float(la.log_evidence()))


def is_categorical(la: Laplace) -> bool:
    """Whether targets are classes."""
    return isinstance(la.likelihood, likelihoods.Categorical)


def matched(settings: Mapping[str, Any], la: Laplace, labels: bool = True) -> Wanted:
    """How files are read for a posterior: by the names of columns and classes that it was fitted with."""
    wanted = Wanted.of(settings, la.model, is_categorical(la), labels, la.state.schema or Schema())
    check_classes(la, wanted.classes, "--classes")
    return wanted


def check_classes(la: Laplace, classes: Sequence[str] | None, where: str) -> None:
    """As many names as outputs."""
    form = la.state.totals.form
    if classes is not None and is_categorical(la) and form is not None and len(classes) != form.outputs:
        raise Problem(
            f"{where} has {len(classes)} classes ({some(classes)}), and the network has "
            f"{form.outputs} outputs; expected one output per class. Name all classes in order with --classes."
        )


def summary(la: Laplace) -> dict[str, Any]:
    """A posterior in numbers and names."""
    evidence = la.evidence()
    precision = la.prior.precision.flatten().tolist()
    noise = la.likelihood.noise if isinstance(la.likelihood, likelihoods.WithNoise) else None
    return {
        "likelihood": type(la.likelihood).__name__,
        "structure": type(la.structure).__name__,
        "curvature": la.curvature.name,
        "weights": la.D,
        "examples": la.N,
        "prior_precision": precision[0] if len(precision) == 1 else precision[:1000],
        "noise": noise.flatten().tolist() if isinstance(noise, Tensor) else noise,
        "temperature": la.temperature,
        "log_evidence": float(la.log_evidence()),
        "effective_dimensions": float(evidence.effective_dimensions.sum()),
    }


def tell(
    voice: Voice,
    la: Laplace,
    out: Path,
    seconds: float,
    before: float | None = None,
) -> None:
    """What was made, and where it is."""
    values = {"posterior": str(out), **summary(la), "seconds": seconds}
    lines = [repr(la)]
    change = "" if before is None else f" (before: {before:.1f})"
    lines.append(
        f"log evidence {values['log_evidence']:.1f}{change}, prior precision {shown(values['prior_precision'])}"
    )
    schema = la.state.schema or Schema()
    if schema.columns:
        values |= {"inputs": list(schema.inputs), "targets": list(schema.targets), "header": schema.header}
        kind = "columns" if schema.header else "columns by their places, from 0"
        lines.append(f"{kind}: inputs {some(schema.inputs)}; target {some(schema.targets)}")
    if schema.classes is not None:
        values["classes"] = list(schema.classes)
        lines.append(f"classes, in the order of the outputs: {', '.join(schema.classes)}")
    if la.trace is not None:
        values["tuning"] = {"steps": len(la.trace), "converged": la.trace.converged, "stopped": la.trace.stopped}
        lines.append(f"tuned in {len(la.trace)} steps: {la.trace.stopped}")
    voice.answer(values, *lines, f"written to {out}")


def shown(precision: Any) -> str:
    """One number, or the range of several."""
    if isinstance(precision, list):
        return f"{min(precision):.3g} to {max(precision):.3g}"
    return f"{precision:.4g}"
