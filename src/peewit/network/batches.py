"""Data of any form as batches on one device."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch.utils.checkpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from ..messages.arguments import is_array, refuse_data
from ..messages.errors import ArgumentTypeError, PeewitError
from .arrays import as_pair, as_tensors, conversions, convert_dtypes, holds_array, holds_numbers, is_frame
from .modules import device_of
from .nests import Inputs, Pair, count, have_same_form, join, map_tensors, take, tensors

LABELS = ("labels", "label", "targets", "target", "y")  # under which a mapping has its targets


CHOSEN, REJECTED = "chosen", "rejected"  # "input_ids_chosen" or "chosen_input_ids", in mappings that hold pairs


def pair_of(batch: Any) -> Pair | None:
    """The pairs of a batch without labels, whose first inputs were preferred; None for other batches."""
    if isinstance(batch, Pair) or not isinstance(batch, Mapping):
        return batch if isinstance(batch, Pair) else None
    first, second = (
        {role: value for name, value in batch.items() if (role := member(name, word)) is not None}
        for word in (CHOSEN, REJECTED)
    )
    if not first or not second:
        return None
    own = [name for name in batch if any(member(name, word) is not None for word in (CHOSEN, REJECTED))]
    others = [name for name, value in batch.items() if name not in own and isinstance(value, Tensor)]
    if first.keys() != second.keys() or others:
        raise PeewitError(
            f"A batch of pairs has the keys {sorted(map(str, batch))}; expected the same names with '_{CHOSEN}' and "
            f"with '_{REJECTED}', and no other tensors, such as margins."
        )
    return Pair(first, second)


def member(name: Any, word: str) -> str | None:
    """The input that a name of a mapping says, of the chosen or the rejected ones; None where it says another thing."""
    if not isinstance(name, str) or not (name.startswith(f"{word}_") or name.endswith(f"_{word}")):
        return None
    return name.removeprefix(f"{word}_") if name.startswith(f"{word}_") else name.removesuffix(f"_{word}")


def without_labels(model: nn.Module, inputs: Any) -> Any:
    """The inputs of a mapping that may be a whole batch, as `split_batch` tells them from the targets.

    A name that the forward pass needs is an input, whatever it says; so is one of an argument that is not `labels`.
    """
    if (pair := pair_of(inputs)) is not None:
        return pair
    key = next((key for key in LABELS if key in inputs), None) if isinstance(inputs, Mapping) else None
    if key is None:
        return inputs
    argument = inspect.signature(model.forward).parameters.get(key)
    if argument is not None and (argument.default is argument.empty or key != "labels"):
        return inputs
    return {name: value for name, value in inputs.items() if name != key}


def split_batch(batch: Any) -> tuple[Inputs, Any]:
    """A batch is `(x, y)`, `((x1, x2), y)`, a mapping with `labels` (or `y`, `target`), or pairs, each with a one."""
    if (pair := pair_of(batch)) is not None:
        return pair, torch.ones(count(pair), device="cpu")
    if isinstance(batch, Mapping):
        for key in LABELS:
            if key in batch:
                return {name: value for name, value in batch.items() if name != key}, batch[key]
        raise PeewitError(f"A batch is a mapping with keys {sorted(batch)}; expected one of them to be 'labels'.")
    if isinstance(batch, list | tuple) and len(batch) == 2:
        return batch[0], batch[1]
    what = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, list | tuple) else type(batch).__name__
    raise ArgumentTypeError(
        f"A batch is a {what}; expected (x, y), ((x1, x2), y), or a mapping with 'labels', holding torch tensors "
        "with a leading axis of examples. A single batch goes in as (x, y); arrays by torch.from_numpy."
    )


def as_batches(data: Any, batch_size: int) -> Any:
    """Arrays, frames and lists as tensors, and datasets of single examples in batches; all else as it is."""
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return tuple(data.tensors)
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return DataLoader(data, batch_size=batch_size)
    return as_pair(split_batch(data) if isinstance(data, Pair) else data)


class Batches:
    """Data as an iterable of `(inputs, targets)` on one device; a pair of tensors is cut into batches.

    `home` is the network that the inputs are for, whose device and dtype they get, or a device alone.
    """

    def __init__(
        self, data: Any, home: nn.Module | torch.device, name: str = "The data", batch_size: int = 256
    ) -> None:
        self.arrays = isinstance(data, tuple) and len(data) == 2 and (holds_numbers(data[0]) or holds_array(data[0]))
        data = as_batches(data, batch_size)
        self.data = data
        self.home = home
        self.device = device_of(home) if isinstance(home, nn.Module) else home
        self.name = name  # in messages
        self.batch_size = batch_size
        self.examples: int | None = None  # of a whole pass
        self.first_count = 0  # of examples in the first batch, once it came
        self.changes: dict[Any, dict[torch.dtype, torch.dtype]] = {}  # of dtypes, by those that inputs have
        self.pair = (
            isinstance(data, tuple) and len(data) == 2 and isinstance(data[1], Tensor) and bool(tensors(data[0]))
        )
        if not self.pair and not isinstance(data, Tensor):
            refuse_data(data)
        if not self.pair and not isinstance(data, Iterable):
            raise ArgumentTypeError(
                f"data is a {type(data).__name__}; expected a pair (inputs, targets) of tensors, arrays or frames, a "
                "DataLoader, a Dataset, or an iterable of batches."
            )
        if isinstance(data, Tensor):
            raise ArgumentTypeError(
                "data is one tensor; expected (inputs, targets), a DataLoader or an iterable of batches."
            )

    @property
    def stored(self) -> bool:
        """Whether the user holds the batches in one order: no pass makes them anew, or writes over them."""
        return self.pair or isinstance(self.data, list | tuple)

    @property
    def one_shot(self) -> bool:
        """Whether the data can be passed over only once."""
        return not self.pair and isinstance(self.data, Iterator)

    def refuse_one_shot(self, reader: str) -> None:
        """Refuse data that can be passed over only once: what reads it, in words, passes over it again."""
        if self.one_shot:
            name = self.name[:1].lower() + self.name[1:]
            raise PeewitError(
                f"{reader}, and {name} is a one-shot iterator; expected a DataLoader, a list of batches or tensors."
            ) from None

    def first(self) -> tuple[Inputs, Tensor]:
        """The first batch, which is not lost to the pass that follows."""
        source = self
        with torch.random.fork_rng(devices=[]):  # a shuffled loader draws from the global generator
            if self.one_shot:
                head = list(itertools.islice(self.data, 1))
                self.data = itertools.chain(head, self.data)
                source = Batches(head, self.home, self.name)
            return next(iter(source))

    def __len__(self) -> int:
        """Number of batches, 0 where it is unknown."""
        if self.pair:
            return -(-count(self.data[0]) // self.batch_size)
        try:
            return len(self.data)
        except TypeError:
            return 0

    @property
    def expected(self) -> int:
        """About how many examples a pass has, once its first batch came; 0 where it cannot be told."""
        return count(self.data[0]) if self.pair else self.examples or self.first_count * len(self)

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        """Batches, moved to the device; at least one, of at least one example."""
        seen = 0
        for batch, arrays in self._raw():
            inputs, targets = split_batch(batch)
            if not isinstance(targets, Tensor):
                raise ArgumentTypeError(
                    f"Targets are a {type(targets).__name__}; expected a tensor, an array or a list of numbers, with "
                    "one entry per example."
                )
            number = count(inputs)
            self._refuse_lengths(number, targets, "A batch")
            self.first_count = self.first_count or number
            if number:
                yield self._in_dtype(map_tensors(self._move, inputs), arrays), self._move(targets)
            seen += number
        if self.examples is not None and self.examples != seen:
            raise PeewitError(
                f"The data had {self.examples} examples in the first pass and {seen} in the second; expected the same "
                "data every time (a sampler or drop_last with shuffling changes it)."
            )
        if not seen:
            raise PeewitError(
                f"{self.name} has no examples: the loader is empty, or was a one-shot iterator already used up."
            )
        self.examples = seen

    @staticmethod
    def _refuse_lengths(number: int, targets: Tensor, what: str) -> None:
        if targets.dim() == 0 or targets.shape[0] != number:
            row = tuple(targets.shape) == (1, number)
            raise PeewitError(
                f"{what} has {number} inputs and targets of shape {tuple(targets.shape)}; the leading axes differ. "
                f"{'Give y[0]. ' if row else ''}"
                "Expected one target per example, and both with a leading axis of examples; a single example goes in "
                "as (x[None], y[None]), a list of examples by a DataLoader."
            )

    def tensors(self) -> Iterator[Any]:
        """Batches as they come, with tensors in place of arrays."""
        for batch in self.data:
            yield batch_of_tensors(batch)

    def _raw(self) -> Iterator[tuple[Any, bool]]:
        """Batches with tensors in place of arrays, and whether inputs were arrays."""
        if not self.pair:
            for batch in self.data:
                yield batch_of_tensors(batch), holds_array(batch)
            return
        inputs, targets = self.data
        total = count(inputs)
        self._refuse_lengths(total, targets, "data")
        for start in range(0, total, self.batch_size):
            examples = slice(start, start + self.batch_size)
            yield (take(inputs, examples), targets[examples]), self.arrays

    def _in_dtype(self, inputs: Inputs, arrays: bool) -> Inputs:
        """Inputs in a dtype that the network takes, where it does not take them in theirs."""
        if not isinstance(self.home, nn.Module) or not count(inputs):
            return inputs
        given = tuple(tensor.dtype for tensor in tensors(inputs))
        if given not in self.changes:
            self.changes[given] = conversions(self.home, inputs, arrays)
        return convert_dtypes(inputs, self.changes[given])

    def _move(self, tensor: Tensor) -> Tensor:
        moved = tensor.to(self.device)
        # Tensors made under inference_mode cannot take part in a graph; a copy can.
        return moved.clone() if moved.is_inference() else moved


class UnlabelledBatches:
    """Batches of inputs, from batches that may have labels."""

    def __init__(self, data: Iterable[Any], what: str) -> None:
        self.data = data
        self.what = what

    def __len__(self) -> int:
        """As many as the data says."""
        return len(self.data)  # type: ignore[arg-type]  # asked by `Batches`, which knows that it may fail

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        """Inputs, each with a stand-in for the labels."""
        for batch in self.data:
            inputs = batch
            if isinstance(batch, Mapping):
                inputs = split_batch(batch)[0] if set(LABELS) & set(batch) else batch
            elif isinstance(batch, list | tuple):
                if len(batch) not in (1, 2):
                    raise ArgumentTypeError(
                        f"{self.what}: a batch is a {type(batch).__name__} of {len(batch)}; expected inputs, or "
                        "(inputs, labels)."
                    )
                inputs = batch[0]
            inputs = as_tensors(inputs, self.what)
            yield inputs, torch.zeros(count(inputs), device="cpu")


def is_loader(x: Any) -> bool:
    """Whether what is asked about comes in batches, as from a DataLoader or a dataset, and is not a nest of tensors.

    A list of mappings is one of batches, as in a fit.
    """
    if isinstance(x, list) and x and all(isinstance(each, Mapping) for each in x):
        return True
    nest = isinstance(x, Tensor | Mapping | list | tuple | str | bytes) or is_array(x) or is_frame(x)
    return isinstance(x, Iterable | Dataset) and not nest


def input_batches(x: Any, model: nn.Module) -> Batches:
    """The inputs of a DataLoader, a dataset or another iterable of batches, with labels or without."""
    examples = isinstance(x, Dataset) and not isinstance(x, IterableDataset)
    return Batches(UnlabelledBatches(DataLoader(x, batch_size=256) if examples else x, "x"), model, "x")


def batch_of_tensors(batch: Any) -> Any:
    """A batch with tensors in place of arrays and of lists of numbers; the very same where it has none."""
    if isinstance(batch, Mapping) or hasattr(batch, "_fields"):
        return as_tensors(batch, "The batch") if holds_array(batch) else batch
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        return batch
    x, y = batch
    if isinstance(y, Tensor) and not holds_array(x) and not holds_numbers(x):
        return batch
    return as_tensors(x, "x"), as_tensors(y, "y")


def merge_batches(
    batches: Iterable[tuple[Inputs, Tensor]], most: Callable[[Inputs], int], stored: bool
) -> Iterator[tuple[Inputs, Tensor]]:
    """Put small batches together up to `most(inputs)` examples: examples are independent, and calls cost time."""
    waiting: list[tuple[Inputs, Tensor]] = []
    number, limit = 0, 0
    for batch in batches:
        size = count(batch[0])
        if waiting and (number + size > limit or not have_same_form(waiting[0], batch)):
            yield join(waiting)
            waiting, number = [], 0
        if not waiting:
            limit = most(batch[0])
        number += size
        # Where batches are not stored, the next one is read before this one is used, and may be written over it.
        waiting.append(batch if stored else map_tensors(torch.clone, batch))
    if waiting:
        yield join(waiting)
