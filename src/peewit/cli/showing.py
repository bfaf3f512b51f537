"""The work of `peewit landscape`: the loss around the trained weights."""

from __future__ import annotations

from pathlib import Path

from .. import figures
from .datasets import load
from .networks import generator, posterior
from .output import check_writable
from .posteriors import wanted_by
from .runs import Run
from .settings import require_setting, section


def landscape(run: Run, out: Path) -> None:
    """Draw the loss along two directions, and write the figure."""
    settings, voice = run.settings, run.voice
    check_writable(out, (".html", ".png"))
    la = posterior(settings)
    data = load(require_setting(settings, "train", "--train DATA"), wanted_by(settings, la))
    with voice.stage("the landscape", with_bar=False):
        figure = figures.landscape_2d(
            la, data.value, generator=generator(settings), progress=voice.progress, **section(settings, "landscape")
        )
    figures.save(figure, out)
    voice.answer({"landscape": str(out)}, f"written to {out}")
