"""The work of `peewit fit` and `peewit tune`: posteriors, as files."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

import peewit as pw

from .. import likelihoods
from ..laplace import Laplace
from ..posterior.schema import Schema
from ..posterior.trace import TuneMethod
from .checking import NetworkCheck, check_network, check_weights, refuse_misfit
from .datasets import Wanted, load
from .networks import generator, is_classification, network, posterior
from .networks import likelihood as chosen_likelihood
from .output import Problem, Voice, check_writable
from .runs import Run
from .scaling import as_inner, check_scaling, standardise
from .settings import require_setting, section
from .tables import list_names


def fit(run: Run, out: Path, tuned: bool) -> None:
    """Fit, check the network, and write the posterior."""
    settings, voice = run.settings, run.voice
    target_file = check_writable(out, (".safetensors",))
    net, family = network(settings), chosen_likelihood(settings)
    weights = check_weights(settings, net)
    data = load(require_setting(settings, "train", "--train DATA"), Wanted.of(settings, net, is_classification(family)))
    net, data, family = standardise(settings, net, data, family, voice)
    refuse_misfit(net, data.value, family, settings)
    began = time.perf_counter()
    with voice.stage("the fit", with_bar=False):
        options = section(settings, "fit") | {"generator": generator(settings)}
        if data.schema.scaling is not None and "weights" in options:
            options["weights"] = as_inner(options["weights"], net)
        la = pw.fit(net, data.value, family, **options, progress=voice.progress)
    check_classes(la, data.schema.classes, data.source)
    la = pw.Laplace(replace(la.state, schema=None if data.schema == Schema() else data.schema))
    if tuned:
        with voice.stage("prior and noise by the training data", with_bar=False):
            la = la.tune(train=data.value, progress=voice.progress)
    seconds = time.perf_counter() - began
    check = check_network(la, data.value, settings, voice, weights)
    la.save(target_file)
    tell(voice, la, target_file, seconds, check=check)


def tune(run: Run, out: Path) -> None:
    """Choose prior and noise as the data allow, and write the posterior."""
    settings, voice = run.settings, run.voice
    target_file = check_writable(out, (".safetensors",))
    la = posterior(settings)
    arguments = section(settings, "tune")
    way = arguments.pop("method", None) or default_method(settings, arguments)
    wanted, mode = wanted_by(settings, la), arguments.get("at", mode_of(la, way, settings))
    if mode == "linear_mode" and "at" not in arguments and "train" not in settings:
        raise Problem(
            "The posterior is at its linear mode, which is found anew as prior and noise change: give the training "
            "data, --train DATA, or leave the mode, --at trained_weights."
        )
    if way == "training" or mode == "linear_mode":
        arguments["train"] = load(require_setting(settings, "train", "--train DATA"), wanted).value
        refuse_misfit(la.model, arguments["train"], la.likelihood, settings)
    if way in ("validation", "grid") and "validation" in settings:
        arguments["validation"] = load(settings["validation"], wanted).value
        refuse_misfit(la.model, arguments["validation"], la.likelihood, settings, "validation")
    elif way == "validation":
        raise Problem("--method validation needs data that the network was not trained on: --validation DATA.")
    began = time.perf_counter()
    with voice.stage(f"tuning by {way}", with_bar=False):
        tuned = la.tune(way, progress=voice.progress, **arguments)
    tuned.save(target_file)
    tell(voice, tuned, target_file, time.perf_counter() - began, before=float(la.log_evidence()))


def default_method(settings: Mapping[str, Any], arguments: Mapping[str, Any]) -> TuneMethod:
    """What the data that were given allow, as `la.tune` has it."""
    if "validation" in settings:
        return "validation"
    return "training" if "train" in settings and "at" not in arguments else "evidence"


def mode_of(la: Laplace, way: TuneMethod, settings: Mapping[str, Any]) -> str | None:
    """The mode that tuning keeps; as in `la.tune`, validation data leave one that tuning on training data chose."""
    chosen = la.trace is not None and la.trace.method == "training" and "train" not in settings
    leaves = chosen and way in ("validation", "grid") and "validation" in settings
    return "linear_mode" if la.linear_mode is not None and not leaves else None


def wanted_by(settings: Mapping[str, Any], la: Laplace, labels: bool = True) -> Wanted:
    """How files are read for a posterior: by the names of columns and classes that it was fitted with."""
    schema = la.state.schema or Schema()
    check_scaling(settings, schema)
    wanted = Wanted.of(settings, la.model, is_classification(la.likelihood), labels, schema)
    check_classes(la, wanted.classes, "--classes")
    return wanted


def check_classes(la: Laplace, classes: Sequence[str] | None, where: str) -> None:
    """As many names as outputs."""
    form = la.state.totals.form
    if classes is not None and is_classification(la.likelihood) and form is not None and len(classes) != form.outputs:
        raise Problem(
            f"{where} has {len(classes)} classes ({list_names(classes)}), and the network has "
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
    check: NetworkCheck | None = None,
) -> None:
    """What was made, and where it is."""
    values = {"posterior": str(out), **summary(la), "seconds": seconds}
    lines = [repr(la)]
    change = "" if before is None else f" (before: {before:.1f})"
    precision = range_text(values["prior_precision"])
    noise = "" if values["noise"] is None else f", noise {range_text(values['noise'])}"
    lines.append(f"log evidence {values['log_evidence']:.1f}{change}, prior precision {precision}{noise}")
    schema = la.state.schema or Schema()
    if schema.columns:
        values |= {"inputs": list(schema.inputs), "targets": list(schema.targets), "header": schema.header}
        kind = "columns" if schema.header else "columns by their places, from 0"
        lines.append(f"{kind}: inputs {list_names(schema.inputs)}; target {list_names(schema.targets)}")
    if schema.scaling is not None:
        values["standardised"] = list(schema.scaling.parts)
        lines.append(f"standardised by the training data: {' and '.join(schema.scaling.parts)}")
    if schema.classes is not None:
        values["classes"] = list(schema.classes)
        lines.append(f"classes, in the order of the outputs: {', '.join(schema.classes)}")
    if la.trace is not None:
        values["tuning"] = {"steps": len(la.trace), "converged": la.trace.converged, "stopped": la.trace.stopped}
        lines.append(f"tuned in {len(la.trace)} steps: {la.trace.stopped}")
    if check is not None:
        values |= check.values()
        lines += check.lines()
    voice.answer(values, *lines, f"written to {out}")


def range_text(numbers: Any) -> str:
    """One number, or the range of several."""
    if isinstance(numbers, list):
        return f"{min(numbers):.3g} to {max(numbers):.3g}"
    return f"{numbers:.4g}"
