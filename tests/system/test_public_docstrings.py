"""Public names are documented in full: arguments or fields, what is returned, and an example that runs.

Examples are doctests, and each starts with these names (see `names`):

- `torch`, and `pw`, the package;
- `model`, a classifier with three classes, its data `x` (60, 2) and `y` (60,), and its posterior `la`;
- `line_model`, a regression network, its data `t` (40, 1) and `z` (40, 1), and its posterior `line`;
- in `pw.lightning`: `pl`, which is `lightning.pytorch`, `module`, a LightningModule that trains a copy of `model`, and
  `loader`, its data; in `pw.transformers`: `trainer`, a Trainer of a small language model;
- `learner`, a new `pw.learning.Learner` of a copy of `model`, which has taken one step;
- `report` and `line_report`, which `pw.evaluate` returned for both posteriors; the first has the unknown inputs "far"
  and the corruption "moved".

They run in an empty folder, so that they can write files. What they print should not depend on the machine: shapes,
names and comparisons rather than numbers that were trained.
"""

from __future__ import annotations

import copy
import dataclasses
import doctest
import functools
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from peewit.curvature.contracts import Structure
from peewit.curvature.kinds import CurvatureKind
from peewit.likelihoods import Likelihood
from peewit.likelihoods.contract import WithNoise

HEADINGS = ("Args", "Attributes", "Returns", "Raises", "Warns", "Example")
LONGEST = 120  # of a first line
NO_EXAMPLE = "there is no Example with a line that begins with >>>"
NO_RAISES = "it takes arguments, and there is no Raises"
PROPERTIES = (property, functools.cached_property)
RAISED = re.compile(r"raise (\w+Error)\(")
ENGINE = {pw.Laplace: {"state"}}  # fields that are not for users


PARTS = [("pw", pw), ("pw.data", pw.data), ("pw.metrics", pw.metrics), ("pw.figures", pw.figures)]
PARTS.append(("pw.learning", pw.learning))
HOSTED = {"pw.lightning": ("lightning",), "pw.transformers": ("transformers", "accelerate")}
for part, packages in HOSTED.items():  # as above
    if all(map(importlib.util.find_spec, packages)):
        PARTS.append((part, getattr(pw, part.removeprefix("pw."))))
if importlib.util.find_spec("sklearn"):  # machines with a GPU may do without
    PARTS.append(("pw.sklearn", pw.sklearn))


def public() -> dict[str, Any]:
    """Every function and class that `__all__` names, by how users write it."""
    found = {}
    for prefix, module in PARTS:
        for name in module.__all__:
            thing = getattr(module, name)
            if not isinstance(thing, ModuleType | str | tuple):
                found[f"{prefix}.{name}"] = thing
    return found


# What extensions derive from: the methods of their classes have these docstrings.
CONTRACTS = {
    "peewit.likelihoods.Likelihood": Likelihood,
    "peewit.likelihoods.contract.WithNoise": WithNoise,
    "peewit.curvature.contracts.Structure": Structure,
    "peewit.curvature.kinds.CurvatureKind": CurvatureKind,
}
PUBLIC = public() | CONTRACTS
DOCUMENTED = sorted(PUBLIC)
WITH_METHODS = [thing for thing in PUBLIC.values() if inspect.isclass(thing)]
# Methods that the library calls, each with a sentence of its own.
CALLED_BY_US = {
    pw.Auto: {"choose"},
    pw.Block: {"groups"},
    pw.Blocks: {"spectra", "quad", "cross"},
    pw.Custom: {"hessian"},
    pw.LinearMode: {"under"},
    pw.learning.LearningRecord: {"fields"},
    pw.learning.History: {"plus"},
    pw.learning.Learner: {"note"},
    pw.Prior: {
        *("group", "stretches", "refuse_unknown", "count", "names", "straddling", "bind", "least", "delta", "parts"),
        *("only", "carry_over", "centre"),
    },
    pw.Schema: {"of_frames", "in_order"},
    pw.Space: {"describe_selection", "slice_of", "parts", "only"},
    pw.Subnetwork: {"scores", "choose"},
    pw.Trace: {"of", "with_warning"},
    Likelihood: {"bind", "labelled", "scalars", "decisions", "beside_constant", "sample"},
    WithNoise: {"same_ratios"},
}


def sections(thing: Any) -> dict[str, str]:
    """The docstring by its headings; what comes before the first one is under ''."""
    made, heading = {"": ""}, ""
    for line in (inspect.getdoc(thing) or "").splitlines():
        if line.endswith(":") and line[:-1] in HEADINGS:
            heading = line[:-1]
            made[heading] = ""
        else:
            made[heading] += line + "\n"
    return made


