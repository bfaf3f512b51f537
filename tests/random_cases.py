"""Networks that were wrong once, as random networks found them, shrunk, each with its seed."""

from __future__ import annotations

from random_networks import Network

KEPT: dict[str, Network] = {}
