"""Batches of every shape, and the user's network held in evaluation mode and handed back as it was."""

from __future__ import annotations

import itertools
import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils.data import Dataset, IterableDataset

from .complaints import is_array, only_numbers, refuse_arrays, refuse_data

Inputs = Any  # a tensor, or tuples, lists and mappings of tensors: whatever the network takes


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Apply a function to every tensor in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        made = {key: map_tensors(function, each) for key, each in value.items()}
        # Mappings of other libraries (tokenizer outputs) become plain ones: the network is called with keywords.
        return made
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(function, each) for each in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(function, each) for each in value)
    return value


def tensors(value: Any) -> list[Tensor]:
    """All tensors in nested tuples, lists and mappings."""
    found: list[Tensor] = []
    map_tensors(found.append, value)
    return found


def count(inputs: Inputs) -> int:
    """N: the length of the leading axis, which all tensors must share."""
    sizes = {tensor.shape[0] if tensor.dim() else None for tensor in tensors(inputs)}
    if not sizes:
        refuse_arrays(inputs, "The input")
        hint = " Convert lists of numbers by torch.tensor." if only_numbers(inputs) else ""
        raise TypeError(
            f"A batch holds no tensor: got {type(inputs).__name__}; expected a tensor or a nest of tensors, with a "
            f"leading axis of examples.{hint}"
        )
    if len(sizes) > 1 or None in sizes:
        shapes = [tuple(tensor.shape) for tensor in tensors(inputs)]
        raise ValueError(
            f"The tensors of a batch have shapes {shapes}; expected one leading axis of examples, equal for all."
        )
    return cast(int, sizes.pop())


def take(inputs: Inputs, examples: slice) -> Inputs:
    """A slice of the examples."""
    return map_tensors(lambda tensor: tensor[examples], inputs)


def run(network: Callable[..., Any], inputs: Inputs) -> Any:
    """Call a network: mappings become keywords, tuples and lists positions.

    It gets a copy of the inputs: some networks write into theirs, and these are the user's data.
    """
    from .layers.norm import DenseNorms  # which needs this file

    inputs = map_tensors(torch.clone, inputs)
    with nullcontext() if any(each.is_cuda for each in tensors(inputs)) else DenseNorms():
        if isinstance(inputs, Mapping):
            return network(**inputs)
        if isinstance(inputs, list | tuple):
            return network(*inputs)
        return network(inputs)


def call(network: Callable[..., Any], inputs: Inputs) -> Tensor:
    """Call a network, and find its logits in what it returns."""
    result = run(network, inputs)
    if isinstance(result, Tensor):
        return result
    found = result.get("logits") if isinstance(result, Mapping) else getattr(result, "logits", None)
    if found is None and isinstance(result, list | tuple) and len(result) == 1:
        found = result[0]
    if not isinstance(found, Tensor):
        what = f" with keys {[*result]}" if isinstance(result, Mapping) else ""
        what = f" of {len(result)}" if isinstance(result, list | tuple) else what
        raise TypeError(
            f"The network returned {type(result).__name__}{what}; expected a tensor, or something with `logits`. "
            "Wrap it in a module that returns the tensor the likelihood is defined on."
        )
    return found


def under(model: nn.Module, weights: dict[str, Tensor], direct: set[str] | None = None) -> Callable[..., Any]:
    """The network with other weights in place of its own, to be given to `call`.

    Also where it reaches them through references that it saved, such as a list of its layers' weights. `direct`: those
    that it was seen not to reach so, to which a pass adds.
    """
    every = everywhere(model, weights)
    own = {name: id(held(model, name)) for name in weights}

    def forward(*args: Any, **kwargs: Any) -> Any:
        if direct is not None and direct.issuperset(weights):
            return functional_call(model, every, args, kwargs, tie_weights=False)
        with Replacement({own[name]: weight for name, weight in weights.items()}) as mode:
            made = functional_call(model, every, args, kwargs, tie_weights=False)
        if direct is not None:
            direct.update(name for name in weights if own[name] not in mode.found)
        return made

    return forward


