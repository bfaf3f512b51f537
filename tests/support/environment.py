"""What a run of the tests was given: the device, the folder with data sets, the order; and where the repository is."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEVICE = os.environ.get("PEEWIT_TEST_DEVICE", "cpu")
DATA = os.environ.get("PEEWIT_DATA", "")
ORDER = os.environ.get("PEEWIT_TEST_ORDER", "")
