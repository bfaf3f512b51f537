"""Figures as files: self-contained pages, and pictures, which need a Chromium."""

from __future__ import annotations

import html
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..messages.errors import ArgumentTypeError, MissingPackageError, PeewitError
from ..storage.atomic import writable, writing
from .plotly_source import basic_source, is_basic
from .style import CLEAR, INK, TEXT, graph_objects

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
# No button that sends the figure with its data to a server.
CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "showSendToCloud": False,
    "modeBarButtonsToRemove": ["sendDataToCloud"],
}
# The page follows the reader's light or dark colours: the figure is transparent, and texts in its grey take the page's.
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 0; background: Canvas; color: CanvasText; font-family: system-ui, sans-serif; }}
figure {{ margin: 0 auto; max-width: 70rem; padding: 0.5rem; }}
text[style*="fill: {text}"] {{ fill: CanvasText !important; }}
figcaption {{ padding: 0 0.75rem 1rem; line-height: 1.4; }}
</style>
</head>
<body>
<figure>
{library}{figure}
<figcaption>{alt}</figcaption>
</figure>
</body>
</html>
"""


def save(
    figure: Figure,
    path: str | os.PathLike[str],
    *,
    plotlyjs: Literal[True, "cdn"] = True,
    width: int = 800,
    height: int | None = None,
    scale: float = 1.0,
) -> Path:
    """Write a figure as a page (.html) or a picture (.png), whole or not at all.

    Args:
        figure: A plotly figure, such as those of `pw.figures`.
        path: Name of the file, ending in .html or .png. Its folder has to exist; an existing file is replaced.
        plotlyjs: True puts plotly's script into the page, which then works offline. It takes 1.2 MB for lines, points
            and bars, and 5 MB for all else, such as contours. With "cdn" the page fetches the script when it is opened.
        width: Width of a picture in pixels; pages fill the window.
        height: Height of a picture in pixels; None for the figure's own, or else 500.
        scale: Factor of a picture's resolution; 2 is sharp on today's screens. A picture has a white ground unless
            `figure.layout.paper_bgcolor` is set.

    Returns:
        The path of the file.

    Raises:
        ArgumentTypeError: `figure` is not a plotly figure.
        PeewitError: The path has another suffix or is a device, or `plotlyjs` is neither True nor "cdn".
        FileNotFoundError: The folder does not exist.
        IsADirectoryError: The path is a folder.
        MissingPackageError: A picture needs kaleido, or a Chromium, which is not installed.

    Example:
        >>> pw.figures.save(pw.figures.spectra(la), "spectra.html", plotlyjs="cdn").name
        'spectra.html'
    """
    target = writable(path, "figure.html", (".html", ".png"))
    if not isinstance(figure, graph_objects().Figure):
        raise ArgumentTypeError(
            f"figure is a {type(figure).__name__}; expected a plotly figure, such as those of peewit.figures."
        )
    if plotlyjs not in (True, "cdn"):
        raise PeewitError(f"plotlyjs={plotlyjs!r} was given; expected True, for a page that works offline, or 'cdn'.")
    if target.suffix.lower() == ".html":
        content = page(figure, plotlyjs).encode()
    else:
        content = picture(figure, width, height, scale)
    with writing(target) as temporary:
        temporary.write_bytes(content)
    return target


def page(figure: Figure, plotlyjs: Literal[True, "cdn"]) -> str:
    """A page with one figure and its description."""
    meta = figure.layout.meta or {}
    basic = plotlyjs is True and is_basic(figure)
    library = f"<script>{basic_source()}</script>\n" if basic else ""
    content = figure.to_html(full_html=False, include_plotlyjs=False if basic else plotlyjs, config=CONFIG)
    title, alt = (html.escape(str(meta.get(name, ""))) for name in ("title", "alt"))
    text = f"rgb{tuple(bytes.fromhex(TEXT[1:]))}"  # as browsers write a colour
    return PAGE.format(title=title or "Figure", library=library, figure=content, alt=alt, text=text)


def on_white(figure: Figure) -> dict[str, Any]:
    """The figure as a picture shows it: a transparent one gets a white ground, and dark text in place of grey."""
    content = figure.to_json()
    if figure.layout.paper_bgcolor != CLEAR:
        drawn: dict[str, Any] = json.loads(content)
        return drawn
    drawn = json.loads(content.replace(f'"{TEXT}"', f'"{INK}"'))
    drawn["layout"]["paper_bgcolor"] = "white"
    return drawn


def browser() -> str | None:
    """The path of the system's Chromium or Chrome; without one, kaleido looks for its own."""
    chosen = os.environ.get("BROWSER_PATH")
    return chosen or next((path for name in BROWSERS if (path := shutil.which(name))), None)


def picture(figure: Figure, width: int, height: int | None, scale: float) -> bytes:
    """A PNG, drawn by Chromium through kaleido."""
    try:
        import kaleido
    except ImportError as error:
        raise MissingPackageError(
            "Pictures need kaleido, which is not installed: pip install kaleido. Pages (.html) do not need it."
        ) from error
    size = {"width": width, "height": height or figure.layout.height or 500, "scale": scale}
    # No figure has formulas, whose script would be fetched from a server.
    settings: dict[str, Any] = {"mathjax": False} | ({"path": browser_path} if (browser_path := browser()) else {})
    try:
        image: bytes = kaleido.calc_fig_sync(on_white(figure), opts={"format": "png", **size}, kopts=settings)
    except RuntimeError as error:
        if type(error).__name__ != "ChromeNotFoundError":
            raise
        raise MissingPackageError(
            "No Chromium was found to draw the picture with: install one (apt-get install chromium, or "
            "kaleido_get_chrome), name it in BROWSER_PATH, or save the figure as .html."
        ) from None
    return image
