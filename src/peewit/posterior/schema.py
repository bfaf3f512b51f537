"""`Schema`: what the columns and classes of the training data were called, and how they were scaled."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

from ..messages.errors import PeewitError
from ..messages.names import names_for_users
from ..network.arrays import frame_names, in_order
from ..network.scaling import Scaling


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Names by which new data are matched with the data of the fit, and the scaling of its columns.

    `la.schema` is one where a data frame was fitted, or where the command line fitted a table.

    Attributes:
        columns: Names of all columns, in the order of the table; "0", "1", ... without a header.
        targets: Those of the columns that are targets.
        header: Whether the columns have names.
        named_inputs: Inputs that were chosen by name, in the network's order; empty where all others are inputs.
        inputs: The inputs: `named_inputs`, or all columns but the targets.
        classes: Names of the classes, in the order of the outputs. None where they have none.
        scaling: Means and deviations of the columns, which the network has inside; `input_means`, `input_deviations`,
            `target_means` and `target_deviations`. None where nothing was standardised.

    Example:
        >>> la.schema is None  # a fit to tensors
        True
    """

    columns: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    header: bool = False
    named_inputs: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    scaling: Scaling | None = None

    def __dir__(self) -> list[str]:
        """What is for users."""
        return names_for_users(self, {"of_frames", "in_order"})

    def __post_init__(self) -> None:
        for names in (self.columns, self.targets, self.named_inputs, self.classes or ()):
            if len(set(names)) < len(names):
                raise PeewitError(f"{', '.join(names[:12])}: expected distinct names")
        if self.columns and not 0 < len(set(self.targets) & set(self.columns)) == len(self.targets) < len(self.columns):
            raise PeewitError(f"the targets {self.targets[:12]} are not some of the columns {self.columns[:12]}")
        if not set(self.named_inputs) <= set(self.columns) - set(self.targets):
            raise PeewitError(f"the inputs {self.named_inputs[:12]} are not some of the columns beside the targets")

    @staticmethod
    def of_frames(data: Any) -> Schema | None:
        """That of a pair whose inputs are a data frame; None where columns have no names."""
        names = frame_names(data[0]) if isinstance(data, tuple) and len(data) == 2 else ()
        if not names:
            return None
        given = frame_names(data[1]) or (getattr(data[1], "name", None),)
        known = all(isinstance(name, str) and name not in names for name in given)
        targets = (
            tuple(map(str, given))
            if known
            else (next(f"target{'_' * n}" for n in count() if f"target{'_' * n}" not in names),)
        )
        return Schema(columns=(*names, *targets), targets=targets, header=True)

    def in_order(self, data: Any) -> Any:
        """Data, or inputs, in which the columns of a frame are in the order of the fit, where both have names."""
        return in_order(data, self.inputs) if self.header else data

    @property
    def inputs(self) -> tuple[str, ...]:
        """Those that were chosen by name, or all columns but the targets."""
        return self.named_inputs or tuple(name for name in self.columns if name not in self.targets)
