"""Write docs/api.md from the docstrings of the public names: `python tools/api.py [--check]`."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import peewit
import peewit.data
import peewit.figures
import peewit.metrics

PAGE = Path(__file__).resolve().parent.parent / "docs" / "api.md"
HEAD = """# Reference

Every public name, from its own docstring; `make api` writes this page. Symbols and shapes are those of
[math.md](math.md).
"""
GROUPS = {
    "Fit and load": ("fit", "load", "products", "Laplace"),
    "Likelihoods": ("Categorical", "Bernoulli", "Gaussian", "HeteroscedasticGaussian", "Poisson", "Custom"),
    "Priors": ("Prior",),
    "Structures": ("Kron", "EKFAC", "Diag", "Block", "Full"),
    "Curvature": ("Auto", "GGN", "MonteCarlo", "Empirical", "Hessian"),
    "Weights": ("Subnetwork",),
    "Evaluate": ("evaluate", "sweep", "Report", "Sweep"),
}
EXTRAS = {
    peewit.metrics: peewit.metrics.__all__,
    peewit.figures: [name for name in peewit.figures.__all__ if name.islower()],
    peewit.data: ("fashion_mnist",),
}
LIKELIHOOD_METHODS = {"with_noise", "natural", "moments"}  # the others are for the engine


def signature(thing: Any, name: str) -> str:
    """As it is called; annotations are the source's own words, so that every version of Python writes the same."""
    parts, starred = [], False
    found = inspect.signature(thing)
    for parameter in found.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        text = stars.get(parameter.kind, "") + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {parameter.annotation}"
        if parameter.default is not parameter.empty:
            default = repr(parameter.default)
            text += f" = {default if ' at 0x' not in default and '<' not in default else '...'}"
        parts.append(text)
    returned = "" if found.return_annotation in (found.empty, None, "None") else f" -> {found.return_annotation}"
    return f"{name}({', '.join(parts)}){returned}"


def described(thing: Any) -> str:
    """The docstring, with its indentation taken out."""
    return inspect.getdoc(thing) or ""


def members(cls: type) -> list[str]:
    """Public methods and properties with their first lines, in the order of the source."""
    lines = []
    for name, value in vars(cls).items():
        plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if name.startswith("_") or not described(value):
            continue
        if isinstance(value, property) or type(value).__name__ == "cached_property":
            lines.append(f"- `.{name}`: {described(value).splitlines()[0]}")
        elif inspect.isfunction(plain):
            lines.append(f"- `.{signature(plain, name)}`: {' '.join(described(plain).split())}")
    return lines


def entry(name: str, module: ModuleType = peewit) -> str:
    """One public name."""
    thing = getattr(module, name)
    parts = [f"### `{name}`"]
    # Results are made by the library, not by its users: how they are constructed is of no interest.
    if inspect.isfunction(thing) or any(name in names for names in GROUPS.values() if "Laplace" not in names):
        parts.append(f"```text\n{signature(thing, name)}\n```")
    parts.append(described(thing))
    if dataclasses.is_dataclass(thing) and module is peewit.metrics:
        parts.append("Fields: " + ", ".join(f"`{field.name}`" for field in dataclasses.fields(thing)) + ".")
    if inspect.isclass(thing):
        engine = name in GROUPS["Likelihoods"] or name in GROUPS["Structures"] or name in GROUPS["Curvature"]
        lines = [line for line in members(thing) if not engine or any(f".{own}(" in line for own in LIKELIHOOD_METHODS)]
        parts.append("\n".join(lines))
    return "\n\n".join(part for part in parts if part)


def page() -> str:
    """All of it."""
    grouped = {name for names in GROUPS.values() for name in names} | {"__version__"}
    modules = {name for name in peewit.__all__ if isinstance(getattr(peewit, name), ModuleType)}
    rest = [name for name in peewit.__all__ if name not in grouped | modules]
    sections = [HEAD]
    for title, names in {**GROUPS, "Results": tuple(rest)}.items():
        found = [name for name in names if name in peewit.__all__]
        sections += [f"## {title}", *(entry(name) for name in found)] if found else []
    for module, names in EXTRAS.items():
        sections += [f"## `{module.__name__}`", described(module), *(entry(name, module) for name in names)]
    return "\n\n".join(section.strip() for section in sections) + "\n"


def main() -> None:
    """Write the page, or say whether it is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 where the page is not up to date")
    if parser.parse_args().check:
        if PAGE.read_text(encoding="utf-8") != page():
            sys.exit(f"{PAGE.name} is not up to date: run `make api`.")
    else:
        PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
