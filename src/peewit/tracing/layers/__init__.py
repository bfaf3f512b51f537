"""Layer rules: which calls are recognised, and what they contribute to a Jacobian. One file per family."""

from typing import Any

from . import attention, contractions, elementwise, embedding, linear, norm, pooling, unbind
from .contract import Handler
from .conv import rule

HANDLERS: dict[Any, Handler] = {
    handled: handler
    for family in (linear, contractions, rule, embedding, norm, elementwise, attention, pooling, unbind)
    for handled, handler in family.HANDLERS.items()
}
