"""Write docs/api.md and docs/api/ from the docstrings of public names, and docs/glossary.md from the report's words.

`python tools/api.py`; with `--check` it compares the pages and writes nothing.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import peewit
import peewit.curvature.blocks
import peewit.curvature.contracts
import peewit.curvature.kinds
import peewit.data
import peewit.figures
import peewit.integrations.lightning
import peewit.integrations.sklearn
import peewit.integrations.transformers
import peewit.learning
import peewit.likelihoods
import peewit.metrics
import peewit.priors.prior
import peewit.weights.space
from peewit.report.glossary import METHOD_TERMS, TERMS

DOCS = Path(__file__).resolve().parent.parent / "docs"
HEAD = """# Reference

Every public name, from its own docstring. `make api` writes these pages. For symbols and shapes see
[math.md](math.md), for the names of types in signatures [types](api/types.md).

Examples start from `import torch` and `import peewit as pw`, and from these values:

- `model`, a classifier with three classes, its data `x` (60, 2) and `y` (60,), and its posterior `la`;
- `line_model`, a regression network, its data `t` (40, 1) and `z` (40, 1), and its posterior `line`;
- in `pw.lightning`: `pl`, which is `lightning.pytorch`, `module`, a LightningModule that trains a copy of `model`, and
  `loader`, its data; in `pw.transformers`: `trainer`, a Trainer of a small language model;
- `report` and `line_report`, which `pw.evaluate` returned for both posteriors; the first has the unknown inputs "far"
  and the corruption "moved".
"""
WHERE = "Examples start from the values that [the reference](../api.md) names."
GLOSSARY = """# Glossary

The words of these pages and of [the report](report.md), in plain English. `make api` writes this page.
"""
GROUPS = {
    "Fit and load": ("fit", "load", "Laplace", "Blocks", "Schema", "products", "Products"),
    "Likelihoods": (
        *("Categorical", "Bernoulli", "Gaussian", "HeteroscedasticGaussian", "Poisson"),
        *("Preference", "Pair", "Custom"),
    ),
    "Priors": ("Prior",),
    "Structures": ("Kron", "EKFAC", "Diag", "Block", "Full"),
    "Curvature": ("Auto", "GGN", "MonteCarlo", "Empirical", "Hessian"),
    "Weights": ("Space", "Subnetwork"),
    "Predictions": ("Prediction", "Classes", "Binary", "Regression", "Mixture", "Outputs", "Functional", "Predictor"),
    "Evaluate": (
        *("evaluate", "Report", "compare", "Comparison", "ComparedPosterior", "recommend", "Recommendation"),
        *("sweep", "Sweep", "SweepPoint", "validation_nll"),
    ),
}
WARNINGS = ("PeewitWarning", "FitWarning", "RoundingWarning", "TuningWarning", "UnderconfidenceWarning")
EXTRAS = {
    peewit.metrics: sorted(peewit.metrics.__all__, key=lambda name: not name.islower()),  # functions first
    peewit.figures: sorted(peewit.figures.__all__, key=lambda name: not name.islower()),
    peewit.learning: ("train", "Training", "Learner", "LearningRecord", "History", "cosine"),
    peewit.integrations.sklearn: tuple(peewit.integrations.sklearn.__all__),
    peewit.integrations.lightning: tuple(peewit.integrations.lightning.__all__),
    peewit.integrations.transformers: tuple(peewit.integrations.transformers.__all__),
    peewit.data: ("fashion_mnist",),
}
# What signatures name besides public names: aliases and classes, by the module that defines them.
TYPES = {
    "network.nests": ("Data", "Inputs", "InputData", "Targets", "DataBatch", "Array"),
    "tracing.selection": ("Weights", "SubnetworkRule"),
    "weights.space": ("WeightsName",),
    "likelihoods": ("LikelihoodName", "Form"),
    "likelihoods.heteroscedastic": ("Parameters",),
    "curvature.structures": ("StructureName",),
    "curvature.contracts": ("Curvature",),
    "curvature.kinds": ("CurvatureName", "OutputView"),
    "curvature.stream": ("Source",),
    "priors.groupings": ("Grouping",),
    "priors.prior": ("Number",),
    "runtime.arithmetic": ("ArithmeticName",),
    "runtime.random": ("Hashed",),
    "posterior.linear_mode": ("At",),
    "posterior.trace": ("TuneMethod",),
    "tuning.options": ("TuneParameter", "Grid"),
    "predictions.options": ("PredictMethod",),
    "predictions.prediction": ("LinkName",),
    "comparison.call": ("Posteriors",),
    "evaluation.call": ("UnknownInputs",),
    "evaluation.variations": ("Shifts", "Attacks", "ByName", "ShiftName", "AttackName", "Levels", "Change"),
    "evaluation.subject": ("Baselines", "Baseline"),
    "evaluation.sweeps": ("SearchMethod",),
    "metrics.catalogue": ("MetricName",),
    "metrics.results": ("Results", "VariationName"),
    "figures.landscapes": ("LandscapeSource",),
    "figures.prediction": ("Band", "Map"),
    "figures.summary": ("Summary",),
    "figures.unknown": ("ScoreName",),
    "figures.directions": ("DirectionName",),
    "integrations.transformers.callback": ("Unit",),
    "learning.decay": ("Decay",),
    "learning.learner": ("Keep",),
    "learning.losses": ("TrainingLoss",),
    "learning.options": ("LearntParameter", "Rate"),
    "integrations.sklearn.base": ("NumberArray",),
    "integrations.sklearn.training": ("Factory",),
}
TYPES_HEAD = """# Types

