"""`Schema`: what the columns and classes of the training data were called."""

from __future__ import annotations

from dataclasses import dataclass

from ..messages.errors import PeewitError


@dataclass(frozen=True)
class Schema:
    """Names by which the command line matches new data with the data of the fit; nothing else reads them."""

    columns: tuple[str, ...] = ()  # all columns of a table in its order; without a header "0", "1", ...
    targets: tuple[str, ...] = ()  # those of the columns that are targets
    header: bool = False
    classes: tuple[str, ...] | None = None  # in the order of the outputs

    def __post_init__(self) -> None:
        for names in (self.columns, self.targets, self.classes or ()):
            if len(set(names)) < len(names):
                raise PeewitError(f"{', '.join(names[:12])}: expected distinct names")
        if self.columns and not 0 < len(set(self.targets) & set(self.columns)) == len(self.targets) < len(self.columns):
            raise PeewitError(f"the targets {self.targets[:12]} are not some of the columns {self.columns[:12]}")

    @property
    def inputs(self) -> tuple[str, ...]:
        """All columns but the targets."""
        return tuple(name for name in self.columns if name not in self.targets)