class Replacement(TorchFunctionMode):
    """Puts other tensors in place of parameters wherever a torch function is given one."""

    def __init__(self, tensors: dict[int, Tensor]) -> None:
        super().__init__()
        self.tensors = tensors
        self.found: set[int] = set()  # those that were given

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function with them."""
        return func(*self._replaced(args), **self._replaced(kwargs or {}))

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in self.tensors:
                return value
            self.found.add(id(value))
            return self.tensors[id(value)]
        if type(value) in (tuple, list):
            return type(value)(self._replaced(each) for each in value)
        if type(value) is dict:
            return {key: self._replaced(each) for key, each in value.items()}
        return value


def held(model: nn.Module, name: str) -> Any:
    """The parameter or buffer with a name."""
    prefix, _, last = name.rpartition(".")
    return getattr(model.get_submodule(prefix), last)


def everywhere(model: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights and buffers under the name of every place that holds them, each place once.

    Torch ties them by names. A module with two names is then changed twice, and put back in the wrong order: the
    network would be left with the given tensors in place of its parameters.
    """
    given = {id(held(model, name)): weight for name, weight in weights.items()}
    return {
        f"{prefix}.{name}" if prefix else name: given[id(own)]
        for prefix, module in model.named_modules()
        for name, own in (*module._parameters.items(), *module._buffers.items())
        if id(own) in given
    }


def split_batch(batch: Any) -> tuple[Inputs, Any]:
    """A batch is `(x, y)`, `((x1, x2), y)`, or a mapping with `labels` (or `y`, `target`)."""
    if isinstance(batch, Mapping):
        for key in ("labels", "label", "targets", "target", "y"):
            if key in batch:
                return {name: value for name, value in batch.items() if name != key}, batch[key]
        raise ValueError(f"A batch is a mapping with keys {sorted(batch)}; expected one of them to be 'labels'.")
    if isinstance(batch, list | tuple) and len(batch) == 2:
        return batch[0], batch[1]
    what = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, list | tuple) else type(batch).__name__
    raise TypeError(
        f"A batch is a {what}; expected (x, y), ((x1, x2), y), or a mapping with 'labels', holding torch tensors "
        "with a leading axis of examples. A single batch goes in as (x, y); arrays by torch.from_numpy."
    )


