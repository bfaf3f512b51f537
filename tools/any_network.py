"""Draw the picture of docs/any_network.md: `python tools/any_network.py`. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.patches import FancyBboxPatch

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "figures" / "any_network.png"
INK, LINES = "#3D3D3D", "#8A8A8A"
COLUMNS = (  # title, left end, width, ground
    ("What your network says", 0.0, 3.0, "#F2F2F2"),
    ("The call that torch makes", 3.6, 3.0, "#D9E9F4"),
    ("The rule that Peewit takes", 7.2, 3.2, "#DDF0E8"),
)
ROWS = (
    ("self.conv(x)", "F.conv2d(x, weight)", "convolution"),
    ("F.linear(h, tied.weight)", "F.linear(h, weight)", "linear"),
    ("x + self.position", "x + parameter", "added parameter"),
    ("self.lstm(x)", "lstm(x, weights)", "generic: exact, slower"),
)
CHECK = "At the first fit: compared with torch.autograd.grad. What disagrees takes the generic rule."
HEIGHT, STEP = 0.62, 0.92


def box(axes: pyplot.Axes, left: float, low: float, width: float, ground: str, text: str, code: bool) -> None:
    """A rounded box with a text in it."""
    style = "round,pad=0,rounding_size=0.1"
    axes.add_patch(FancyBboxPatch((left, low), width, HEIGHT, boxstyle=style, facecolor=ground, edgecolor=LINES))
    family = "monospace" if code else "sans-serif"
    axes.text(left + width / 2, low + HEIGHT / 2, text, ha="center", va="center", color=INK, size=9.5, family=family)


def main() -> None:
    """Write the picture, 1,520 pixels wide: sharp at two pixels for one."""
    figure = pyplot.figure(figsize=(7.6, 3.9), dpi=200)
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    top = STEP * len(ROWS)
    for title, left, width, _ in COLUMNS:
        axes.text(left + width / 2, top + 0.98, title, ha="center", va="center", color=INK, size=10.5, weight="bold")
    for number, row in enumerate(ROWS):
        low = top - STEP * number
        for place, ((_, left, width, ground), text) in enumerate(zip(COLUMNS, row, strict=True)):
            box(axes, left, low, width, ground, text, code=place < 2)
        for _, left, width, _ in COLUMNS[:2]:
            ends = {"xy": (left + width + 0.57, low + HEIGHT / 2), "xytext": (left + width + 0.05, low + HEIGHT / 2)}
            axes.annotate("", **ends, arrowprops={"arrowstyle": "->", "color": LINES, "lw": 1.4})
    box(axes, 0.0, 0.0, 10.4, "#FFFFFF", CHECK, code=False)
    axes.set_xlim(-0.1, 10.5)
    axes.set_ylim(-0.15, top + 1.3)
    axes.axis("off")
    figure.savefig(PICTURE)


if __name__ == "__main__":
    main()
