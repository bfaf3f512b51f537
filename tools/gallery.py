"""Draw the pictures of docs/gallery.md and the one of docs/report.md: `python tools/gallery.py [NAME ...]`.

The code of the gallery runs. After each block, the variable `figure` is drawn into the picture that follows the block,
and its description is written into the page. The picture `report` is the top of the page that the demo writes. Needs
plotly, kaleido, pillow, Playwright and a Chromium.
"""

from __future__ import annotations

import io
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import kaleido
from PIL import Image
from playwright.sync_api import sync_playwright

from peewit import demo
from peewit.figures.saving import on_white

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "gallery.md"
STEP = re.compile(
    r"^```python\n(?P<code>.*?)^```$|^!\[(?P<alt>[^\]]*)\]\((?P<path>figures/gallery/[^)]+)\)$", re.M | re.S
)
REPORT = DOCS / "figures" / "report.png"
WINDOW = {"width": 1200, "height": 1130}  # down to the first figure
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
LARGEST = 230_000  # bytes of a picture
COLOURS = 256


def draw(figure: Any, path: Path) -> int:
    """Write a figure as a picture that is sharp at two pixels for one, and return its bytes."""
    size = {"width": 760, "height": figure.layout.height, "scale": 2}
    raw = kaleido.calc_fig_sync(on_white(figure), opts={"format": "png", **size})
    return keep(raw, path)


def draw_report(path: Path) -> int:
    """Write the top of the demo's page as a picture, and return its bytes."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        demo.run(report=page)
        return draw_page(page, path)


def draw_page(page: Path, path: Path) -> int:
    """Write the top of a page, in light colours, as a picture that is sharp at two pixels for one."""
    executable = next(found for name in BROWSERS if (found := shutil.which(name)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        tab = browser.new_page(viewport=WINDOW, device_scale_factor=2, color_scheme="light")
        tab.goto(page.as_uri())
        tab.wait_for_function("document.documentElement.dataset.ready === 'yes'")
        raw = tab.screenshot()
        browser.close()
    return keep(raw, path)


def keep(raw: bytes, path: Path) -> int:
    """Write a picture as small as it gets, and return its bytes."""
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
    """Draw the pictures that are wanted, or all of them."""
    if not wanted or REPORT.stem in wanted:
        print(f"  {REPORT.name}: {draw_report(REPORT):,} bytes")
    if wanted != [REPORT.stem]:
        draw_gallery(wanted)


def draw_gallery(wanted: list[str]) -> None:
    """Run the page from top to bottom, and draw its pictures."""
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
