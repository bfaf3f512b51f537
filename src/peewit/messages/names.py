"""Names that were meant: of options, structures, likelihoods and methods."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from .elsewhere import OPTIONS, VALUES
from .errors import ArgumentTypeError, PeewitError

NOWHERE: Mapping[str, str] = {}
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
Class = TypeVar("Class", bound=type)


# Names that others use, by which letters do not tell what was meant.
OTHERS: dict[str, str | tuple[str, ...]] = {
    "kfac": "kron",
    "ef": "empirical",
    "mc": "fisher",
    "fim": "fisher",
    "bridge_norm": "bridge_normalised",
    "optimize_prior_precision": "tune",
    "n_steps": "steps",
    "n_samples": "samples",
    "subset_of_weights": "weights",
    "hessian_structure": "structure",
    "kronecker": "kron",
    "marglik": "evidence",
    "gridsearch": "grid",
    "multiclass": "classification",
    "multilabel": "binary",
    "bernoulli": "binary",
    "gaussian": "regression",
    "poisson": "count",
    "reward_modeling": "preference",
    "reward_modelling": "preference",
    "reward": "preference",
    "softmax": "classification",
    "mse": "regression",
    "glm": "linearised",
    "nn": "sampled",
    "pred_type": "method",
    "link_approx": "link",
    "val_loader": "validation",
    "train_loader": ("train", "data"),
    "dataloader": ("data", "train"),
    "data": ("test", "train", "validation"),
    "mode": "at",
    "mean": "at",
    "kind": ("variation", "curvature"),
    "n": "samples",
    "sigma_noise": "noise",
    "sigma": "noise",
    "seed": "generator",
    "scale": "data_weight",
    "var": "variance",
    "stddev": "std",
    "deviation": "std",
    "standard_deviation": "std",
    "proba": "probs",
    "probabilities": "probs",
    "predicted": "mode",
    "prior": "parameters",
    "noise": "parameters",
    "temperature": "parameters",
    "prior_precision": ("prior", "precision"),
    "backend": "curvature",
    "num_samples": "samples",
    "log_marginal_likelihood": "log_evidence",
    "posterior_precision": "precision",
    "cuda": "to",
    "cpu": "to",
}


def unknown(name: str, known: Iterable[str], elsewhere: Mapping[str, str]) -> str:
    """What follows "there is no such name": where to find it, or the name that was meant, as the end of a sentence."""
    near = nearest(name, known, elsewhere=elsewhere)
    return f"; {near}" if near else ". "


def names_for_users(value: object, engine: Collection[str]) -> list[str]:
    """What `dir` is to show of a value: public names, without those that only the library and extensions call."""
    return sorted(name for name in object.__dir__(value) if not name.startswith("_") and name not in engine)


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5, elsewhere: Mapping[str, str] = NOWHERE) -> str:
    """A question after the name that was meant, or where to find it; empty where none is near."""
    names, spelling = list(known), str(name).lower()
    prefix, dot, last = spelling.rpartition(".")  # settings have the name of their table before theirs
    others = OTHERS.get(last, ())
    suggestions = [prefix + dot + known_name for known_name in ((others,) if isinstance(others, str) else others)]
    suggestions = [repr(known_name) for known_name in suggestions if known_name in names]
    if suggestions:
        return f"did you mean {' or '.join(suggestions)}? "
    if name in elsewhere:
        return f"{elsewhere[name]}. "
    # A longer name for the same thing: prior_precision, link_approx.
    parts = [known_name for known_name in names if len(known_name) > 3 and known_name in spelling.split("_")]
    same = [known_name for known_name in names if known_name.lower() == spelling]
    near = same or parts or difflib.get_close_matches(spelling, names, n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}? " if near else ""


def first_names(names: Sequence[str], most: int = 3) -> str:
    """The first of many names, and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def check_name(value: Any, known: Iterable[str], what: str) -> None:
    """Refuse what is not one of the names, and say which was meant."""
    names = tuple(known)
    if value not in names:
        near = nearest(value, names, elsewhere=VALUES) if isinstance(value, str) else ""
        raise PeewitError(f"{what}={value!r} is not known; {near}Known: {', '.join(names)}.")


