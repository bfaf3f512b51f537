"""How many random networks the tests take."""

from __future__ import annotations

from environment import DEVICE

COUNT = 240 if DEVICE == "cpu" else 100
