"""Commands that read settings: the options that many share are added to their own, and what all say is gathered."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from . import options
from .output import Voice
from .settings import gathered


class Option(NamedTuple):
    """An option of the command line, and the setting that it gives."""

    setting: str
    annotation: Any
    held: Callable[[Any], Any] = lambda value: value  # as settings hold it


def path(given: Path | None) -> str | None:
    """As settings hold it."""
    return None if given is None else str(given)


def paths(given: list[Path] | None) -> list[str]:
    """Likewise."""
    return [str(each) for each in given or ()]


SHARED = {
    "posterior": Option("posterior", options.Posterior, path),
    "model": Option("model", options.Model),
    "weights": Option("weights", options.Weights, path),
    "likelihood": Option("likelihood", options.Likelihood),
    "train": Option("train", options.Train),
    "validation": Option("validation", options.Validation),
    "test": Option("test", options.Test),
    "ood": Option("ood", options.Ood, options.pairs),
    "ensemble": Option("ensemble", options.Ensemble, paths),
    "target": Option("target", options.Target),
    "classes": Option("classes", options.Classes, options.words),
    "header": Option("header", options.Header),
    "size": Option("size", options.Size),
    "seed": Option("seed", options.Seed),
    "title": Option("title", options.Title),
    "device": Option("device", options.Device),
}
ALWAYS = {
    "config": (options.Config, None),
    "assignments": (options.Assignments, None),
    "as_json": (options.AsJson, False),
    "quiet": (options.Quiet, False),
    "debug": (options.Debug, False),  # read before any command is
}


@dataclass(frozen=True)
class Run:
    """What a command was asked."""

    settings: dict[str, Any]
    options: tuple[str, ...]  # those that were given, as settings are called, with config and assignments
    voice: Voice


def asks(*shared: str, **own: Option) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with these settings as options; it is called with a `Run`, and with parameters of its own."""
    asked = own | {name: SHARED[name] for name in shared}

    def made(function: Callable[..., None]) -> Callable[..., None]:
        _, *mine = inspect.signature(function, eval_str=True).parameters.values()
        others = {name: (option.annotation, None) for name, option in asked.items()} | ALWAYS
        keyword = inspect.Parameter.KEYWORD_ONLY
        added = [
            inspect.Parameter(name, keyword, default=default, annotation=annotation)
            for name, (annotation, default) in others.items()
        ]

        @functools.wraps(function)
        def command(**given: Any) -> None:
            values = {name: given.pop(name) for name in others}
            told = {option.setting: option.held(values[name]) for name, option in asked.items()}
            known = gathered(values["config"], values["assignments"] or [], told)
            extra = {"config": values["config"], "set": values["assignments"]}
            named = tuple(name for name, value in (told | extra).items() if value not in (None, [], {}))
            function(Run(known, named, Voice(values["as_json"], values["quiet"])), **given)

        parameters = [each.replace(kind=keyword) for each in mine] + added
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer looks at
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return made