def parameters(thing: Any) -> set[str]:
    """What a function takes, or the fields of a value; nothing for a class that has none, such as a warning."""
    if dataclasses.is_dataclass(thing):
        named = {field.name for field in dataclasses.fields(thing) if not field.name.startswith("_")}
        return named - ENGINE.get(thing, set())
    if inspect.isclass(thing):
        estimator = hasattr(thing, "get_params") or "Args" in sections(thing)  # of scikit-learn's kind, or a learner
        return set(inspect.signature(thing).parameters if estimator else getattr(thing, "_fields", ()))
    return set(inspect.signature(thing).parameters) - {"self", "cls"}


def properties(thing: Any) -> set[str]:
    """Public properties and constants of a class, which stand beside its fields."""
    members = {name: getattr(thing, name, None) for name in dir(thing)} if inspect.isclass(thing) else {}
    plain = (*PROPERTIES, str, int) if dataclasses.is_dataclass(thing) else PROPERTIES
    announces = inspect.isclass(thing) and (thing in CONTRACTS.values() or not dataclasses.is_dataclass(thing))
    announced = set(vars(thing).get("__annotations__", {})) if announces else set()
    return announced | {
        name for name, value in members.items() if isinstance(value, plain) and not name.startswith("_")
    }


def methods(thing: Any) -> dict[str, Any]:
    """Public methods and properties that a class defines itself, by name, without what wraps them."""
    found = {}
    for name, value in vars(thing).items() if inspect.isclass(thing) else ():
        plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if not name.startswith("_") and (inspect.isfunction(plain) or isinstance(plain, PROPERTIES)):
            found[name] = inspect.unwrap(plain) if inspect.isfunction(plain) else plain
    return found


def missing(thing: Any) -> list[str]:
    """What the docstring of a public name lacks, in words."""
    made = sections(thing)
    if inspect.isclass(thing) and "__doc__" not in vars(thing):
        return ["it has no docstring of its own"]
    first = made[""].split("\n\n")[0].strip()
    found = []
    if not first.endswith(".") or "\n" in first or len(first) > LONGEST:
        found.append(f"its first line is no sentence of at most {LONGEST} characters: {first!r}")
    entries = [
        entry
        for heading in ("Args", "Attributes")
        for entry in re.findall(r"^    \*{0,2}(\w+): \S", made.get(heading, ""), re.M)
    ]
    takes = parameters(thing)
    for name in sorted(takes - set(entries)):
        found.append(f"{name!r} is neither under Args nor under Attributes")
    fitted = {name for name in entries if name.endswith("_")} if hasattr(thing, "get_params") else set()
    for name in sorted(set(entries) - takes - properties(thing) - fitted):
        found.append(f"{name!r} is documented, and there is no such argument or field")
    silent = not inspect.isclass(thing) and inspect.signature(thing).return_annotation == "None"
    if not inspect.isclass(thing) and not silent and not made.get("Returns", "").strip():
        found.append("there is no Returns")
    raised = set() if inspect.isclass(thing) else set(RAISED.findall(inspect.getsource(inspect.unwrap(thing))))
    for name in sorted(raised - set(re.findall(r"^    (\w+): ", made.get("Raises", ""), re.M))):
        found.append(f"{name} is raised and not under Raises")
    if not inspect.isclass(thing) and takes and "Raises" not in made:
        found.append(NO_RAISES)
    if ">>> " not in made.get("Example", ""):
        found.append(NO_EXAMPLE)
    return found


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_public_name_is_documented(name: str) -> None:
    """A first sentence, every argument or field, what is returned, and an example."""
    assert not missing(PUBLIC[name]), f"{name}: {'; '.join(missing(PUBLIC[name]))}"


@pytest.mark.parametrize("cls", WITH_METHODS, ids=lambda cls: cls.__name__)
def test_methods_are_documented(cls: type) -> None:
    """As functions are: every argument, what is returned, and an example; properties stand in the class's own list.

    Methods of a contract, and of classes that derive from it, need no example, and no errors: users do not call them.
    """
    listed = "".join(sections(base).get("Attributes", "") for base in cls.__mro__ if base in (cls, *CONTRACTS.values()))
    contract = any(base in CONTRACTS.values() for base in cls.__mro__)
    called_by_us = {name for base in cls.__mro__ for name in CALLED_BY_US.get(base, ())}
    for name, method in methods(cls).items():
        if name in called_by_us or name.startswith("on_"):  # what trainers of other libraries call
            continue
        if isinstance(method, PROPERTIES):
            assert f"    {name}: " in listed, f"{cls.__name__}.{name} is not under Attributes"
        else:
            lacks = [each for each in missing(method) if not (contract and each in (NO_EXAMPLE, NO_RAISES))]
            assert not lacks, f"{cls.__name__}.{name}: {'; '.join(lacks)}"


@pytest.mark.parametrize("cls", CALLED_BY_US, ids=lambda cls: cls.__name__)
def test_what_the_library_calls_is_there(cls: type) -> None:
    """A method that was renamed or removed leaves the list."""
    known = {name for each in (cls, *cls.__subclasses__()) for name in dir(each)}
    assert known >= CALLED_BY_US[cls]


