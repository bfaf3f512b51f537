"""What happened while hyperparameters were learnt: one record per epoch or hyper-step, and all of them together."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, overload

from torch import Tensor

from ..messages.errors import MissingPackageError, PeewitError
from ..storage.atomic import writable, writing

if TYPE_CHECKING:
    import pandas

FEW = 6  # precisions up to which a line shows each
MOST = 65_536  # groups up to which every record has a number for each


@dataclass(frozen=True, kw_only=True)
class LearningRecord:
    """What one epoch of training, or one hyper-step, came to.

    `learner.step()` returns it, and `pw.learning.train` yields one after every epoch. Fields about the evidence are
    None after an epoch without a hyper-step.

    Attributes:
        epoch: Number of epochs finished. None in a loop of your own, unless `learner.step(epoch=...)` said it.
        loss: Mean of the loss over the epoch. None where `train` did not measure it.
        hyper_step: Number of hyper-steps taken so far.
        log_evidence: The log evidence at the weights of the record, after the hyper-step.
        log_likelihood: Its data fit.
        complexity: Its other part, the price of the weights: `log_evidence - log_likelihood`.
        precision: Prior precisions (groups,). None where there are more than 65,536: `learner.prior` has them.
        effective_dimensions: Weights of each group that the data determine (groups,); their sum (1,) where there are
            more than 65,536.
        noise: The noise's standard deviation, or the common factor of several. None for a likelihood without one.
        examples: Number N of training examples that the evidence is about.
        kept: Whether these weights are the ones kept: the best evidence so far.
        seconds: What the hyper-step took.
        measuring: The part of it that passed over data.
        decomposing: The part of it that decomposed the curvature.

    Example:
        >>> record = learner.step()
        >>> record.hyper_step, record.precision.shape
        (2, torch.Size([1]))
    """

    epoch: int | None = None
    loss: float | None = None
    hyper_step: int = 0
    log_evidence: float | None = None
    log_likelihood: float | None = None
    complexity: float | None = None
    precision: Tensor | None = None
    effective_dimensions: Tensor | None = None
    noise: float | None = None
    examples: int = 0
    kept: bool = False
    seconds: float = 0.0
    measuring: float = 0.0
    decomposing: float = 0.0

    def fields(self) -> dict[str, Any]:
        """Every field by its name."""
        return dict(vars(self))

    def plain(self) -> dict[str, Any]:
        """Numbers and lists alone: what a line of JSON holds.

        Returns:
            A value by the name of each field.

        Example:
            >>> sorted(learner.step().plain())[:3]
            ['complexity', 'decomposing', 'effective_dimensions']
        """
        return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in vars(self).items()}

    def __str__(self) -> str:
        """One line."""
        parts = [] if self.epoch is None else [f"epoch {self.epoch}"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4g}")
        if self.log_evidence is not None:
            parts.append(f"log evidence {self.log_evidence:.2f} (fit {self.log_likelihood:.2f})")
            parts += [] if self.precision is None else [f"precision {spread(self.precision)}"]
            parts += [] if self.noise is None else [f"noise {self.noise:.3g}"]
            if self.effective_dimensions is not None:
                parts.append(f"effective dimensions {float(self.effective_dimensions.sum()):.1f}")
            parts += ["kept"] if self.kept else []
        return ", ".join(parts)


def spread(values: Tensor) -> str:
    """Some numbers, or their range."""
    numbers = values.tolist()
    if len(numbers) <= FEW:
        return " ".join(f"{value:.3g}" for value in numbers)
    return f"{min(numbers):.3g} to {max(numbers):.3g}"


@dataclass(frozen=True)
class History(Sequence[LearningRecord]):
    """All records of a run, in order: a sequence, a table, or lines of JSON.

    `learner.history` is one.

    Attributes:
        records: The records.
        groups: The name of each precision; none where there are more than 65,536.
        hyper_steps: The records with an evidence.
        best: The record with the highest evidence, or None before the first hyper-step.

    Example:
        >>> learner.history.to_pandas()[["hyper_step", "examples"]].values.tolist()
        [[1, 60]]
    """

    records: tuple[LearningRecord, ...] = ()
    groups: tuple[str, ...] = ()

    @overload
    def __getitem__(self, index: int) -> LearningRecord: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[LearningRecord, ...]: ...

    def __getitem__(self, index: int | slice) -> LearningRecord | tuple[LearningRecord, ...]:
        return self.records[index]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[LearningRecord]:
        return iter(self.records)

    def plus(self, record: LearningRecord) -> History:
        """With one more."""
        return replace(self, records=(*self.records, record))

    @property
    def hyper_steps(self) -> tuple[LearningRecord, ...]:
        """The records with an evidence."""
        return tuple(record for record in self.records if record.log_evidence is not None)

    @property
    def best(self) -> LearningRecord | None:
        """The record with the highest evidence, or None before the first hyper-step."""
        return max(self.hyper_steps, key=lambda record: record.log_evidence or -math.inf, default=None)

    def to_pandas(self) -> pandas.DataFrame:
        """Make a data frame.

        Returns:
            A frame with one row per record. Precisions and effective dimensions have one column per group, named
            "precision of ..." and "effective dimensions of ...".

        Raises:
            MissingPackageError: pandas is not installed.

        Example:
            >>> learner.history.to_pandas().columns[-1]
            'effective dimensions of all'
        """
        try:
            import pandas
        except ImportError:
            raise MissingPackageError("to_pandas() needs pandas, which is not installed: pip install pandas") from None
        return pandas.DataFrame([self._row(record) for record in self.records])

    def _row(self, record: LearningRecord) -> dict[str, Any]:
        row = {name: value for name, value in vars(record).items() if name not in ("precision", "effective_dimensions")}
        for words, values in (("precision", record.precision), ("effective dimensions", record.effective_dimensions)):
            numbers = [math.nan] * len(self.groups) if values is None else values.tolist()
            row |= {f"{words} of {group}": number for group, number in zip(self.groups, numbers, strict=False)}
        return row

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one line of JSON per record, whole or not at all.

        Args:
            path: The file, such as "run.jsonl".

        Raises:
            FileNotFoundError: The folder does not exist.
            IsADirectoryError: The path is a folder.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     learner.history.save(f"{folder}/run.jsonl")
        """
        with writing(writable(path, "run.jsonl")) as temporary:
            temporary.write_text("".join(f"{line(record)}\n" for record in self.records), encoding="utf-8")


