"""The basic bundle of plotly.js, which comes with peewit; the whole one comes with plotly's Python package."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

BASIC = "plotly-basic.min.js"
BASIC_TRACES = {"scatter", "bar", "pie"}  # that the basic bundle draws


def basic_source() -> str:
    """The bundle that draws lines, points and bars, 1.2 MB; `make plotly` fetches it."""
    return files("peewit.figures").joinpath(BASIC).read_text(encoding="utf-8")


def is_basic(figure: Figure) -> bool:
    """Whether the basic bundle draws all of a figure."""
    traces: list[Any] = [*figure.data, *(trace for frame in figure.frames for trace in frame.data)]
    return bool(traces) and all(trace.type in BASIC_TRACES for trace in traces)
