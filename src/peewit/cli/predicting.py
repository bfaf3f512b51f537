"""The work of `peewit predict`: predictions with their uncertainty, as a table."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from ..laplace import Laplace
from ..predictions.labels import Labels
from ..predictions.numbers import Numbers
from ..predictions.prediction import Prediction
from ..storage.atomic import writing
from .datasets import LoadedData, load
from .networks import generator, posterior
from .options import LEVEL
from .output import Problem, Voice, check_writable, finite
from .posteriors import wanted_by
from .runs import Run
from .settings import section

SUFFIXES = (".csv", ".npz", ".json")


def predict(run: Run, data: str, out: Path | None) -> None:
    """Predict all inputs, and write or print the table."""
    settings, voice = run.settings, run.voice
    if out is None and not voice.as_json:
        raise Problem("Nowhere to write the predictions: give --out FILE (.csv, .npz or .json), or --json for stdout.")
    if out is not None:
        check_writable(out, SUFFIXES)
    options = section(settings, "predict") | {"generator": generator(settings)}
    if not 0 < (level := options.pop("level", LEVEL)) < 1:
        raise Problem(f"level = {level!r} was given; expected a probability, 0 < level < 1, such as {LEVEL}.")
    la = posterior(settings)
    wanted = wanted_by(settings, la, labels=False)
    columns, names = predict_all(la, load(data, wanted), options, level, voice), wanted.classes
    count = len(next(iter(columns.values())))
    if out is not None:
        with writing(out) as temporary:
            write(temporary, out.suffix.lower(), columns, names)
    values: dict[str, Any] = {"predictions": None if out is None else str(out), "examples": count}
    if out is None:
        values["rows"] = rows(columns, names)
    said = f"{count:,} prediction{'s' * (count != 1)} written to {out}"
    if "level" in columns:
        values["level"] = level
        said += f"; lower and upper are the ends of {100 * level:g} % intervals"
    voice.answer(values, said)


def predict_all(
    la: Laplace, data: LoadedData, options: dict[str, Any], level: float, voice: Voice
) -> dict[str, Tensor]:
    """Everything about every input, by name: (N, ...) each."""
    pieces, total = data.chunks()
    parts: list[dict[str, Tensor]] = []
    with voice.stage("predictions", total) as advance:
        for x in pieces:
            parts.append(describe(la.predict(x, **options), level))
            advance()
    if not parts:
        raise Problem(f"{data.source} holds no inputs.")
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def describe(prediction: Prediction, level: float) -> dict[str, Tensor]:
    """What there is to say of a prediction: label, how sure, and why not."""
    if isinstance(prediction, Labels):
        columns = {"predicted": prediction.mode, "probability": prediction.probs, "entropy": prediction.entropy}
    else:
        assert isinstance(prediction, Numbers)  # which have intervals of two ends
        low, high = prediction.interval(level)
        columns = {"mean": prediction.mean, "deviation": prediction.variance.sqrt(), "lower": low, "upper": high}
        columns["level"] = torch.full((len(prediction),), level, dtype=torch.float64)
    columns |= {"epistemic": prediction.epistemic, "aleatoric": prediction.aleatoric}
    return {name: tensor.detach().cpu() for name, tensor in columns.items()}


def write(path: Path, suffix: str, columns: dict[str, Tensor], classes: Sequence[str] | None) -> None:
    """A file by its ending."""
    if suffix == ".npz":
        arrays: dict[str, Any] = {name: column.numpy() for name, column in columns.items()}
        if classes is not None:
            arrays["classes"] = numpy.array(classes)
        with open(path, "wb") as file:
            numpy.savez(file, **arrays)
        return
    table = rows(columns, classes)
    with open(path, "w", newline="", encoding="utf-8") as file:
        if suffix == ".json":
            json.dump(finite(table), file, allow_nan=False)
            return
        writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


def rows(columns: dict[str, Tensor], classes: Sequence[str] | None) -> list[dict[str, Any]]:
    """One flat row per input: `mean`, or `mean_0`, `mean_1` where there are several outputs."""
    if any(column.dim() > 2 for column in columns.values()):
        raise Problem("Predictions have positions (pixels, tokens), which rows cannot hold; write them as .npz.")
    cells: dict[str, list[Any]] = {"index": list(range(len(next(iter(columns.values())))))}
    categorical = "probability" in columns and columns["predicted"].dim() == 1 and columns["probability"].dim() == 2
    for name, column in columns.items():
        if name == "predicted" and categorical and classes is not None:
            cells[name] = [classes[number] for number in column.tolist()]
        elif name == "probability" and categorical:
            cells["confidence"] = column.amax(-1).tolist()
        else:
            cells |= table_columns(name, column, None)
    if categorical:  # last, since they may be many
        cells |= table_columns("p", columns["probability"], classes)
    return [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]


def table_columns(name: str, tensor: Tensor, names: Sequence[str] | None) -> dict[str, list[Any]]:
    """(N,) and (N, 1) are one column, (N, C) are C."""
    if tensor.dim() == 1 or tensor.shape[1] == 1:
        return {name: tensor.flatten().tolist()}
    endings = names or list(map(str, range(tensor.shape[1])))
    return {f"{name}_{ending}": column.tolist() for ending, column in zip(endings, tensor.T, strict=True)}