@pytest.mark.parametrize(
    "value",
    [pw.Gaussian(), pw.Categorical(), pw.HeteroscedasticGaussian(), pw.Kron(), pw.Block(), pw.Prior.layerwise()],
    ids=lambda value: type(value).__name__,
)
def test_dir_shows_what_users_call(value: Any) -> None:
    """Neither what the library alone calls, nor what extensions override; every attribute and method else."""
    shown, cls = set(dir(value)), type(value)
    users = {"energy", "distribution", "with_noise", "natural", "noise_precision", "noise", "factor"}
    overridden = {
        name for contract in CONTRACTS.values() if contract in cls.__mro__ for name in methods(contract)
    } - users
    hidden = overridden | {name for base in cls.__mro__ for name in CALLED_BY_US.get(base, ())}
    assert not shown & hidden
    assert shown >= {name for name in methods(cls) if name not in hidden}
    assert shown >= {field.name for field in dataclasses.fields(value)}


def trained(network: nn.Module, x: Tensor, y: Tensor, loss: nn.Module) -> nn.Module:
    """A network after some steps of Adam."""
    optimiser = torch.optim.Adam(network.parameters(), lr=0.05, weight_decay=0.01)
    for _ in range(150):
        optimiser.zero_grad()
        loss(network(x), y).backward()
        optimiser.step()
    return network


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What examples may use."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        y = torch.arange(60) % 3
        angle = 2 * torch.pi * y / 3
        x = torch.stack([angle.cos(), angle.sin()], 1) + 0.5 * torch.randn(60, 2)
        t = torch.linspace(-2, 2, 40)[:, None]
        z = t.sin() + 0.1 * torch.randn(40, 1)
        model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
        line_model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        model = trained(model, x, y, nn.CrossEntropyLoss())
        line_model = trained(line_model, t, z, nn.MSELoss())
    la = pw.fit(model, (x, y), "classification")
    line = pw.fit(line_model, (t, z), pw.Gaussian(0.1))
    moved = {"moved": (lambda inputs, strength: inputs + strength, (0.5, 1.0))}
    report = pw.evaluate(la, (x, y), ood={"far": 10 * x}, shifts=moved, intervals=20)
    line_report = pw.evaluate(line, (t, z), intervals=20)
    return {
        "torch": torch, "pw": pw, "model": model, "x": x, "y": y, "la": la, "report": report,
        "line_model": line_model, "t": t, "z": z, "line": line, "line_report": line_report,
    }  # fmt: skip


def one_step_learner(names: dict[str, Any]) -> pw.learning.Learner:
    """A learner of its own for every example: steps change it."""
    model = copy.deepcopy(names["model"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    learner = pw.learning.Learner(model, (names["x"], names["y"]), "classification", optimizer)
    learner.step()
    return learner


def hosts(names: dict[str, Any], name: str) -> dict[str, Any]:
    """What trains in other libraries."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if name.startswith("pw.transformers."):
            return {"trainer": small_trainer()}
        import lightning.pytorch as pl

        class Module(pl.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.model = copy.deepcopy(names["model"])

            def forward(self, x: Tensor) -> Tensor:
                return self.model(x)

            def training_step(self, batch: Any, index: int) -> Tensor:
                return nn.functional.cross_entropy(self(batch[0]), batch[1])

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.Adam(self.parameters(), lr=0.01)

        dataset = torch.utils.data.TensorDataset(names["x"], names["y"])
        return {"pl": pl, "module": Module(), "loader": torch.utils.data.DataLoader(dataset, batch_size=20)}


def small_trainer() -> Any:
    """Of a language model with one layer."""
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    network = BertForSequenceClassification(BertConfig(vocab_size=9, max_position_embeddings=4, **sizes))
    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    options = TrainingArguments("runs", num_train_epochs=4, dataloader_pin_memory=False, **quiet)
    rows = [{"input_ids": [1, 2 + number % 2], "labels": number % 2} for number in range(24)]
    return Trainer(network, options, train_dataset=rows)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_example_runs(
    name: str,
    names: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Doctests of the name itself and of its methods print what they say, without a warning."""
    if name.startswith("pw.figures."):
        pytest.importorskip("plotly")
    monkeypatch.chdir(tmp_path)
    names = names | (hosts(names, name) if name.startswith(tuple(HOSTED)) else {})
    if name.startswith("pw.learning.") or name == "pw.figures.learning_curves":
        names = {**names, "learner": one_step_learner(names)}
    runner, finder = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), doctest.DocTestFinder(recurse=False)
    # One by one: the finder takes a method that is wrapped for one of another module, and leaves it out.
    for own, thing in {name: PUBLIC[name], **methods(PUBLIC[name])}.items():
        for test in finder.find(thing, own, globs=dict(names)):
            runner.run(test)
    assert runner.summarize(verbose=False).failed == 0, capsys.readouterr().out
    assert runner.tries > 0, "there was no example"
