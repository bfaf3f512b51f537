"""Settings of a run: a TOML file, then `--set key=value`, then the options of the command line; the last one wins."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..messages.names import nearest
from .output import Problem

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NUMBER = (int, float)
# Every setting with the types that it takes; a dot is a table. A type in a list: also a list of it.
KNOWN: dict[str, tuple[Any, ...]] = {
    "model": (str,),
    "arguments": (dict,),
    "checkpoint": (str,),
    "posterior": (str,),
    "likelihood": (str,),
    "noise": NUMBER,
    "train": (str,),
    "validation": (str,),
    "test": (str,),
    "ood": (dict,),
    "ensemble": (list,),
    "inputs": (str, list),
    "target": (str, list),
    "standardise": (bool, str),
    "classes": (list,),
    "header": (bool,),
    "size": (list,),
    "batch": (int,),
    "device": (str,),
    "seed": (int,),
    "title": (str,),
    "diagnose": (bool,),
    "anyway": (bool,),
    "fit.weights": (str, list),
    "fit.structure": (str,),
    "fit.curvature": (str,),
    "fit.prior": NUMBER,
    "fit.memory": NUMBER,
    "fit.arithmetic": (str,),
    "fit.at": (str,),
    "tune.method": (str,),
    "tune.parameters": (list,),
    "tune.steps": (int,),
    "tune.at": (str,),
    "tune.memory": NUMBER,
    "predict.method": (str,),
    "predict.link": (str,),
    "predict.samples": (int,),
    "predict.at": (str,),
    "predict.memory": NUMBER,
    "predict.level": NUMBER,
    "evaluate.shifts": (list,),
    "evaluate.attacks": (list,),
    "evaluate.intervals": (int,),
    "evaluate.baselines": (list,),
    "evaluate.shift_examples": (int,),
    "evaluate.memory": NUMBER,
    "recommend.seconds": NUMBER,
    "recommend.memory": NUMBER,
    "landscape.points": (int,),
    "landscape.reach": NUMBER,
    "landscape.directions": (str,),
    "landscape.examples": (int,),
    "landscape.memory": NUMBER,
}
WEIGHT_FILES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")
TABLES = ("fit", "tune", "predict", "evaluate", "recommend", "landscape")
PATHS = ("checkpoint", "posterior", "train", "validation", "test")
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def is_function(text: str) -> bool:
    """Whether a text has the form `package.module:function`."""
    return FUNCTION.fullmatch(text) is not None


def read(path: Path) -> dict[str, Any]:
    """The settings of a file by dotted name; paths in it start at its own folder."""
    if not path.is_file():
        raise Problem(f"There is no file {path}; expected a TOML file with settings.")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Problem(f"{path} is not TOML: {error}.") from error
    settings = flat(content, str(path))
    sys.path.append(str(path.parent.resolve()))  # modules beside it are found, too; `importing` takes it away again

    def anchor(text: str) -> str:
        return text if is_function(text) else str(path.parent / Path(text).expanduser())

    for name in PATHS:
        if name in settings:
            settings[name] = anchor(settings[name])
    if "ood" in settings:
        settings["ood"] = {name: anchor(entry) for name, entry in settings["ood"].items()}
    if "ensemble" in settings:
        settings["ensemble"] = [anchor(str(entry)) for entry in settings["ensemble"]]
    return settings


@contextlib.contextmanager
def importing(*folders: Path) -> Iterator[None]:
    """Modules are found in these folders too, for as long as a command runs."""
    before = list(sys.path)
    sys.path[:0] = [str(folder) for folder in folders]
    try:
        yield
    finally:
        sys.path[:] = before


def flat(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Tables as dotted names, each checked."""
    settings: dict[str, Any] = {}
    for name, value in content.items():
        if name in TABLES:
            if not isinstance(value, dict):
                raise Problem(f"{where}: {name} is {value!r}; expected a table, such as [{name}].")
            settings |= {f"{name}.{inner}": setting for inner, setting in value.items()}
        else:
            settings[name] = value
    for name, value in settings.items():
        check(name, value, where)
    return settings


def check(name: str, value: Any, where: str) -> None:
    """Refuse a setting that nobody reads, or one of another type."""
    if name == "weights":
        raise Problem(
            f"{where}: there is no setting 'weights' outside of a table; the file of trained weights is checkpoint = "
            f"{json.dumps(str(value))}, and the uncertain weights are fit.weights."
        )
    if name not in KNOWN:
        raise Problem(f"{where}: there is no setting {name!r}; {nearest(name, KNOWN)}Known: {', '.join(KNOWN)}.")
    kinds = KNOWN[name]
    # TOML's true is Python's True, which is a number to Python alone.
    right = isinstance(value, kinds) and not (isinstance(value, bool) and bool not in kinds)
    if right and name == "ood":
        right = all(isinstance(each, str) for each in value.values())
    if not right:
        words = " or ".join(WORDS[kind] for kind in kinds)
        raise Problem(f"{where}: {name} is {value!r}; expected {words}.")


WORDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


def assignment(text: str) -> dict[str, Any]:
    """`key=value` with a dotted key and a value as TOML writes it; a plain word needs no quotes."""
    key, equals, value = text.partition("=")
    where = f"--set {text}"
    if not equals or not key.strip():
        raise Problem(f"{where}: expected key=value, such as --set fit.structure=diag.")
    for written in (value, json.dumps(value)):
        try:
            return flat(tomllib.loads(f"{key.strip()} = {written}"), where)
        except tomllib.TOMLDecodeError as error:
            if value.strip()[:1] in ('"', "'", "[", "{"):  # meant as TOML, and wrong
                raise Problem(f"{where}: the value is not TOML: {error}.") from error
    raise Problem(f"{where}: {key.strip()!r} is not a name of a setting.")


def gather_settings(config: Path | None, assignments: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a run by dotted name, without those that nobody gave."""
    settings = {} if config is None else read(config)
    added = [item for text in assignments for item in assignment(text).items()]
    added += [(name, value) for name, value in options.items() if value not in (None, [], {})]
    for name, value in added:
        both = isinstance(settings.get(name), dict) and isinstance(value, dict)
        settings[name] = {**settings[name], **value} if both else value
    refuse_file(settings.get("fit.weights"))
    return settings


def refuse_file(weights: Any) -> None:
    """Refuse a file of trained weights where the uncertain ones are chosen."""
    if isinstance(weights, str) and Path(weights).suffix in WEIGHT_FILES:
        raise Problem(
            f"--weights {weights} names a file; that of the trained weights is --checkpoint {weights}, or -w "
            f"{weights}. --weights (fit.weights in settings) chooses the uncertain weights: all, last_layer, lora, or "
            "a module's name."
        )


def section(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The settings of one table, by their own names."""
    return {key.partition(".")[2]: value for key, value in settings.items() if key.startswith(f"{name}.")}


def require_setting(settings: Mapping[str, Any], name: str, option: str) -> Any:
    """A setting that the command cannot do without."""
    if name not in settings:
        raise Problem(f"No {name} was given; use {option}, or {name} = ... in the file named by --config.")
    return settings[name]
