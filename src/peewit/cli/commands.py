"""All commands with the ends of their help pages, in the order in which they are listed."""

from __future__ import annotations

from .evaluating import COMPARE, EVALUATE, REPORT, compare, evaluate, report
from .posteriors import FIT, TUNE, fit, tune
from .predicting import PREDICT, predict
from .recommending import RECOMMEND, recommend
from .showing import DEMO, LANDSCAPE, demo, landscape

ALL = (
    (demo, DEMO),
    (recommend, RECOMMEND),
    (fit, FIT),
    (tune, TUNE),
    (predict, PREDICT),
    (evaluate, EVALUATE),
    (report, REPORT),
    (compare, COMPARE),
    (landscape, LANDSCAPE),
)