def line(record: LearningRecord) -> str:
    """A record as one line of JSON, in which NaN and infinities are null."""
    return json.dumps(finite(record.plain()), allow_nan=False)


def finite(value: Any) -> Any:
    """Numbers that JSON has."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def numbers_to_log(history: History) -> dict[str, float]:
    """What a logger gets of the last record, by name; precisions if there are few."""
    record = history[-1]
    numbers = {f"learning/{name}": value for name, value in vars(record).items() if isinstance(value, float)}
    if record.effective_dimensions is not None:
        numbers["learning/effective_dimensions"] = float(record.effective_dimensions.sum())
    if record.precision is not None and len(history.groups) <= FEW**2:
        pairs = zip(history.groups, record.precision.tolist(), strict=True)
        numbers |= {f"precision/{group}": value for group, value in pairs}
    return numbers


@dataclass(eq=False, kw_only=True)
class Log:
    """Where records go as they come: a file of lines, and TensorBoard."""

    path: str | os.PathLike[str] | None = None
    board: str | os.PathLike[str] | None = None
    resume: bool = False
    writer: Any = field(default=None, init=False)
    begun: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.path is not None and writable(self.path, "run.jsonl").exists() and not self.resume:
            raise PeewitError(
                f"{os.fsdecode(self.path)} exists already. Choose another log=, or give resume=True with the "
                "checkpoint= of its run."
            )
        if self.board is not None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise MissingPackageError(
                    "tensorboard= needs TensorBoard, which is not installed: pip install tensorboard"
                ) from None
            self.writer = SummaryWriter(os.fsdecode(self.board))

    def write(self, history: History) -> None:
        """The last record of a history; at first all of them, so that after a resumption no line stands twice."""
        if self.path is not None:
            if self.begun:
                with open(self.path, "a", encoding="utf-8") as file:
                    file.write(f"{line(history[-1])}\n")
            else:
                history.save(self.path)
                self.begun = True
        if self.writer is not None:
            self._to_board(history)

    def _to_board(self, history: History) -> None:
        record = history[-1]
        step = record.hyper_step if record.epoch is None else record.epoch
        for name, value in numbers_to_log(history).items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()
