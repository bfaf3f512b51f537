"""Draw the pictures of docs/gallery.md by running its code: `python tools/gallery.py [NAME ...]`.

After each block of code, the variable `figure` is drawn into the picture that follows the block, and its description is
written into the page. Needs plotly, kaleido, pillow and a Chromium.
"""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path
from typing import Any

import kaleido
from PIL import Image

from peewit.figures.saving import on_white

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "gallery.md"
STEP = re.compile(
    r"^```python\n(?P<code>.*?)^```$|^!\[(?P<alt>[^\]]*)\]\((?P<path>figures/gallery/[^)]+)\)$", re.M | re.S
)
LARGEST = 230_000  # bytes of a picture
COLOURS = 256


def draw(figure: Any, path: Path) -> int:
    """Write a figure as a picture that is sharp at two pixels for one, and return its bytes."""
    size = {"width": 760, "height": figure.layout.height, "scale": 2}
    raw = kaleido.calc_fig_sync(on_white(figure), opts={"format": "png", **size})
    drawn = Image.open(io.BytesIO(raw)).convert("RGB")
    few = drawn.getcolors(COLOURS) is not None
    best = pack(drawn.quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE) if few else drawn)
    if len(best) > LARGEST:
        best = pack(drawn.quantize(COLOURS, Image.Quantize.MEDIANCUT))
    path.write_bytes(best)
    return len(best)


def pack(image: Image.Image) -> bytes:
    """A PNG as small as it gets without loss."""
    content = io.BytesIO()
    image.save(content, "PNG", optimize=True)
    return content.getvalue()


def main(wanted: list[str]) -> None:
    """Run the page from top to bottom, and draw the pictures that are wanted, or all of them."""
    text = PAGE.read_text(encoding="utf-8")
    space: dict[str, Any] = {"__name__": "gallery"}
    alts: dict[str, str] = {}
    kaleido.start_sync_server(mathjax=False)
    try:
        for step in STEP.finditer(text):
            began = time.perf_counter()
            if step["code"]:
                exec(compile(step["code"], str(PAGE), "exec"), space)
                print(f"  {time.perf_counter() - began:5.1f} s  {step['code'].strip().splitlines()[-1][:80]}")
                continue
            figure = space["figure"]
            alts[step["path"]] = figure.layout.meta["alt"]
            path = DOCS / step["path"]
            if not wanted or path.stem in wanted:
                print(f"  {path.name}: {draw(figure, path):,} bytes")
    finally:
        kaleido.stop_sync_server()

    def with_description(step: re.Match[str]) -> str:
        return step[0] if step["code"] else f"![{alts[step['path']]}]({step['path']})"

    PAGE.write_text(STEP.sub(with_description, text), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