def spelled(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The same function, which answers unknown options with the nearest known one.

    Where it takes further keywords, these are tensors, arrays or lists of numbers.
    """
    parameters = inspect.signature(function).parameters
    known = [name for name, each in parameters.items() if name != "self" and each.kind is not each.VAR_KEYWORD]
    takes_more = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    title = function.__qualname__.removesuffix(".__init__")
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    places = [name for name, each in parameters.items() if each.kind in by_place]
    any_number = any(each.kind is each.VAR_POSITIONAL for each in parameters.values())
    needed = [name for name in places if parameters[name].default is inspect.Parameter.empty and name != "self"]

    @functools.wraps(function)
    def inner(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if not any_number and (len(args) > len(places) or not kwargs.keys().isdisjoint(places[: len(args)])):
            refuse_places(title, args, places, kwargs)
        refuse_targets(title, args, places)
        options = [
            name
            for name, value in kwargs.items()
            if not takes_more or not (hasattr(value, "shape") or isinstance(value, list))
        ]
        check_options(options, known, title, ", ".join(known) or "none")
        missing = [name for name in needed if name not in kwargs and name not in places[: len(args)]]
        if missing and not any_number:
            refuse_missing(title, missing, places)
        return function(*args, **kwargs)

    return inner


def refuse_places(title: str, args: Sequence[Any], places: Sequence[str], kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments in more places than there are, or in the place of one that also came by name."""
    named = [name for name in places if name != "self"]
    values = args[len(places) - len(named) :]
    arrays = [holds_rows(each) for each in values]
    apart = next((n for n in range(len(values) - 1) if arrays[n] and arrays[n + 1] and n < len(named)), None)
    pair = "(x, y)" if apart is None or named[apart] != "method" else "train=(x, y)"  # which tune takes by name
    call = ", ".join([pair if n == apart else name for n, name in enumerate(named)])
    hint = "" if apart is None else f" Inputs and targets go in together: {title.rpartition('.')[2]}({call})."
    twice = [name for name in named[: len(values)] if name in kwargs]
    what = f"{', '.join(twice)} twice, by its place and by its name" if twice else f"{len(values)} arguments by place"
    raise ArgumentTypeError(
        f"{title}() was given {what}; it takes ({', '.join(named)}) by place, and all else by name.{hint}"
    )


def refuse_targets(title: str, args: Sequence[Any], places: Sequence[str]) -> None:
    """Refuse targets in the place of a likelihood."""
    for name, value in zip(places, args, strict=False):
        if name == "likelihood" and holds_rows(value):
            call = ", ".join(["(x, y)" if each in ("data", "train") else each for each in places])
            raise ArgumentTypeError(
                f"{title}() was given a {type(value).__name__} as likelihood; expected a name, such as "
                f"'classification' or 'regression'. Inputs and targets go in together: pw.{title}({call})."
            )


def holds_rows(value: Any) -> bool:
    """Whether something is a tensor, an array, a column, a frame or a list."""
    return isinstance(value, list) or (hasattr(value, "shape") and hasattr(value, "__getitem__"))


def refuse_missing(title: str, missing: Sequence[str], places: Sequence[str]) -> None:
    """Refuse a call without what it needs, and say what to type where that is a likelihood."""
    named = ", ".join(name for name in places if name != "self")
    hint = ""
    if "likelihood" in missing:
        hint = " The likelihood says how targets are distributed: 'classification', 'regression', 'binary' or another."
    raise ArgumentTypeError(
        f"{title}() is missing {' and '.join(missing)}; it takes ({named}) by place, and all else by name.{hint}"
    )


def spelled_class(cls: Class) -> Class:
    """The same class, whose constructor answers unknown options with the nearest known one."""
    constructor = "__init__"
    setattr(cls, constructor, spelled(getattr(cls, constructor)))
    return cls


def spell_functions(namespace: dict[str, Any]) -> None:
    """Let all public functions of a module answer unknown options so, but those that hand further ones on."""
    for name in namespace["__all__"]:
        function = namespace[name]
        if inspect.isfunction(function):
            kinds = {each.kind for each in inspect.signature(function).parameters.values()}
            namespace[name] = function if inspect.Parameter.VAR_KEYWORD in kinds else spelled(function)


def check_options(options_given: Iterable[str], known: Sequence[str], title: str, options: str) -> None:
    """Refuse options that a call does not have, with the nearest one that it has; `options` lists them in words."""
    for name in options_given:
        if name not in known:
            raise ArgumentTypeError(
                f"{title}() has no option {name!r}{unknown(name, known, OPTIONS)}It takes {options}."
            )


LOSSES = {  # classes of torch.nn that users may give in place of a likelihood
    "CrossEntropyLoss": "classification",
    "NLLLoss": "classification",
    "BCEWithLogitsLoss": "binary",
    "MSELoss": "regression",
    "GaussianNLLLoss": "heteroscedastic",
    "PoissonNLLLoss": "count",
}


def resolve_name(value: Any, names: Mapping[Any, Callable[[], Any]], what: str, kind: type | str) -> Any:
    """A value, or the one that a name stands for; all of them are of some kind, or have some method."""
    if not isinstance(value, str):
        instance = value() if isinstance(value, type) else value
        if not (isinstance(instance, kind) if isinstance(kind, type) else hasattr(instance, kind)):
            loss = LOSSES.get(type(instance).__name__) if type(instance).__module__ == "torch.nn.modules.loss" else None
            hint = f" Did you mean {loss!r}?" if loss else ""
            base = (
                f" or of a subclass of {kind.__module__.rpartition('.')[0]}.{kind.__name__}"
                if isinstance(kind, type)
                else ""
            )
            raise ArgumentTypeError(
                f"{what} is a {type(instance).__name__}; expected one of the names {', '.join(names)}, or a value of "
                f"peewit's own kinds{base}.{hint}"
            )
        return instance
    check_name(value, names, what)
    return names[value]()
