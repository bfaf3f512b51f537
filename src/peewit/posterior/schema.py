"""`Schema`: what the columns and classes of the training data were called, and how they were scaled."""

from __future__ import annotations

from dataclasses import dataclass

from ..messages.errors import PeewitError
from ..network.scaling import Scaling


@dataclass(frozen=True, kw_only=True)
class Schema:
    """Names by which the command line matches new data with the data of the fit, and the scaling of its columns."""

    columns: tuple[str, ...] = ()  # all columns of a table in its order; without a header "0", "1", ...
    targets: tuple[str, ...] = ()  # those of the columns that are targets
    header: bool = False
    named_inputs: tuple[str, ...] = ()  # inputs that were chosen by name, in the network's order; () for all others
    classes: tuple[str, ...] | None = None  # in the order of the outputs
    scaling: Scaling | None = None  # which the network has inside: it takes and gives the units of the table

    def __post_init__(self) -> None:
        for names in (self.columns, self.targets, self.named_inputs, self.classes or ()):
            if len(set(names)) < len(names):
                raise PeewitError(f"{', '.join(names[:12])}: expected distinct names")
        if self.columns and not 0 < len(set(self.targets) & set(self.columns)) == len(self.targets) < len(self.columns):
            raise PeewitError(f"the targets {self.targets[:12]} are not some of the columns {self.columns[:12]}")
        if not set(self.named_inputs) <= set(self.columns) - set(self.targets):
            raise PeewitError(f"the inputs {self.named_inputs[:12]} are not some of the columns beside the targets")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Those that were chosen by name, or all columns but the targets."""
        return self.named_inputs or tuple(name for name in self.columns if name not in self.targets)
