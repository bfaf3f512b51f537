"""Arrays, data frames and lists of numbers as tensors, and numbers in the dtype that a network takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from ..messages.arguments import is_array, only_numbers
from ..messages.errors import ArgumentTypeError, NotFiniteError, PeewitError
from ..messages.names import first_names
from .failures import failure
from .isolation import isolated
from .nests import Inputs, map_tensors, take, tensors

FLOATS = (torch.float32, torch.float64)
FACTORISE = "codes, names = pandas.factorize(y, sort=True)"
ENCODE = (
    "Leave them out, or make numbers of them, by pandas.get_dummies(x, dtype=float) or frame.to_dummies() in polars"
)


def is_frame(value: Any) -> bool:
    """Whether something is a data frame, of pandas or polars."""
    return hasattr(value, "to_numpy") and hasattr(value, "columns") and hasattr(value, "dtypes")


def is_lazy(value: Any) -> bool:
    """Whether something is a frame of polars that is still to be computed."""
    return type(value).__name__ == "LazyFrame" and hasattr(value, "collect")


def frame_names(value: Any) -> tuple[str, ...]:
    """The names of a frame's columns; none where they are not distinct texts."""
    names = tuple(value.columns) if is_frame(value) else ()
    return names if all(isinstance(name, str) for name in names) and len(set(names)) == len(names) else ()


def in_order(value: Any, names: Sequence[str]) -> Any:
    """A frame, or a pair that begins with one, with its columns in the order of the fit; all else as it is."""
    if isinstance(value, tuple) and len(value) == 2 and is_frame(value[0]):
        return in_order(value[0], names), value[1]
    columns = frame_names(value)
    if not names or not columns or columns == tuple(names):
        return value
    missing = [name for name in names if name not in columns]
    if missing:
        raise PeewitError(
            f"The frame has the columns {first_names(columns, 8)}; expected those of the fit, and "
            f"{first_names(missing)} {'is' if len(missing) == 1 else 'are'} missing. An array goes by place: "
            "frame.to_numpy()."
        )
    return value[list(names)]


def holds_numbers(value: Any) -> bool:
    """Whether something is an array, a column, a frame or a list of numbers."""
    return is_array(value) or is_frame(value) or (isinstance(value, list) and only_numbers(value))


