"""One lock for all networks: they are shared between threads, and changed while they are asked."""

from __future__ import annotations

import threading

LOCK = threading.RLock()
