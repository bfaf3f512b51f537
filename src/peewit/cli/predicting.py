"""`peewit predict`: predictions with their uncertainty, as a table."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy
import torch
import typer
from torch import Tensor

from ..laplace import Laplace
from ..predictions.labels import Labels
from ..predictions.numbers import Numbers
from ..predictions.prediction import Prediction
from ..storage.atomic import writing
from . import options as given
from .asking import Option, Run, asks
from .datasets import Data, load
from .networks import posterior
from .options import examples
from .output import Problem, Voice, finite, place
from .posteriors import matched
from .settings import section

PREDICT = examples(
    "peewit predict -c run.toml -p posterior.safetensors --data new.npz -o predictions.csv",
    "peewit predict -c run.toml -p posterior.safetensors --data photos/ --size 32 32 --json",
)
SUFFIXES = (".csv", ".npz", ".json")
LEVEL = 0.95


@asks(
    "posterior",
    "model",
    "weights",
    "target",
    "classes",
    "header",
    "size",
    "device",
    method=Option(
        "predict.method",
        Annotated[str | None, typer.Option("--method", help="linearised or sampled (default: linearised).")],
    ),
    link=Option(
        "predict.link",
        Annotated[str | None, typer.Option("--link", help="How outputs become labels: probit, mc, bridge, ...")],
    ),
    level=Option(
        "predict.level",
        Annotated[
            float | None, typer.Option("--level", help="Probability of intervals in regression (default: 0.95).")
        ],
    ),
)
def predict(
    run: Run,
    data: Annotated[str, typer.Option("--data", "-x", metavar="DATA", help=f"Inputs. {given.DATA}")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write them: .csv, .npz or .json.")] = None,
) -> None:
    """Predict new inputs, and say how sure each prediction is."""
    settings, voice = run.settings, run.voice
    if out is None and not voice.as_json:
        raise Problem("Nowhere to write the predictions: give --out FILE (.csv, .npz or .json), or --json for stdout.")
    if out is not None:
        place(out, SUFFIXES)
    options = section(settings, "predict")
    if not 0 < (level := options.pop("level", LEVEL)) < 1:
        raise Problem(f"level = {level!r} was given; expected a probability, 0 < level < 1, such as 0.95.")
    la = posterior(settings)
    wanted = matched(settings, la, labels=False)
    found, names = asked(la, load(data, wanted), options, level, voice), wanted.classes
    count = len(next(iter(found.values())))
    if out is not None:
        with writing(out) as temporary:
            write(temporary, out.suffix.lower(), found, names)
    values: dict[str, Any] = {"predictions": None if out is None else str(out), "examples": count}
    if out is None:
        values["rows"] = rows(found, names)
    voice.answer(values, f"{count:,} predictions written to {out}")


def asked(la: Laplace, data: Data, options: dict[str, Any], level: float, voice: Voice) -> dict[str, Tensor]:
    """Everything about every input, by name: (N, ...) each."""
    pieces, total = data.chunks()
    parts: list[dict[str, Tensor]] = []
    with voice.stage("predictions", total) as advance:
        for x in pieces:
            parts.append(described(la.predict(x, **options), level))
            advance()
    if not parts:
        raise Problem(f"{data.source} holds no inputs.")
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def described(found: Prediction, level: float) -> dict[str, Tensor]:
    """What there is to say of a prediction: label, how sure, and why not."""
    if isinstance(found, Labels):
        made = {"predicted": found.mode, "probability": found.probs, "entropy": found.entropy}
    else:
        assert isinstance(found, Numbers)  # which have intervals of two ends
        low, high = found.interval(level)
        made = {"mean": found.mean, "deviation": found.variance.sqrt(), "lower": low, "upper": high}
    made |= {"epistemic": found.epistemic, "aleatoric": found.aleatoric}
    return {name: tensor.detach().cpu() for name, tensor in made.items()}


def write(path: Path, suffix: str, found: dict[str, Tensor], classes: Sequence[str] | None) -> None:
    """A file by its ending."""
    if suffix == ".npz":
        held: dict[str, Any] = {name: each.numpy() for name, each in found.items()}
        if classes is not None:
            held["classes"] = numpy.array(classes)
        with open(path, "wb") as file:
            numpy.savez(file, **held)
        return
    made = rows(found, classes)
    with open(path, "w", newline="", encoding="utf-8") as file:
        if suffix == ".json":
            json.dump(finite(made), file, allow_nan=False)
            return
        writer = csv.DictWriter(file, list(made[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(made)


def rows(found: dict[str, Tensor], classes: Sequence[str] | None) -> list[dict[str, Any]]:
    """One flat row per input: `mean`, or `mean_0`, `mean_1` where there are several outputs."""
    if any(each.dim() > 2 for each in found.values()):
        raise Problem("Predictions have positions (pixels, tokens), which rows cannot hold; write them as .npz.")
    columns: dict[str, list[Any]] = {}
    categorical = "probability" in found and found["predicted"].dim() == 1 and found["probability"].dim() == 2
    for name, tensor in found.items():
        if name == "predicted" and categorical and classes is not None:
            columns[name] = [classes[each] for each in tensor.tolist()]
        elif name == "probability" and categorical:
            columns["confidence"] = tensor.amax(-1).tolist()
        else:
            columns |= spread(name, tensor, None)
    if categorical:  # last, since they may be many
        columns |= spread("p", found["probability"], classes)
    return [dict(zip(["index", *columns], row, strict=True)) for row in zip(*_counted(columns), strict=True)]


def _counted(columns: dict[str, list[Any]]) -> list[list[Any]]:
    return [list(range(len(next(iter(columns.values()))))), *columns.values()]


def spread(name: str, tensor: Tensor, names: Sequence[str] | None) -> dict[str, list[Any]]:
    """(N,) and (N, 1) are one column, (N, C) are C."""
    if tensor.dim() == 1 or tensor.shape[1] == 1:
        return {name: tensor.flatten().tolist()}
    endings = names or list(map(str, range(tensor.shape[1])))
    return {f"{name}_{ending}": column.tolist() for ending, column in zip(endings, tensor.T, strict=True)}
