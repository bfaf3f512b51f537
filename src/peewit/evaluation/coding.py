"""Python that makes a report again: how the posterior was fitted and tuned, and what `evaluate` was given."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..curvature.kinds import GGN
from ..curvature.structures import NAMES as STRUCTURES
from ..likelihoods import NAMES as LIKELIHOODS
from ..likelihoods import NAMES_BY_CLASS, Likelihood, WithNoise
from ..messages.python_code import write_value
from ..weights.space import trainable

if TYPE_CHECKING:
    from ..laplace import Laplace
    from .variations import Variation

TUNED = {"evidence": "", "training": "train=train", "validation": "validation=validation"}  # by the data that is given
LOADED = 'la = pw.load("posterior.safetensors", model)  # as peewit fit --standardise wrote it'
WIDTH = 100  # of a line


def code_of(la: Laplace | None, likelihood: Likelihood, arguments: Mapping[str, str]) -> str:
    """The whole script; `arguments` are those of `evaluate`, as they are typed."""
    lines = [*(["import torch", ""] if "generator" in arguments else []), "import peewit as pw", ""]
    if la is None:
        arguments = {"likelihood": likelihood_code(likelihood), **arguments}
    else:
        scaled = la.schema is not None and la.schema.scaling is not None
        lines += [*([LOADED] if scaled else fit_code(la)), ""]
    subject = "model" if la is None else "la"
    lines += call("report = pw.evaluate", [subject, "test", *(f"{name}={text}" for name, text in arguments.items())])
    return "\n".join([*lines, 'report.to_html("report.html")'])


def call(function: str, arguments: Sequence[str]) -> list[str]:
    """A call, on one line where it fits."""
    line = f"{function}({', '.join(arguments)})"
    return [line] if len(line) <= WIDTH else [f"{function}(", *(f"    {each}," for each in arguments), ")"]


def fit_code(la: Laplace) -> list[str]:
    """`fit`, and `tune` where the posterior was tuned."""
    trace, options = la.trace, dict[str, str]()
    if (weights := weights_code(la)) is not None:
        options["weights"] = weights
    if (structure := structure_code(la)) != '"kron"':
        options["structure"] = structure
    if la.curvature != GGN():
        options["curvature"] = write_value(la.curvature)
    if (prior := prior_code(la)) is not None:
        options["prior"] = prior
    if la.state.linear_mode is not None and trace is None:
        options["at"] = '"linear_mode"'
    typed = ["model", "train", likelihood_code(la.likelihood, trace is not None)]
    lines = call("la = pw.fit", [*typed, *(f"{name}={text}" for name, text in options.items())])
    if trace is not None:
        data = TUNED.get(trace.method)
        if data is None:
            data = f'"{trace.method}"' + (", validation=validation" if trace.objective == "validation NLL" else "")
        elif trace.method == "evidence" and la.state.linear_mode is not None:
            data = '"evidence", at="linear_mode", train=train'
        lines.append(f"la = la.tune({data})")
    elif la.temperature != 1:
        lines.append(f"la = la.with_temperature({la.temperature:.6g})")
    return lines


def likelihood_code(likelihood: Likelihood, tuned: bool = False) -> str:
    """By its name where that is all; a noise that was tuned is left to `tune`."""
    kind, name = type(likelihood), NAMES_BY_CLASS.get(type(likelihood).__name__)
    if name is None or kind is not LIKELIHOODS[name]:
        return write_value(likelihood)
    left_to_tune = tuned and isinstance(likelihood, WithNoise) and isinstance(likelihood.noise, float)
    return f'"{name}"' if left_to_tune or repr(likelihood) == repr(kind()) else write_value(likelihood)


def weights_code(la: Laplace) -> str | None:
    """None for all trainable weights; else their names, or that there is a mask."""
    space = la.space
    if space.mask is not None:
        return "mask"
    if set(space.names) == set(trainable(la.model)):
        return None
    return json.dumps(list(space.names))


def structure_code(la: Laplace) -> str:
    """By its name where it has no options."""
    for name, kind in STRUCTURES.items():
        if type(la.structure) is kind and la.structure == kind():
            return f'"{name}"'
    return write_value(la.structure)


def prior_code(la: Laplace) -> str | None:
    """The precision, unless it was tuned; groups by the name of their grouping."""
    name, precision = la.prior.grouping.name, la.prior.precision.detach()
    start = "" if la.trace is not None else f"{float(precision[0]):.6g}"
    if name == "scalar":
        return start if start not in ("", "1") else None
    whole = name not in ("groups", "scale_invariant") and (la.trace is not None or precision.numel() == 1)
    return f"pw.Prior.{name}({start if whole else '...'})"


def evaluate_code(
    *,
    unknown: Mapping[str, Any],
    variations: Sequence[Variation],
    given: Mapping[str, bool],
    options: Mapping[str, Any],
    seed: int,
) -> dict[str, str]:
    """Arguments as they are typed: `given` says which data there were, `options` has plain values that are not None."""
    typed = {name: name for name, present in given.items() if present}
    if unknown:
        typed["ood"] = "{" + ", ".join(f"{json.dumps(name)}: {variable(name)}" for name in unknown) + "}"
    for kind in ("shifts", "attacks"):
        chosen = [variation for variation in variations if variation.kind == kind]
        if chosen:
            typed[kind] = variations_code(chosen)
    typed |= {name: literal(value) for name, value in options.items()}
    if seed:
        typed["generator"] = f"torch.Generator().manual_seed({seed})"
    return typed


def variations_code(variations: Sequence[Variation]) -> str:
    """Names, or names with strengths; functions and data of the user's own by a variable's name."""
    if all(variation.plain for variation in variations):
        return literal([variation.name for variation in variations])
    parts = []
    for variation in variations:
        value = literal(list(variation.strengths)) if variation.known else variable(variation.name)
        parts.append(f"{json.dumps(variation.name)}: {value}")
    return "{" + ", ".join(parts) + "}"


def literal(value: Any) -> str:
    """Plain values; texts and lists of texts in double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{literal(str(key))}: {literal(each)}" for key, each in value.items()) + "}"
    return repr(value)


def variable(name: str) -> str:
    """A name of data as a name of Python."""
    text = re.sub(r"\W+", "_", name).strip("_").lower()
    return f"data_{text}" if not text or text[0].isdigit() or keyword.iskeyword(text) else text