class Batches:
    """Data as an iterable of `(inputs, targets)` on one device; a pair of tensors is cut into batches."""

    def __init__(self, data: Any, device: torch.device, batch_size: int = 256) -> None:
        self.data = data
        self.device = device
        self.batch_size = batch_size
        self.examples: int | None = None  # of a whole pass
        self.pair = (
            isinstance(data, tuple) and len(data) == 2 and isinstance(data[1], Tensor) and bool(tensors(data[0]))
        )
        if self.pair:
            refuse_arrays(data[0], "The input")
        elif not isinstance(data, Tensor):
            refuse_data(data)
        if not self.pair and not isinstance(data, Iterable):
            raise TypeError(
                f"data is a {type(data).__name__}; expected a DataLoader, an iterable of batches, or a pair of tensors "
                "(inputs, targets). Wrap a dataset in torch.utils.data.DataLoader."
            )
        if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
            raise TypeError(f"data is a {type(data).__name__}; wrap it in torch.utils.data.DataLoader.")
        if isinstance(data, Tensor):
            raise TypeError("data is one tensor; expected (inputs, targets), a DataLoader or an iterable of batches.")

    @property
    def steady(self) -> bool:
        """Whether batches are held by the user, in one order: not made anew, or written over, for every pass."""
        return self.pair or isinstance(self.data, list | tuple)

    @property
    def one_shot(self) -> bool:
        """Whether the data can be passed over only once."""
        return not self.pair and isinstance(self.data, Iterator)

    def first(self) -> Inputs:
        """The inputs of the first batch, which is not lost to the pass that follows."""
        with torch.random.fork_rng(devices=[]):  # a shuffled loader draws from the global generator
            if self.one_shot:
                head = list(itertools.islice(self.data, 1))
                self.data = itertools.chain(head, self.data)
                return next(iter(Batches(head, self.device)))[0] if head else self._empty()
            for inputs, _ in self:
                return inputs
        return self._empty()

    @staticmethod
    def _empty() -> Inputs:
        raise ValueError("The data has no examples: the loader is empty, or was a one-shot iterator already used up.")

    def __len__(self) -> int:
        """Number of batches, 0 where it cannot be told."""
        if self.pair:
            return -(-count(self.data[0]) // self.batch_size)
        try:
            return len(self.data)
        except TypeError:
            return 0

    def expected(self, batch: int) -> int:
        """About how many examples a pass has, by how many its first batch has; 0 where it cannot be told."""
        return count(self.data[0]) if self.pair else self.examples or batch * len(self)

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        """Batches, moved to the device."""
        seen = 0
        for batch in self._raw():
            inputs, targets = split_batch(batch)
            number = count(inputs)
            refuse_arrays(inputs, "The input")
            if not isinstance(targets, Tensor):
                how = "torch.from_numpy" if is_array(targets) else "torch.tensor"
                raise TypeError(
                    f"Targets are a {type(targets).__name__}; expected a tensor with one entry per example, by {how}."
                )
            self._same_length(number, targets, "A batch")
            if number:
                yield map_tensors(self._move, inputs), self._move(targets)
            seen += number
        if self.examples is not None and self.examples != seen:
            raise ValueError(
                f"The data had {self.examples} examples in the first pass and {seen} in the second; expected the same "
                "data every time (a sampler or drop_last with shuffling changes it)."
            )
        self.examples = seen

    @staticmethod
    def _same_length(number: int, targets: Tensor, what: str) -> None:
        if targets.dim() == 0 or targets.shape[0] != number:
            raise ValueError(
                f"{what} has {number} inputs and targets of shape {tuple(targets.shape)}; the leading axes differ. "
                "Expected one target per example, and both with a leading axis of examples; a single example goes in "
                "as (x[None], y[None]), a list of examples by a DataLoader."
            )

    def _raw(self) -> Iterator[Any]:
        if not self.pair:
            yield from self.data
            return
        inputs, targets = self.data
        total = count(inputs)
        self._same_length(total, targets, "data")
        for start in range(0, total, self.batch_size):
            examples = slice(start, start + self.batch_size)
            yield take(inputs, examples), targets[examples]

    def _move(self, tensor: Tensor) -> Tensor:
        moved = tensor.to(self.device)
        # Tensors made under inference_mode cannot take part in a graph; a copy can.
        return moved.clone() if moved.is_inference() else moved


def alike(first: Any, second: Any) -> bool:
    """Whether two nests of tensors have the same structure, dtypes and shapes beyond the examples."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return first.dtype == second.dtype and first.shape[1:] == second.shape[1:]
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(alike(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(alike, first, second))
    return first is second  # something else in the batch: only the very same object is surely equal


def join(batches: list[Any]) -> Any:
    """Several nests of tensors as one, examples after examples."""
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(batches)
    if isinstance(first, Mapping):
        return {key: join([batch[key] for batch in batches]) for key in first}
    if isinstance(first, list | tuple):
        return type(first)(join(list(each)) for each in zip(*batches, strict=True))
    return first


def merged(
    batches: Iterable[tuple[Inputs, Tensor]], most: Callable[[Inputs], int], steady: bool
) -> Iterator[tuple[Inputs, Tensor]]:
    """Put small batches together up to `most(inputs)` examples: examples are independent, and calls cost time."""
    held: list[tuple[Inputs, Tensor]] = []
    number, limit = 0, 0
    for inputs, targets in batches:
        size = count(inputs)
        if held and (number + size > limit or not alike(held[0], (inputs, targets))):
            yield join([each for each, _ in held]), join([each for _, each in held])
            held, number = [], 0
        if not held:
            limit = most(inputs)
        number += size
        if not steady:  # the next batch is read before this one is used, and a reader may write it over this one
            inputs, targets = map_tensors(torch.clone, inputs), targets.clone()
        held.append((inputs, targets))
    if held:
        yield join([each for each, _ in held]), join([each for _, each in held])


def device_of(model: nn.Module) -> torch.device:
    """The one device of a network's weights."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; expected a torch.nn.Module.")
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError(
            f"model is a {type(model).__name__}: nothing can look into scripted or traced networks; expected the plain "
            "module that it was made of."
        )
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise ValueError("The network has lazy layers without weights; run it once on data before fitting.")
    devices = {parameter.device for parameter in model.parameters()}
    if not devices:
        found = quantised(model)
        why = f": its weights are quantised ({', '.join(found[:3])}), and have no gradients" if found else ""
        raise ValueError(f"The network has no parameters{why}; expected one with trainable weights.")
    if len(devices) > 1:
        raise ValueError(
            f"The network's weights are on {sorted(map(str, devices))}; expected one device: move it by model.to(...)."
        )
    device = devices.pop()
    if device.type == "meta":
        raise ValueError(
            "The network's weights are on the meta device: they have no values. Give them some by model.to_empty and "
            "load_state_dict."
        )
    return device


def quantised(model: nn.Module) -> list[str]:
    """Names of modules whose weights torch has quantised: no gradient passes through them."""
    named = [name for name, module in model.named_modules() if ".quantized" in type(module).__module__]
    return [name for name in named if name.rpartition(".")[2] != "_packed_params"]  # where such a module keeps them


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside wrappers of `torch.compile` and of data parallelism, whose parameters have their own names."""
    inner = getattr(model, "_orig_mod", None)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner = model.module
    return unwrapped(inner) if isinstance(inner, nn.Module) else model


LOCK = threading.RLock()


class _PlainCheckpoint:
    """Stands in for re-entrant checkpointing, which autograd cannot differentiate part of."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return function(*args)


@contextmanager
def _without_checkpoints() -> Iterator[None]:
    """Run checkpointed blocks plainly: recomputing them in a backward pass would run them outside the recording."""
    module = torch.utils.checkpoint
    with LOCK:

        def plain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[None]:
            yield

        stand_ins = {"CheckpointFunction": _PlainCheckpoint, "_checkpoint_without_reentrant_generator": plain}
        kept = {name: getattr(module, name) for name in stand_ins}
        try:
            for name, stand_in in stand_ins.items():
                setattr(module, name, stand_in)
            yield
        finally:
            for name, own in kept.items():
                setattr(module, name, own)


class _AnyTensor(type):
    """A class whose instances are all tensors."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, Tensor)


class _Parameter(metaclass=_AnyTensor):
    """Stands in for `nn.Parameter` in lists of parameters, whose slices would wrap tensors anew without their graph."""


@contextmanager
def _plain_lists() -> Iterator[None]:
    """Let slices of lists of parameters hold the very tensors that stand in for weights."""
    module: Any = torch.nn.modules.container
    with LOCK:
        kept = module.Parameter
        try:
            module.Parameter = _Parameter
            yield
        finally:
            module.Parameter = kept


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Without the fused encoder, which runs only where no gradients are asked for, and then zeroes padded positions."""
    kept = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(kept)


_HELD: dict[int, list[Buffers]] = {}  # by network: its buffers while it is held in evaluation mode


@dataclass
class Held:
    """A buffer as it was: the object, its version, and a copy of its values."""

    buffer: Tensor
    version: int
    value: Tensor

    def restore(self) -> None:
        """Put the values back."""
        if self.buffer._version != self.version:
            self.buffer.copy_(self.value)
            self.version = self.buffer._version


@dataclass(frozen=True)
class Attributes:
    """What a module holds beside weights, buffers and modules, as it was: a network may keep what it computed there.

    Attention biases that are made once in evaluation mode would be those of other weights in the next pass.
    """

    own: dict[str, Any]  # of the module itself
    values: dict[str, Any]
    contents: list[tuple[str, Any, Any]]  # lists and dictionaries, with copies of them

    @staticmethod
    def of(module: nn.Module) -> Attributes:
        """As they are now."""
        own = vars(module)
        values = {} if isinstance(module, torch.jit.ScriptModule) else {k: v for k, v in own.items() if k not in INSIDE}
        listed = [(name, each, each.copy()) for name, each in values.items() if type(each) in (list, dict)]
        return Attributes(own, values, listed)

    def restore(self) -> dict[str, tuple[Any, list[Tensor]]]:
        """Put the same objects back; those that were not there are taken away.

        Where something held tensors that it did not hold before, all that had changed is returned, as it was before:
        flags and lengths beside a tensor say that it was made. The tensors are returned with it.
        """
        own, values = self.own, self.values
        made: dict[str, tuple[Any, list[Tensor]]] = {}
        for name, value in values.items():
            if own.get(name, INSIDE) is not value:
                made[name] = value, holding(own.get(name))
                own[name] = value
        if values and len(own) > len(values) + len(INSIDE):
            for name in own.keys() - values.keys() - INSIDE:
                made[name] = INSIDE, holding(own.pop(name))
        for name, each, kept in self.contents:
            if len(each) != len(kept) or not all(map(operator.is_, entries(each), entries(kept))):
                made[name] = kept, holding(each)
                refill(each, kept)
        fresh = {name: each for name, each in made.items() if not holding(each[0])}
        return fresh if any(tensors for _, tensors in fresh.values()) else {}


INSIDE = frozenset(vars(nn.Module()))  # attributes of every module, which torch keeps


CLEAR = "Clear what the network keeps (some do by model.train() and model.eval()) and fit again."
# By module that kept tensors: attributes that a pass changed, as they were before. The network makes them again.
_MADE: weakref.WeakKeyDictionary[nn.Module, dict[str, Any]] = weakref.WeakKeyDictionary()
# And how often its weights were written to, with the tensors that the first pass at these kept; large ones are let go.
REMEMBERED = 1 << 20
_FIRST: weakref.WeakKeyDictionary[nn.Module, tuple[int, dict[str, list[Tensor]]]] = weakref.WeakKeyDictionary()


def entries(container: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> Iterable[Any]:
    """The values of a list or of a dictionary."""
    return container.values() if isinstance(container, dict) else container


def refill(container: Any, contents: Any) -> None:
    """Give a list or a dictionary other contents."""
    container.clear()
    container.update(contents) if type(container) is dict else container.extend(contents)


def holding(value: Any) -> list[Tensor]:
    """The tensors that an attribute holds."""
    values = entries(value) if isinstance(value, list | tuple | dict) else [value]
    return [each for each in values if isinstance(each, Tensor)]


def kept_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Tensors that modules hold beside weights and buffers, by module and attribute."""
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in INSIDE:
                yield from ((f"{prefix}.{name}".lstrip("."), each) for each in holding(value))


def remembered(tensors: list[Tensor]) -> list[Tensor]:
    """Copies of small tensors; none of what a transform made, which nobody can read after it."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return [each.detach().clone() for each in tensors if not wrapped(each) and each.numel() <= REMEMBERED]


def changes(module: nn.Module) -> int:
    """How often weights were written to."""
    return sum(parameter._version for parameter in module.parameters())


def forget_made(modules: list[nn.Module], known: dict[nn.Module, dict[str, Any]]) -> None:
    """What passes kept is as it was known before."""
    for module in modules:
        _MADE.pop(module, None)
        if module in known:
            _MADE[module] = known[module]
        else:
            _FIRST.pop(module, None)


def set_by_user(module: nn.Module) -> bool:
    """Whether all tensors in place of those that a pass kept are others of the same shapes: no pass made them.

    Where weights have changed since, a pass may have.
    """
    number, every = _FIRST.get(module, (-1, {}))
    pairs = []
    for name, first in every.items() if number == changes(module) else ():
        now = holding(vars(module).get(name))
        pairs += [(a, b) for a, b in zip(first, now, strict=False) if a.shape == b.shape and a.dtype == b.dtype]
    return bool(pairs) and not any(torch.equal(first, now.detach().to(first.device)) for first, now in pairs)


def hide_made(module: nn.Module) -> Attributes:
    """Take away what an earlier pass kept, and made of other weights perhaps; what to restore is returned."""
    kept = Attributes.of(module)
    made = _MADE[module]
    held = any(holding(kept.own.get(name)) for name in made)
    try:
        for name, before in made.items() if held and not set_by_user(module) else ():
            now = kept.own.get(name)
            if before is INSIDE:
                kept.own.pop(name, None)
            elif type(now) is type(before) and type(now) in (list, dict):
                refill(now, before)
            else:
                kept.own[name] = before
    except BaseException:
        kept.restore()
        raise
    return kept


@contextmanager
def _hidden(modules: list[nn.Module]) -> Iterator[None]:
    """Without what earlier passes kept; it is there again afterwards, also where hiding it fails half-way."""
    hidden: list[Attributes] = []
    try:
        for module in modules:
            if module in _MADE:
                hidden.append(hide_made(module))
        yield
    finally:
        for attributes in reversed(hidden):  # what several modules share was whole for the first of them alone
            attributes.restore()


@dataclass(frozen=True)
class Buffers:
    """The buffers of a module as they were; some may have been empty, and filled by a forward pass."""

    module: nn.Module
    values: dict[str, Tensor | None]
    held: list[Held]
    others: Attributes

    @staticmethod
    def of(module: nn.Module) -> Buffers:
        """As they are now."""
        values = dict(module._buffers)
        held = [Held(each, each._version, each.detach().clone()) for each in values.values() if each is not None]
        return Buffers(module, values, held, Attributes.of(module))

    def restore(self) -> None:
        """Put the same objects back, with their values; buffers that were not there are taken away."""
        own = self.module._buffers
        for name in own.keys() - self.values.keys():
            del own[name]
            self.module._non_persistent_buffers_set.discard(name)
        for name, value in self.values.items():
            if name not in own or own[name] is not value:  # a network may replace its buffers instead of changing them
                own[name] = value
        for each in self.held:
            each.restore()
        made = self.others.restore()
        if made:
            _MADE.setdefault(self.module, {}).update({name: before for name, (before, _) in made.items()})
            if self.module not in _FIRST or _FIRST[self.module][0] != changes(self.module):
                kept_first = {name: remembered(kept) for name, (_, kept) in made.items()}
                _FIRST[self.module] = changes(self.module), kept_first


def restore_buffers(model: nn.Module) -> None:
    """Put back what a forward pass changed, so that the next one starts from the same network."""
    with torch.no_grad():
        for buffers in _HELD.get(id(model), ()):
            buffers.restore()


@contextmanager
def copied_buffers(model: nn.Module) -> Iterator[None]:
    """Let a forward pass change copies of the buffers: graphs that hold them stay valid when buffers are put back."""
    try:
        for buffers in _HELD.get(id(model), ()):
            copies = iter([each.value.clone() for each in buffers.held])
            for name, each in buffers.values.items():
                if each is not None:
                    buffers.module._buffers[name] = next(copies)
        yield
    finally:
        restore_buffers(model)


@contextmanager
def evaluation(model: nn.Module, selected: Iterable[Tensor] | None = None) -> Iterator[None]:
    """Evaluation mode, gradients for the selected weights alone, and everything as it was afterwards.

    What is restored, also after an exception: mode of every module, `requires_grad`, buffers, hooks on the gradients of
    parameters, which are left out meanwhile, and the random generators. Parameters and `.grad` are never written to.
    """
    with ExitStack() as stack:
        stack.enter_context(LOCK)  # another thread may hold this very network in evaluation mode
        stack.enter_context(_hidden(list(model.modules())))  # before buffers and attributes are noted as they are
        stack.enter_context(_held(model, selected))
        yield


def _own(module: nn.Module, name: str) -> Any:
    """A plain attribute, or None, without torch's slow search among parameters and modules."""
    return vars(module).get(name, getattr(type(module), name, None))


@contextmanager
def _held(model: nn.Module, selected: Iterable[Tensor] | None) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    parameters = list(model.parameters())
    flags = [parameter.requires_grad for parameter in parameters]
    outer = _HELD.get(id(model))
    known = {module: _MADE[module].copy() for module, _ in modes if module in _MADE}
    failed = True
    held = [Buffers.of(module) for module, _ in modes]
    hooked = [(parameter, parameter._backward_hooks) for parameter in parameters if parameter._backward_hooks]
    chosen = None if selected is None else {id(tensor) for tensor in selected}
    devices = [parameter.device for parameter in parameters[:1] if parameter.device.type == "cuda"]
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.random.fork_rng(devices=devices))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_without_checkpoints())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_plain_attention())
        if any(_own(module, "max_norm") is not None or _own(module, "scale_grad_by_freq") for module, _ in modes):
            from .layers.embedding import KeptTables  # which needs this file

            stack.enter_context(KeptTables())
        if any(isinstance(module, nn.ParameterList | nn.ParameterDict) for module, _ in modes):
            stack.enter_context(_plain_lists())
        if any(isinstance(module, nn.RNNBase) for module, _ in modes) and devices:
            # cuDNN refuses a backward pass through a recurrent network in evaluation mode.
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        try:
            _HELD[id(model)] = held
            for parameter, _ in hooked:
                parameter._backward_hooks = None  # they change steps of training, not the function
            for module, _ in modes:
                module.__dict__["training"] = False  # past torch's own, slow, way to set an attribute
            if chosen is not None:
                for parameter, flag in zip(parameters, flags, strict=True):
                    if flag != (id(parameter) in chosen):
                        parameter.requires_grad_(not flag)
            yield
            failed = False
        finally:
            for module, mode in modes:
                module.__dict__["training"] = mode
            for parameter, flag in zip(parameters, flags, strict=True):
                if parameter.requires_grad != flag:
                    parameter.requires_grad_(flag)
            for parameter, hooks in hooked:
                parameter._backward_hooks = hooks
            restore_buffers(model)
            if failed:  # what a refused network kept may be right after another pass of the user's
                forget_made([module for module, _ in modes], known)
            if outer is None:
                del _HELD[id(model)]
            else:
                _HELD[id(model)] = outer
