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

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "gallery.md"
STEP = re.compile(
    r"^```python\n(?P<code>.*?)^```$|^!\[(?P<alt>[^\]]*)\]\((?P<path>figures/gallery/[^)]+)\)$", re.M | re.S
)
LARGEST = 120_000  # bytes of a picture


def draw(figure: Any, path: Path) -> int:
    """Write a figure as a picture with few colours, and return its bytes."""
    size = {"width": 760, "height": figure.layout.height, "scale": 1}
    raw = kaleido.calc_fig_sync(figure, opts={"format": "png", **size})
    best = pack(Image.open(io.BytesIO(raw)))
    if len(best) > LARGEST:  # on white: with fewer colours a transparent picture has stripes
        drawn = Image.open(io.BytesIO(raw)).convert("RGBA")
        flat = Image.alpha_composite(Image.new("RGBA", drawn.size, "white"), drawn).convert("RGB")
        best = pack(flat.quantize(256, Image.Quantize.MEDIANCUT))
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