def as_tensors(value: Any, what: str) -> Any:
    """A nest with tensors in place of arrays and frames; and lists of numbers, where they are all there is."""
    if isinstance(value, Tensor):
        return value
    if is_lazy(value):
        raise ArgumentTypeError(f"{what} is a LazyFrame, which has no numbers yet; expected a frame, by .collect().")
    if holds_numbers(value):
        return as_tensor(value, what)
    if hasattr(value, "toarray") and hasattr(value, "shape"):
        raise ArgumentTypeError(f"{what} is a sparse {type(value).__name__}; expected a dense one, by x.toarray().")
    if isinstance(value, Mapping) and value and all(map(is_list_of_numbers, value.values())):
        return {key: tokens_as_tensor(each, f"{what}[{key!r}]", key) for key, each in value.items()}
    if isinstance(value, Mapping):
        return {key: as_tensors(each, f"{what}[{key!r}]") if is_array(each) else each for key, each in value.items()}
    if isinstance(value, list | tuple) and any(map(holds_array, value)):
        parts = [as_tensors(each, f"{what}[{number}]") for number, each in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def is_list_of_numbers(value: Any) -> bool:
    """Whether something is a list, or lists in a list, that begin with a number."""
    return isinstance(value, list) and bool(value) and only_numbers(value)


def tokens_as_tensor(value: list[Any], what: str, key: Any) -> Tensor:
    """Lists of a mapping, as a tokenizer returns them; refused where texts are not padded, or there is one alone."""
    advice = "Let the tokenizer return tensors: la.predict(**tokenizer(texts, padding=True, return_tensors='pt'))"
    if key == "input_ids" and not isinstance(value[0], list | tuple):
        raise PeewitError(f"{what} is one list of numbers; expected one list for each text. {advice}.")
    lengths = sorted({len(row) for row in value if isinstance(row, list | tuple)})
    if len(lengths) > 1:
        raise PeewitError(
            f"{what} is a list whose rows have lengths {lengths[:4]}; expected as many numbers in every row. {advice}."
        )
    return as_tensor(value, what)


def holds_array(value: Any) -> bool:
    """Whether there is an array or a frame in a nest."""
    if isinstance(value, Mapping):
        return any(map(holds_array, value.values()))
    return is_array(value) or is_frame(value) or (isinstance(value, list | tuple) and any(map(holds_array, value)))


def as_pair(data: Any) -> Any:
    """A pair of inputs and targets that are arrays, frames or lists, as tensors; all else as it is."""
    if not isinstance(data, tuple) or len(data) != 2 or hasattr(data, "_fields"):
        return data
    x, y = data
    if not isinstance(y, Tensor) and not holds_numbers(y) and not is_words(y) and not is_lazy(y):
        return data
    refuse_other_order(x, y)
    return as_tensors(x, "x"), as_tensors(y, "y") if not is_words(y) else as_tensor(y, "y")


def is_words(value: Any) -> bool:
    """Whether something is a list of texts."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], str)


def refuse_other_order(x: Any, y: Any) -> None:
    """Rows go by place; refuse two frames of the same rows in different orders."""
    first: Any = getattr(x, "index", None)
    second: Any = getattr(y, "index", None)
    if not hasattr(first, "equals") or not hasattr(second, "equals") or first.equals(second):
        return
    if len(first) == len(second) and first.sort_values().equals(second.sort_values()):
        raise PeewitError(
            "x and y have the same index in different orders, and rows go by place; expected one order. Give "
            "y.loc[x.index], or x.to_numpy() and y.to_numpy() where the places are right."
        )


def as_tensor(value: Any, what: str) -> Tensor:
    """One array, column, frame or list, as a tensor of its numbers; refused where it holds anything else."""
    if is_frame(value):
        return frame_as_tensor(value, what)
    if is_categorical(value):
        raise ArgumentTypeError(f"{what} is a column of categories; expected numbers. {advice(what)}")
    array = list_as_array(value, what) if isinstance(value, list) else numpy.asarray(value)
    if numpy.ma.isMaskedArray(value) and numpy.ma.is_masked(value):
        raise NotFiniteError(
            f"{what} is a masked array with {missing_words(int(value.mask.sum()))}; expected a number everywhere. Fill "
            f"them, by {what}.filled(...), or leave these rows out of x and y."
        )
    kind = array.dtype.kind
    if kind == "O":
        array = objects_as_numbers(array, what)
    elif kind in "US":
        raise ArgumentTypeError(f"{what} holds words, such as {str(array.flat[0])!r}; expected numbers. {advice(what)}")
    elif kind in "mM":
        raise ArgumentTypeError(f"{what} holds dates or times; expected numbers, such as days since the first one.")
    elif kind not in "biufc":
        raise ArgumentTypeError(f"{what} is an array of {array.dtype}; expected numbers.")
    return torch.from_numpy(writable(array))


FILL = "expected a number everywhere. Fill them, by frame.fillna(frame.median()), or leave these rows out of x and y."


def advice(what: str) -> str:
    """What to do about words."""
    return f"Number the classes: {FACTORISE}." if what == "y" else f"{ENCODE}."


def missing_words(number: int) -> str:
    """How many are missing."""
    return f"{number} missing value{'s' * (number != 1)}"


def is_categorical(value: Any) -> bool:
    """Whether a column has categories in place of numbers."""
    return type(getattr(value, "dtype", None)).__name__ in ("CategoricalDtype", "Categorical", "Enum")


def writable(array: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    """In the machine's byte order, a dtype that torch has, contiguous, and not shared with what is read-only."""
    kind, size = array.dtype.kind, array.dtype.itemsize
    wanted = array.dtype.newbyteorder("=")
    if kind == "f" and size > 8:
        wanted = numpy.dtype(numpy.float64)
    elif kind == "u" and size > 1:
        wanted = numpy.dtype(numpy.int64)
    made: numpy.ndarray[Any, Any] = numpy.require(array, wanted, ["C", "W"])
    return made


def list_as_array(value: list[Any], what: str) -> numpy.ndarray[Any, Any]:
    """Lists in lists; refused where they are not all of one length."""
    try:
        array: numpy.ndarray[Any, Any] = numpy.array(value)
    except ValueError:
        lengths = sorted({len(row) for row in value if isinstance(row, list | tuple)})
        raise PeewitError(
            f"{what} is a list whose rows have lengths {lengths[:4]}; expected as many numbers in every row."
        ) from None
    return array


def objects_as_numbers(array: numpy.ndarray[Any, Any], what: str) -> numpy.ndarray[Any, Any]:
    """An array of Python's objects, which are numbers or nothing at all."""
    wrong = [each for each in array.flat if each is None or isinstance(each, str) or not is_number(each)]
    missing = [each for each in wrong if each is None or type(each).__name__ in ("NAType", "NaTType")]
    if wrong and len(missing) == len(wrong):
        raise NotFiniteError(f"{what} has {missing_words(len(missing))}; {FILL}")
    if wrong:
        other = next(each for each in wrong if not any(each is none for none in missing))
        words = "words, such as" if isinstance(other, str) else f"a {type(other).__name__},"
        raise ArgumentTypeError(f"{what} holds {words} {other!r}; expected numbers. {advice(what)}")
    whole = all(isinstance(each, int | numpy.integer) for each in array.flat)
    return array.astype(numpy.int64 if whole else numpy.float64)


def is_number(value: Any) -> bool:
    """Whether an object is a number, such as an int, a Decimal or numpy's."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def frame_as_tensor(frame: Any, what: str) -> Tensor:
    """The columns of a frame side by side, (N, D); columns that are not numbers, and missing values, are named."""
    columns: list[Any] = []
    others: dict[str, str] = {}
    gaps: dict[str, int] = {}
    for number, name in enumerate(frame.columns):
        column = frame.iloc[:, number] if hasattr(frame, "iloc") else frame[name]
        missing = column.isna() if hasattr(column, "isna") else column.is_null()
        if int(missing.sum()):
            gaps[str(name)] = int(missing.sum())
        elif is_categorical(column):
            others[str(name)] = "categories"
        else:
            try:
                columns.append(as_tensor(column.to_numpy(), str(name)))
            except ArgumentTypeError:
                others[str(name)] = str(column.dtype)
    if others:
        listed = first_names([f"{name!r} ({kind})" for name, kind in others.items()])
        raise ArgumentTypeError(
            f"{what} has columns that are not numbers: {listed}. "
            + (f"{advice(what)}" if what == "y" else f"{ENCODE}; pandas' categories have their own, .cat.codes.")
        )
    if gaps:
        listed = first_names([f"{name!r} has {missing_words(number)}" for name, number in gaps.items()])
        raise NotFiniteError(f"{what} is a frame in which {listed}; {FILL}")
    if not columns:
        raise PeewitError(f"{what} is a frame without columns; expected at least one.")
    kind = columns[0].dtype
    for each in columns[1:]:
        kind = torch.promote_types(kind, each.dtype)
    return torch.stack([each.to(torch.float64 if kind == torch.bool else kind) for each in columns], 1)


def dtype_of(model: nn.Module) -> torch.dtype | None:
    """That of a network's weights; None where none are floating point."""
    return next((parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()), None)


def conversions(model: nn.Module, inputs: Inputs, arrays: bool) -> dict[torch.dtype, torch.dtype]:
    """Which dtypes of these inputs to replace so that the network takes them; {} where it does, or nothing helps.

    float32 and float64 stand for one another. Whole numbers in rows of a table, if they came as arrays, become floating
    point. All else has a meaning, as token numbers and pixels have.
    """
    weights = dtype_of(model)
    if weights not in FLOATS:
        return {}
    given = {tensor.dtype for tensor in tensors(inputs)}
    table = arrays and all(tensor.dim() <= 2 for tensor in tensors(inputs))
    floats = {dtype: weights for dtype in FLOATS if dtype in given and dtype != weights}
    numbers = {dtype: weights for dtype in given if table and not dtype.is_complex and dtype != weights}
    tried = [change for change in (floats, numbers) if change]
    if not tried:
        return {}
    device = next(model.parameters()).device
    few = map_tensors(lambda tensor: tensor.detach().to(device), take(inputs, slice(0, 2)))
    with isolated(model, []):
        if failure(model, few) is None:
            return {}
        for change in tried:
            if failure(model, convert_dtypes(few, change)) is None:
                return change
    return {}


def convert_dtypes(inputs: Inputs, change: Mapping[torch.dtype, torch.dtype]) -> Inputs:
    """Inputs with other dtypes."""
    if not change:
        return inputs
    made: Inputs = map_tensors(lambda tensor: tensor.to(change.get(tensor.dtype, tensor.dtype)), inputs)
    return made


def ready(model: nn.Module, x: Any) -> Any:
    """Inputs that are asked about, as tensors that the network takes."""
    if isinstance(x, Tensor) and x.dtype == dtype_of(model):
        return x
    inputs = as_tensors(x, "x")
    if not tensors(inputs) or any(not tensor.dim() for tensor in tensors(inputs)):
        return inputs
    return convert_dtypes(inputs, conversions(model, inputs, holds_numbers(x) or holds_array(x)))
