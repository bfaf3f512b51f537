"""Write docs/api.md from the docstrings of the public names: `python tools/api.py [--check]`."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import peewit
import peewit.data
import peewit.figures
import peewit.integrations.sklearn
import peewit.metrics

PAGE = Path(__file__).resolve().parent.parent / "docs" / "api.md"
HEAD = """# Reference

Every public name, from its own docstring; `make api` writes this page. Symbols and shapes are those of
[math.md](math.md).

Examples start from `import torch` and `import peewit as pw`, and from these values:

- `model`, a classifier with three classes, its data `x` (60, 2) and `y` (60,), and its posterior `la`;
- `line_model`, a regression network, its data `t` (40, 1) and `z` (40, 1), and its posterior `line`;
- `report` and `line_report`, which `pw.evaluate` returned for both posteriors; the first has the unknown inputs "far"
  and the corruption "moved".
"""
GROUPS = {
    "Fit and load": ("fit", "load", "Laplace", "products", "Products"),
    "Likelihoods": ("Categorical", "Bernoulli", "Gaussian", "HeteroscedasticGaussian", "Poisson", "Custom"),
    "Priors": ("Prior",),
    "Structures": ("Kron", "EKFAC", "Diag", "Block", "Full"),
    "Curvature": ("Auto", "GGN", "MonteCarlo", "Empirical", "Hessian"),
    "Weights": ("Subnetwork",),
    "Predictions": ("Prediction", "Classes", "Binary", "Regression", "Mixture", "Outputs", "Functional"),
    "Evaluate": ("evaluate", "Report", "recommend", "Recommendation", "sweep", "Sweep", "validation_nll"),
}
WARNINGS = ("RoundingWarning", "TuningWarning", "UnderconfidenceWarning")
EXTRAS = {
    peewit.metrics: sorted(peewit.metrics.__all__, key=lambda name: not name.islower()),  # functions first
    peewit.figures: sorted(peewit.figures.__all__, key=lambda name: not name.islower()),
    peewit.integrations.sklearn: tuple(peewit.integrations.sklearn.__all__),
    peewit.data: ("fashion_mnist",),
}
CONSTRUCTED = ("Likelihoods", "Priors", "Structures", "Curvature", "Weights")  # by users; other values are results
LIKELIHOOD_METHODS = {"with_noise", "natural", "moments"}  # the others are for the engine
ENGINE = {"Subnetwork": {"scores", "choose"}, "Trace": {"of", "with_warning"}, "LinearMode": {"under"}}
HEADING = re.compile(r"^(Args|Attributes|Returns|Raises|Warns|Example):$")
WORDS = {"Args": "Arguments", "Attributes": "Fields"}
WIDE = 100  # characters of a signature that stays on one line


def signature(thing: Any, name: str, wrapped: bool = False) -> str:
    """How it is called; annotations are the text of the source, so that every version of Python writes the same."""
    parts, starred = [], False
    called = inspect.signature(thing)
    for parameter in called.parameters.values():
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
    returned = "" if called.return_annotation in (called.empty, None, "None") else f" -> {called.return_annotation}"
    line = f"{name}({', '.join(parts)}){returned}"
    if not wrapped or len(line) <= WIDE:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){returned}"])


def docstring(thing: Any) -> str:
    """The docstring without its indentation."""
    return inspect.getdoc(thing) or ""


def sections(text: str) -> dict[str, list[str]]:
    """Lines of a docstring by heading; those before the first heading are under ''."""
    by_heading: dict[str, list[str]] = {"": []}
    heading = ""
    for line in text.splitlines():
        if match := HEADING.match(line):
            heading = match[1]
            by_heading[heading] = []
        else:
            by_heading[heading].append(line)
    return by_heading


def markdown(text: str) -> str:
    """A docstring as Markdown: arguments, fields and errors as lists, the example as a block that is not run."""
    parts = []
    for heading, lines in sections(text).items():
        content = inspect.cleandoc("\n".join(["", *lines]))
        if not heading:
            parts.append(content)
        elif heading == "Example":
            parts.append(f"```pycon\n{content}\n```")
        elif heading == "Returns":
            parts.append(f"**Returns:** {' '.join(content.split())}")
        else:
            items = [f"- `{name}`: {' '.join(words.split())}" for name, words in entries(content)]
            parts.append("\n".join([f"**{WORDS.get(heading, heading)}**", "", *items]))
    return "\n\n".join(parts)


def entries(content: str) -> list[tuple[str, str]]:
    """Pairs of a name and its words, from `name: words` with further lines indented below."""
    pieces = re.split(r"^(?=\S)", content, flags=re.M)
    return [(name, words) for name, _, words in (piece.partition(":") for piece in pieces if piece)]


def members(cls: type, name: str) -> tuple[list[str], list[str]]:
    """Public methods and properties in the order of the source: lines of a list, and sections for the longer ones."""
    lines, long = [], []
    attributes = inspect.cleandoc("\n".join(["", *sections(docstring(cls)).get("Attributes", [])]))
    listed = {attribute for attribute, _ in entries(attributes)}
    for member, value in vars(cls).items():
        plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        text = docstring(value)
        if member.startswith("_") or not text or member in listed or member in ENGINE.get(name, ()):
            continue
        if isinstance(value, property) or type(value).__name__ == "cached_property":
            lines.append(f"- `.{member}`: {text.splitlines()[0]}")
        elif inspect.isfunction(plain) and len(sections(text)) > 1:
            call = f"```text\n{signature(plain, member, wrapped=True)}\n```"
            long.append(f"#### `{name}.{member}`\n\n{call}\n\n{markdown(text)}")
        elif inspect.isfunction(plain):
            lines.append(f"- `.{signature(plain, member)}`: {' '.join(text.split())}")
    return lines, long


def title(name: str, module: ModuleType) -> str:
    """The name as users write it."""
    return f"{place(module).replace('peewit', 'pw', 1)}.{name}"


def place(module: ModuleType) -> str:
    """Where users find a module: `pw.sklearn` is in a room of its own."""
    return module.__name__.replace(".integrations", "")


def entry(name: str, module: ModuleType = peewit) -> str:
    """The section of one public name."""
    thing = getattr(module, name)
    parts = [f"### `{title(name, module)}`"]
    # Users do not construct results, so these need no signature.
    constructed = module is peewit and any(name in GROUPS[group] for group in CONSTRUCTED)
    constructed |= hasattr(thing, "get_params")  # an estimator
    if inspect.isfunction(thing) or constructed:
        parts.append(f"```text\n{signature(thing, name, wrapped=True)}\n```")
    parts.append(markdown(docstring(thing)))
    if inspect.isclass(thing):
        engine = any(name in GROUPS[group] for group in ("Likelihoods", "Priors", "Structures", "Curvature"))
        lines, long = members(thing, name)
        lines = [line for line in lines if not engine or any(f".{method}(" in line for method in LIKELIHOOD_METHODS)]
        parts += ["\n".join(["**Methods and properties**", "", *lines]) if lines else "", *long]
    return "\n\n".join(part for part in parts if part)


def contents(text: str) -> str:
    """Links to all names, section by section; repeated anchors are numbered, as GitHub does."""
    seen: Counter[str] = Counter()
    lines: list[str] = []
    for level, heading in re.findall(r"^(#{2,4}) (.*)$", text, re.M):
        plain = heading.replace("`", "")
        anchor = re.sub(r"[^\w -]", "", plain.lower()).replace(" ", "-")
        number = seen[anchor]
        seen[anchor] += 1
        link = f"[{plain.rpartition('.')[2]}](#{anchor}{f'-{number}' if number else ''})"
        if level == "##":
            lines.append(f"- **{link}**:")
        elif level == "###":
            lines[-1] += ("" if lines[-1].endswith(":") else ",") + f" {link}"
    return "\n".join(lines)


def page() -> str:
    """The whole page."""
    public = [name for name in peewit.__all__ if not isinstance(getattr(peewit, name), ModuleType | str)]
    rest = [name for name in public if not any(name in names for names in (*GROUPS.values(), WARNINGS))]
    sections = []
    for heading, names in {**GROUPS, "Results": tuple(rest), "Warnings": WARNINGS}.items():
        present = [name for name in names if name in public]
        sections += [f"## {heading}", *(entry(name) for name in present)] if present else []
    for module, names in EXTRAS.items():
        sections += [f"## `{place(module)}`", docstring(module), *(entry(name, module) for name in names)]
    body = "\n\n".join(section.strip() for section in sections)
    return f"{HEAD}\nAll names:\n\n{contents(body)}\n\n{body}\n"


def main() -> None:
    """Write the page, or check that it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 where the page is not up to date")
    if parser.parse_args().check:
        if PAGE.read_text(encoding="utf-8") != page():
            sys.exit(f"{PAGE.name} is not up to date: run `make api`.")
    else:
        PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