What signatures name besides public names. They need no import: give a value that fits. `Literal` lists the texts that
an option takes.
"""
# By users; other values are results.
CONSTRUCTED = {name for group in ("Likelihoods", "Priors", "Structures", "Curvature") for name in GROUPS[group]} | {
    "Subnetwork"
}
# Classes that extensions derive from, with the place that they are imported from.
CONTRACTS = {
    peewit.likelihoods: ("Likelihood", "WithNoise"),
    peewit.curvature.contracts: ("Structure",),
    peewit.curvature.kinds: ("CurvatureKind",),
}
CONTRACTS_HEAD = """# Contracts

What a new likelihood, structure or curvature derives from, and what it overrides. `CONTRIBUTING.md` has the steps.
"""
SHARED = {"Likelihoods": {"with_noise", "natural", "moments"}, "Structures": set(), "Curvature": set()}  # others: there
# Methods that the library calls.
ENGINE = {
    "Blocks": peewit.curvature.blocks.ENGINE,
    "LinearMode": {"under"},
    "LearningRecord": {"fields"},
    "History": {"plus"},
    "Learner": {"note"},
    "Prior": peewit.priors.prior.ENGINE,
    "Schema": {"of_frames", "in_order"},
    "Space": peewit.weights.space.ENGINE,
    "Structure": {"groups"},
    "Subnetwork": {"scores", "choose"},
    "Trace": {"of", "with_warning"},
    "Likelihood": {"bind", "labelled", "scalars", "decisions", "beside_constant"},
    "WithNoise": {"same_ratios"},
}
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
            text += f": {getattr(parameter.annotation, '__forward_arg__', parameter.annotation)}"
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
    shared = next((methods for group, methods in SHARED.items() if name in GROUPS[group]), None)
    attributes = inspect.cleandoc("\n".join(["", *sections(docstring(cls)).get("Attributes", [])]))
    listed = {attribute for attribute, _ in entries(attributes)}
    for member, value in vars(cls).items():
        plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        text = docstring(value)
        if member.startswith(("_", "on_")) or not text or member in listed or member in ENGINE.get(name, ()):
            continue
        if shared is not None and member not in shared:
            continue
        if isinstance(value, property) or type(value).__name__ == "cached_property":
            lines.append(f"- `.{member}`: {text.splitlines()[0]}")
        elif inspect.isfunction(plain) and len(sections(text)) > 1:
            call = f"```text\n{signature(plain, member, wrapped=True)}\n```"
            long.append(f"### `{name}.{member}`\n\n{call}\n\n{markdown(text)}")
        elif inspect.isfunction(plain):
            lines.append(f"- `.{signature(plain, member)}`: {' '.join(text.split())}")
    return lines, long


def title(name: str, module: ModuleType) -> str:
    """The name as users write it, or where to import it from."""
    return f"{place(module) if module in CONTRACTS else place(module).replace('peewit', 'pw', 1)}.{name}"


def place(module: ModuleType) -> str:
    """Where users find a module: `pw.sklearn` is in a room of its own."""
    return module.__name__.replace(".integrations", "")


def entry(name: str, module: ModuleType = peewit) -> str:
    """The section of one public name."""
    thing = getattr(module, name)
    parts = [f"## {'class ' if inspect.isclass(thing) else ''}`{title(name, module)}`"]
    # Users do not construct results, so these need no signature.
    constructed = module is peewit and name in CONSTRUCTED
    constructed |= hasattr(thing, "get_params") or thing is peewit.learning.Learner  # an estimator, or a learner
    constructed |= "Callback" in name
    if inspect.isfunction(thing) or constructed:
        parts.append(f"```text\n{signature(thing, name, wrapped=True)}\n```")
    parts.append(markdown(docstring(thing)))
    if inspect.isclass(thing):
        lines, long = members(thing, name)
        parts += ["\n".join(["**Methods and properties**", "", *lines]) if lines else "", *long]
    return "\n\n".join(part for part in parts if part)


def anchor(heading: str) -> str:
    """What a link to a heading ends with, as git hosts and MkDocs make it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def contents(file: str, text: str) -> str:
    """Links to the names of one page, whose title comes first."""
    title, *names = [heading.replace("`", "") for heading in re.findall(r"^##? (.*)$", text, re.M)]
    links = [f"[{name.rpartition('.')[2]}]({file}#{anchor(name)})" for name in names]
    if len({anchor(name) for name in names}) < len(names):
        raise ValueError(f"{file} has two headings with the same anchor.")
    return f"- **[{title}]({file})**: {', '.join(links)}"


