"""Commands that read settings: options of all, of several and of one command, and what they give together."""

from __future__ import annotations

import functools
import inspect
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from peewit_command import stop

from . import options
from .options import NETWORK_AND_DATA, SHARED, Option
from .output import Voice, check_sources
from .settings import gather_settings

ALWAYS = {
    "config": (options.Config, None),
    "assignments": (options.Assignments, None),
    "as_json": (options.AsJson, False),
    "quiet": (options.Quiet, False),
    "debug": (options.Debug, False),  # read before any command is
}


@dataclass(frozen=True)
class Run:
    """The settings of one run of a command."""

    settings: dict[str, Any]
    options: tuple[str, ...]  # settings that options gave, with config and assignments
    voice: Voice


def reads(*which: str | Option) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with these options, by their names where they are shared, and with those of every run.

    The function is called with a `Run`, and with parameters of its own.
    """
    own_options = {option.name: option for option in which if isinstance(option, Option)}
    known = own_options | {name: option for name, option in SHARED.items() if name in (*which, *NETWORK_AND_DATA)}
    others = {name: (option.annotation, None) for name, option in known.items()} | ALWAYS

    def wrap(function: Callable[..., None]) -> Callable[..., None]:
        _, *positionals = inspect.signature(function, eval_str=True).parameters.values()

        @functools.wraps(function)
        def command(**arguments: Any) -> None:
            values = {name: arguments.pop(name) for name in others}
            chosen = {option.setting: option.convert(values[name]) for name, option in known.items()}
            settings = gather_settings(values["config"], values["assignments"] or [], chosen)
            data = [settings[name] for name in ("train", "validation", "test") if name in known and name in settings]
            check_sources([*data, *(settings.get("ood", {}).values() if "ood" in known else ())])
            all_options = chosen | {"config": values["config"], "set": values["assignments"]}
            used = tuple(name for name, value in all_options.items() if value not in (None, [], {}))
            function(Run(settings, used, Voice(values["as_json"], values["quiet"])), **arguments)

        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [parameter.replace(kind=keyword) for parameter in positionals]
        parameters += [
            inspect.Parameter(name, keyword, default=default, annotation=annotation)
            for name, (annotation, default) in others.items()
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer looks at
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return wrap


@contextmanager
def loading() -> Iterator[None]:
    """For imports of torch, which take seconds: Ctrl-C meanwhile ends the process with one line."""
    if threading.current_thread() is not threading.main_thread():  # it alone may say what signals do
        yield
        return
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.default_int_handler)
