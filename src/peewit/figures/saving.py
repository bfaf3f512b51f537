"""Figures as files: pages that need no network, and pictures where a Chromium is there to draw them."""

from __future__ import annotations

import html
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..messages.errors import ArgumentTypeError, MissingPackageError, PeewitError
from ..storage.atomic import writable, writing
from .style import graph_objects

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
# Without plotly's button that sends a figure, and its data, to a server.
CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "showSendToCloud": False,
    "modeBarButtonsToRemove": ["sendDataToCloud"],
}
# The page takes the reader's light or dark colours: the figure itself is see-through.
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
figcaption {{ padding: 0 0.75rem 1rem; line-height: 1.4; }}
</style>
</head>
<body>
<figure>
{figure}
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
    """Write a figure as a page (.html) or a picture (.png), by the suffix; the file is written whole or not at all.

    Args:
        figure: A plotly figure, such as those of `pw.figures`.
        path: Name of the file, which ends in .html or .png. Its folder has to exist; a file of that name is replaced.
        plotlyjs: True puts plotly's script inside the page, which then needs no network and takes 4 to 5 MB; "cdn" has
            the page fetch it when it is opened.
        width: Width of a picture in pixels; pages take the width that there is.
        height: Height of a picture in pixels; None for the figure's own, or else 500.
        scale: Factor of a picture's resolution.

    Returns:
        The path of the file.

    Raises:
        ArgumentTypeError: `figure` is no plotly figure.
        PeewitError: The name has another suffix, it is that of a device, or `plotlyjs` is neither True nor "cdn".
        FileNotFoundError: The folder does not exist.
        IsADirectoryError: The name is that of a folder.
        MissingPackageError: A picture needs kaleido, which is not installed.
        RuntimeError: A picture needs a Chromium, and none was found.

    Example:
        >>> pw.figures.save(pw.figures.spectra(la), "spectra.html", plotlyjs="cdn").name
        'spectra.html'
    """
    target = target_path(path)
    if not isinstance(figure, graph_objects().Figure):
        raise ArgumentTypeError(
            f"figure is a {type(figure).__name__}; expected a figure of plotly, as peewit.figures makes."
        )
    if plotlyjs not in (True, "cdn"):
        raise PeewitError(
            f"plotlyjs={plotlyjs!r} was given; expected True, for a page that needs no network, or 'cdn'."
        )
    if target.suffix.lower() == ".html":
        content = page(figure, plotlyjs).encode()
    else:
        content = picture(figure, width, height, scale)
    with writing(target) as temporary:
        temporary.write_bytes(content)
    return target


def target_path(path: str | os.PathLike[str]) -> Path:
    """Where to write; refuses what is no place for a figure before any work is done."""
    target = Path(os.fsdecode(path))
    if target.suffix.lower() not in (".html", ".png"):
        raise PeewitError(f"{target.name!r} ends in {target.suffix!r}; expected a name that ends in .html or .png.")
    return writable(target, "figure.html")


def page(figure: Figure, plotlyjs: Literal[True, "cdn"]) -> str:
    """A whole page with one figure and its description."""
    meta = figure.layout.meta or {}
    content = figure.to_html(full_html=False, include_plotlyjs=plotlyjs, config=CONFIG)
    title, alt = (html.escape(str(meta.get(name, ""))) for name in ("title", "alt"))
    return PAGE.format(title=title or "Figure", figure=content, alt=alt)


def browser() -> str | None:
    """Chromium or Chrome where the system has one; kaleido finds its own otherwise."""
    chosen = os.environ.get("BROWSER_PATH")
    return chosen or next((path for name in BROWSERS if (path := shutil.which(name))), None)


def picture(figure: Figure, width: int, height: int | None, scale: float) -> bytes:
    """A PNG, drawn by Chromium through kaleido."""
    try:
        import kaleido
    except ImportError as error:
        raise MissingPackageError(
            "Pictures need kaleido, which is not installed: pip install kaleido. Pages (.html) do not."
        ) from error
    size = {"width": width, "height": height or figure.layout.height or 500, "scale": scale}
    # Formulas would be fetched from a network, and no figure has any.
    settings: dict[str, Any] = {"mathjax": False} | ({"path": browser_path} if (browser_path := browser()) else {})
    try:
        image: bytes = kaleido.calc_fig_sync(figure, opts={"format": "png", **size}, kopts=settings)
    except RuntimeError as error:
        if type(error).__name__ != "ChromeNotFoundError":
            raise
        raise RuntimeError(
            "No Chromium was found to draw the picture with: install one (apt-get install chromium, or "
            "kaleido_get_chrome), name it in BROWSER_PATH, or save the figure as .html, which needs none."
        ) from None
    return image