def file_name(heading: str) -> str:
    """The page of a section: its first noun, or the last part of a module's name."""
    return heading.lower().replace("pw.", "").partition(" ")[0] + ".md"


def types() -> str:
    """The page of what signatures name, in the order of the alphabet: aliases as the source has them."""
    found = {name: described(module, name) for module, names in TYPES.items() for name in names}
    return "\n\n".join([TYPES_HEAD.strip(), *(found[name] for name in sorted(found))]) + "\n"


def described(module: str, name: str) -> str:
    """The section of an alias, from the assignment and the text below it; or of a class, from its docstring."""
    thing = getattr(import_module(f"peewit.{module}"), name)
    if inspect.isclass(thing):
        return f"## class `{name}`\n\n{markdown(docstring(thing))}"
    body = ast.parse(inspect.getsource(import_module(f"peewit.{module}"))).body
    for statement, below in pairwise(body):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        if isinstance(target, ast.Name) and target.id == name:
            text = ast.literal_eval(below.value) if isinstance(below, ast.Expr) else ""
            if not text:
                raise ValueError(f"{name} in peewit.{module} has no text in the line below it.")
            return f"## `{name}`\n\n```text\n{name} = {ast.unparse(statement.value)}\n```\n\n{inspect.cleandoc(text)}"
    raise ValueError(f"peewit.{module} assigns nothing to {name}.")


def reference() -> dict[str, str]:
    """All pages of the reference by their path in docs/."""
    public = [name for name in peewit.__all__ if not isinstance(getattr(peewit, name), ModuleType | str)]
    rest = [name for name in public if not any(name in names for names in (*GROUPS.values(), WARNINGS))]
    pages = {}
    for heading, names in {**GROUPS, "Results": tuple(rest), "Warnings": WARNINGS}.items():
        if present := [name for name in names if name in public]:
            pages[f"api/{file_name(heading)}"] = [f"# {heading}", WHERE, *(entry(name) for name in present)]
    for module, names in EXTRAS.items():
        heading = place(module).replace("peewit", "pw", 1)
        text = [f"# `{heading}`", docstring(module), WHERE, *(entry(name, module) for name in names)]
        pages[f"api/{file_name(heading)}"] = text
    contracts = (entry(name, module) for module, names in CONTRACTS.items() for name in names)
    pages["api/contracts.md"] = [CONTRACTS_HEAD, WHERE, *contracts]
    pages["api/types.md"] = [types()]
    written = {file: "\n\n".join(part.strip() for part in parts) + "\n" for file, parts in pages.items()}
    return {"api.md": f"{HEAD}\n" + "\n".join(contents(file, text) for file, text in written.items()) + "\n", **written}


def glossary() -> str:
    """The page of words, in the order of the alphabet."""
    meanings = {**{word: meaning for word, (meaning, _) in TERMS.items()}, **METHOD_TERMS}
    words = sorted(meanings, key=str.casefold)
    return "\n\n".join([GLOSSARY.strip(), *(f"## {word}\n\n{meanings[word]}" for word in words)]) + "\n"


def main() -> None:
    """Write the pages, or check that they are up to date and that there are no others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 where a page is not up to date")
    pages = {**reference(), "glossary.md": glossary()}
    unknown = {f"api/{path.name}" for path in DOCS.glob("api/*.md")} - set(pages)
    if parser.parse_args().check:
        stale = [file for file, text in pages.items() if read(DOCS / file) != text]
        if stale or unknown:
            sys.exit(f"{', '.join(sorted({*stale, *unknown}))} is not up to date: run `make api`.")
        return
    for file in unknown:
        (DOCS / file).unlink()
    (DOCS / "api").mkdir(exist_ok=True)
    for file, text in pages.items():
        (DOCS / file).write_text(text, encoding="utf-8")


def read(path: Path) -> str:
    """The text of a page, empty where there is none."""
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    main()
