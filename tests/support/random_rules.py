"""The grammar of random networks. The order of its parts is that of its options, and so a part of what a seed means."""

from __future__ import annotations

import random_inputs
import random_layers
import random_sequences
import random_unusual_steps
from random_grammar import RULES

PARTS = (random_inputs, random_layers, random_sequences, random_unusual_steps)
RULES.update({name: RULES.pop(name) for part in PARTS for name in [n for n in RULES if hasattr(part, n)]})
