"""Files: what is loaded answers as what was saved, bit for bit; what is damaged, or for another network, is refused."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE
from fitting import built, classes, fitted, normal, seeded
from networks import tied_linears, unused_layer
from peewit.evaluation.describing import posterior_in_words
from peewit.priors import groupings
from peewit.storage import format, save
from saving import STRUCTURES, answers, assert_same, content_of, equal
from tables import NAMES, moved, table

SEVERAL = ["mlp", "mlp_regression", "conv2d_groups", "batch_norm1d", "token_classifier", "tied_gpt", "unused_layer"]


def small() -> nn.Module:
    """A network with a norm that has buffers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return built(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)))


def posterior(structure: Any = "kron", **options: Any) -> pw.Laplace:
    """A fit of the small network."""
    return fitted(small(), normal(9, 3), classes(2, 9), "classification", structure, **options)


def again(la: pw.Laplace, folder: Path, model: nn.Module | None = None, **options: Any) -> pw.Laplace:
    """Saved, and loaded for a copy of the network."""
    path = folder / "posterior.safetensors"
    la.save(path)
    return pw.load(path, copy.deepcopy(la.model) if model is None else model, **options)


@pytest.mark.parametrize("name", NAMES)
def test_every_network_comes_back(name: str, tmp_path: Path) -> None:
    """Whatever rules its weights need."""
    case = table(name)
    la = case.fit("kron")
    assert_same(la, again(la, tmp_path), moved(case.x))


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", SEVERAL)
def test_every_structure_comes_back(name: str, structure: str, tmp_path: Path) -> None:
    """Its sums are all that is needed."""
    case = table(name)
    la = case.fit(STRUCTURES[structure])
    loaded = again(la, tmp_path)
    assert loaded.structure == STRUCTURES[structure]
    assert_same(la, loaded, moved(case.x))


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtypes(structure: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Sums in float32 for narrower networks."""
    x = normal(9, 3).to(dtype)
    la = fitted(small().to(dtype), x, classes(2, 9), "classification", STRUCTURES[structure])
    assert la.weights.dtype == torch.promote_types(dtype, torch.float32)
    assert_same(la, again(la, tmp_path), moved(x))


@pytest.mark.parametrize("curvature", ["ggn", pw.MonteCarlo(2), "empirical", "auto", pw.Hessian(clip=True)])
def test_curvatures(curvature: Any, tmp_path: Path) -> None:
    """With their options; a clipped Hessian is saved before it is clipped."""
    la = posterior("full", curvature=curvature, generator=seeded(5))
    loaded = again(la, tmp_path)
    assert (loaded.curvature, loaded.state.measurement.seed) == (la.curvature, la.state.measurement.seed)
    assert_same(la, loaded, moved(normal(4, 3)))


PRIORS: dict[str, Callable[[int], pw.Prior]] = {
    "scalar": lambda d: pw.Prior.scalar(0.3, mean=0.1),
    "layerwise": lambda d: pw.Prior.layerwise([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], mean=0.1 * normal(d)),
    "groups": lambda d: pw.Prior.groups({"0": 0.7, "1.weight": 3.0, "*": 10.0}, mean=normal(1)),
    "diagonal": lambda d: pw.Prior.diagonal(normal(d).exp()),
    "unitwise": lambda d: pw.Prior.unitwise(0.3),
    "inputwise": lambda d: pw.Prior.inputwise(0.3, weights=("0", "3.weight")),
    "g_prior": lambda d: pw.Prior.g_prior(0.3),
    "scale_invariant": lambda d: pw.Prior(groupings.ScaleInvariant((("0.weight", "3.bias"),)), torch.tensor([0.3])),
}


@pytest.mark.parametrize("prior", PRIORS)
def test_priors(prior: str, tmp_path: Path) -> None:
    """Precisions, groups and means, of every grouping."""
    assert {*PRIORS} == {*groupings.NAMES}
    chosen = PRIORS[prior](sum(parameter.numel() for parameter in small().parameters()))
    la = posterior("diag", prior=chosen)
    assert_same(la, again(la, tmp_path), moved(normal(4, 3)))
    assert_same(la.with_prior(2.0), again(la.with_prior(2.0), tmp_path), moved(normal(4, 3)))


@pytest.mark.parametrize("noise", [0.3, 2, torch.tensor(0.7), torch.tensor([1.5], dtype=torch.float64)])
def test_noise(noise: Any, tmp_path: Path) -> None:
    """Numbers and tensors."""
    la = fitted(small(), normal(9, 3), normal(9, 2), pw.Gaussian(noise))
    loaded = again(la, tmp_path, likelihood=pw.Gaussian(noise))
    assert isinstance(loaded.likelihood, pw.Gaussian)
    assert_same(la, loaded, moved(normal(4, 3)))


@pytest.mark.parametrize("structure", ["diag", "full"])
@pytest.mark.parametrize("weights", ["mask", "subnetwork"])
def test_single_weights(structure: str, weights: str, tmp_path: Path) -> None:
    """Masks come back, those of unused weights included."""
    model = built(unused_layer())
    inputs = next(p.shape[1] for p in model.parameters() if p.dim() == 2)
    chosen: Any = pw.Subnetwork.random(11, seeded(1))
    if weights == "mask":
        chosen = {name: normal(*parameter.shape) > 0 for name, parameter in model.named_parameters()}
    la = fitted(model, normal(9, inputs), classes(2, 9), "classification", structure, weights=chosen)
    assert len(la.state.measurement.asked.names) > len(la.space.names)
    assert_same(la, again(la, tmp_path), moved(normal(4, inputs)))


@pytest.mark.parametrize("weights", ["last_layer", "0", ["1.*", "3.bias"]])
def test_selected_weights(weights: Any, tmp_path: Path) -> None:
    """And those that were not selected are fixed, as before."""
    la = posterior(weights=weights)
    assert_same(la, again(la, tmp_path), moved(normal(4, 3)))


def traced(la: pw.Laplace) -> list[Any]:
    """All that a trace says."""
    assert la.trace is not None
    trace, gamma = la.trace, la.trace.effective_dimensions
    texts = [repr(trace), trace.method, trace.objective, trace.stopped, trace.converged, trace.warnings]
    numbers = [trace.values, trace.noises, trace.temperatures, trace.decrements, trace.gradients, trace.products]
    tables = [trace.precisions.tolist(), None if gamma is None else gamma.tolist(), trace.best, trace.raised]
    return [*texts, *trace.groups, *numbers, *tables]


TUNINGS: dict[str, Callable[[pw.Laplace, Any], pw.Laplace]] = {
    "evidence": lambda la, data: la.tune(steps=3),
    "training": lambda la, data: la.tune(train=data, steps=2),
    "validation": lambda la, data: la.tune(validation=data, steps=2),
    "linear mode": lambda la, data: la.tune(at="linear_mode", train=data, steps=2),
    "grid": lambda la, data: la.tune("grid", validation=data, grid=[0.1, 10.0]),
}


@pytest.mark.filterwarnings("ignore::peewit.TuningWarning")
@pytest.mark.parametrize("prior", [pw.Prior.scalar(), pw.Prior.layerwise(), pw.Prior.diagonal()], ids=repr)
@pytest.mark.parametrize("way", TUNINGS)
def test_how_tuning_went_comes_back(way: str, prior: pw.Prior, tmp_path: Path) -> None:
    """The trace, and with it what reports and `diagnose` say."""
    if way == "linear mode" and prior.grouping.one_per_weight:
        pytest.skip("the mode is sought for precisions of groups")
    data = (moved(normal(9, 3)), moved(normal(9, 2)))
    la = fitted(small(), *data, "regression", "diag" if prior.grouping.one_per_weight else "kron", prior=prior)
    tuned = TUNINGS[way](la, data)
    loaded = again(tuned, tmp_path)
    assert traced(loaded) == traced(tuned)
    assert posterior_in_words(loaded) == posterior_in_words(tuned)
    assert str(loaded.diagnose(data)) == str(tuned.diagnose(data))
    assert loaded.with_prior(2.0).trace is None and again(loaded.with_prior(2.0), tmp_path).trace is None


@pytest.mark.filterwarnings("ignore::peewit.TuningWarning")
def test_scores_without_a_number_come_back(tmp_path: Path) -> None:
    """As of a precision that no prediction survived."""
    la = posterior().tune(steps=2)
    assert la.trace is not None
    values = (math.inf, -math.inf, *la.trace.values[2:])
    odd = pw.Laplace(replace(la.state, trace=replace(la.trace, values=values)))
    assert traced(again(odd, tmp_path)) == traced(odd)
    unknown = pw.Laplace(replace(la.state, trace=replace(la.trace, values=(math.nan, *la.trace.values[1:]))))
    loaded = again(unknown, tmp_path).trace
    assert loaded is not None and math.isnan(loaded.values[0]) and loaded.values[1:] == la.trace.values[1:]


@pytest.mark.filterwarnings("ignore::peewit.TuningWarning")
@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda trace: trace.update(values=[]), "columns of different lengths"),
        (lambda trace: trace.update(temperatures=[1.0]), "columns of different lengths"),
        (lambda trace: trace.update(groups=["a", "b"]), "columns of different lengths"),
        (lambda trace: trace.update(values=["nan"] * len(trace["values"])), "has no score"),
        (lambda trace: trace.update(values=["NaN"] * len(trace["values"])), "trace/values/0 is 'NaN'"),
        (lambda trace: trace.update(precisions={"tensor": "weights"}), "columns of different lengths"),
        (lambda trace: trace.pop("raised"), "trace has the fields"),
    ],
)
def test_hostile_traces(change: Callable[[Any], Any], reason: str, tmp_path: Path) -> None:
    """Refused with the reason, as all else."""
    la = posterior().tune(steps=2)
    la.save(tmp_path / "a")
    forged(tmp_path / "a", tmp_path / "b", lambda content, tensors: change(content["trace"]["fields"]) and None)
    with pytest.raises(ValueError, match=reason):
        pw.load(tmp_path / "b", la.model)


def test_many_outputs(tmp_path: Path) -> None:
    """Covariances from samples come back too."""
    la = fitted(built(nn.Linear(2, 260)), normal(5, 2), normal(5, 260), "regression")
    loaded = again(la, tmp_path)
    for one, other in zip(la.functional(moved(normal(1, 2))), loaded.functional(moved(normal(1, 2))), strict=True):
        assert equal(one, other)


def test_a_file_does_not_depend_on_what_was_asked_before(tmp_path: Path) -> None:
    """Questions about inputs of other lengths learn something about the network; files and tables stay the same."""
    case = table("token_classifier")
    la = case.fit("kron")
    la.save(tmp_path / "before")
    rows = str(la.coverage())
    with torch.no_grad():
        for length in (2, 3):
            la.predict(moved(case.x)[:, :length])
            la.functional_samples(moved(case.x)[:, :length], 2)
    assert len(la.state.knowledge.questions.knowledge.costs) > len(la.state.knowledge.costs)
    la.save(tmp_path / "after")
    before, after = (content_of(tmp_path / name)[0] for name in ("before", "after"))
    assert before == after and "checksum" in before  # which covers all texts and tensors
    assert str(la.coverage()) == rows


def test_what_is_in_a_file(tmp_path: Path) -> None:
    """Tensors are named by parameters; there is no pickle; the network is not in it; a file is plain to others."""
    la = posterior()
    la.save(tmp_path / "a.safetensors")
    texts, names = content_of(tmp_path / "a.safetensors")
    assert texts["format"] == str(format.FORMAT) and texts["version"] == pw.__version__
    for name in la.space.names:
        assert any(name in each for each in names)
    content = json.loads(texts["peewit"])
    assert set(content["fingerprint"]) == set(la.model.state_dict())
    assert b"pickle" not in (tmp_path / "a.safetensors").read_bytes()
    with pytest.raises((pickle.UnpicklingError, ValueError)):
        pickle.loads((tmp_path / "a.safetensors").read_bytes())


def test_saving_and_loading_change_nothing(tmp_path: Path) -> None:
    """The network, its mode, gradients and random state; the posterior; the second file is the first."""
    la = posterior()
    model = la.model.train()
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    before, state = answers(la, moved(normal(4, 3))), torch.get_rng_state()
    la.save(tmp_path / "a.safetensors")
    loaded = pw.load(tmp_path / "a.safetensors", model)
    loaded.save(tmp_path / "b.safetensors")
    assert model.training and all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    for one, other in zip(before, answers(la, moved(normal(4, 3))), strict=True):
        assert equal(one, other) if isinstance(one, Tensor) else one == other
    first, second = (content_of(tmp_path / f"{name}.safetensors") for name in "ab")
    assert first[0] == second[0]  # a checksum of all tensors among them


def test_loaded_for_a_compiled_network(tmp_path: Path) -> None:
    """The wrapper of `torch.compile` has other names."""
    la = posterior()
    la.save(tmp_path / "a.safetensors")
    loaded = pw.load(tmp_path / "a.safetensors", torch.compile(la.model))
    assert_same(la, loaded, moved(normal(4, 3)))


@dataclass(frozen=True)
class Robust(pw.Gaussian):
    """A likelihood of the user's own."""

    cost: Any = None


def test_a_likelihood_with_a_function_is_asked_for(tmp_path: Path) -> None:
    """Files hold no code."""
    own = Robust(0.3, cost=lambda f: f)
    la = fitted(small(), normal(9, 3), normal(9, 2), own)
    la.save(tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=r"likelihood was 'Robust', which a file cannot hold; .*likelihood=\.\.\."):
        pw.load(tmp_path / "a.safetensors", la.model)
    with pytest.raises(ValueError, match="likelihood is a Gaussian; the posterior was fitted with 'Robust'"):
        pw.load(tmp_path / "a.safetensors", la.model, "regression")
    assert_same(la, pw.load(tmp_path / "a.safetensors", la.model, own), moved(normal(4, 3)))


def test_another_likelihood_is_refused(tmp_path: Path) -> None:
    """The one in the file is the one that was fitted."""
    la = fitted(small(), normal(9, 3), normal(9, 2), pw.Gaussian(0.3))
    la.save(tmp_path / "a.safetensors")
    for other in (pw.Gaussian(0.4), "classification"):
        with pytest.raises(ValueError, match=r"fitted with Gaussian\(noise=0\.3\), and the file holds it"):
            pw.load(tmp_path / "a.safetensors", la.model, other)
    with pytest.raises(ValueError, match="likelihood='regresion' is not known; did you mean 'regression'"):
        pw.load(tmp_path / "a.safetensors", la.model, "regresion")


# Refusals


def changed(model: nn.Module, change: Callable[[Any], None]) -> nn.Module:
    """A copy of a network with something done to it."""
    made = copy.deepcopy(model)
    with torch.no_grad():
        change(made)
    return made


def row_18(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Networks that are not the one that was saved, and what is said of each."""

    def last_bit(net: Any) -> None:
        net[3].weight[0, 0] = torch.nextafter(net[3].weight[0, 0], net[3].weight.new_tensor(torch.inf))

    def swap(net: Any) -> None:
        net[0].weight.copy_(net[0].weight.flip(0))

    other = built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))).to(DEVICE)
    wider = built(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))).to(DEVICE)
    return {
        "one bit": (changed(model, last_bit), "other weights or buffers .*: '3.weight' differ"),
        "order": (changed(model, swap), "other weights or buffers .*: '0.weight' differ"),
        "buffer": (changed(model, lambda net: net[1].running_mean.add_(1)), "'1.running_mean' differ"),
        "counter": (changed(model, lambda net: net[1].num_batches_tracked.add_(1)), "'1.num_batches_tracked' differ"),
        "dtype": (changed(model, lambda net: net.float()), "differ in shape or dtype; .*float64.* and has .*float32"),
        "names": (other, "only the saved one has '1.weight', '1.bias', '3.weight' and 4 more"),
        "shapes": (wider, r"'3.weight', '3.bias' differ in shape .* had \[\[2, 4\].*has \[\[3, 4\]"),
        "more": (
            changed(model, lambda net: net.append(nn.Linear(2, 2, device=DEVICE))),
            "only the given one has '4.weight'",
        ),
    }


@pytest.mark.parametrize("what", ["one bit", "order", "buffer", "counter", "dtype", "names", "shapes", "more"])
def test_state_loaded_onto_another_network(what: str, tmp_path: Path) -> None:
    """Other weights, another curvature or other indices are refused, with the reason."""
    la = posterior()
    la.save(tmp_path / "a.safetensors")
    model, reason = row_18(la.model)[what]
    with pytest.raises(ValueError, match=reason):
        pw.load(tmp_path / "a.safetensors", model)


def test_untied_weights(tmp_path: Path) -> None:
    """Equal values under two names are not one weight."""
    model = built(tied_linears())
    inputs = next(p.shape[1] for p in model.parameters() if p.dim() == 2)
    outputs = len(model(normal(1, inputs))[0])
    la = fitted(model, normal(6, inputs), classes(outputs, 6), "classification")
    assert_same(la, again(la, tmp_path), moved(normal(4, inputs)))
    untied = copy.deepcopy(la.model)
    every = [name for name, _ in untied.named_parameters(remove_duplicate=False)]
    double = next(name for name in every if name not in dict(untied.named_parameters()))
    module, _, own = double.rpartition(".")
    setattr(untied.get_submodule(module), own, nn.Parameter(untied.get_parameter(double).detach().clone()))
    with pytest.raises(ValueError, match="only the given one has"):
        pw.load(tmp_path / "posterior.safetensors", untied)


def test_a_changed_network_is_not_saved(tmp_path: Path) -> None:
    """The fingerprint would be of weights that were never fitted."""
    la = posterior()
    with torch.no_grad():
        la.model[0].weight.mul_(2)
    with pytest.raises(pw.MismatchError, match="no longer those it was fitted with"):
        la.save(tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


def test_places_that_are_no_files(tmp_path: Path) -> None:
    """Folders, folders that do not exist, and files that do not."""
    la = posterior("diag")
    with pytest.raises(FileNotFoundError, match=r"The folder .*nowhere does not exist"):
        la.save(tmp_path / "nowhere" / "a.safetensors")
    with pytest.raises(IsADirectoryError, match="is a folder; expected the name of a file"):
        la.save(tmp_path)
    with pytest.raises(IsADirectoryError, match="is a folder; expected a file"):
        pw.load(tmp_path, la.model)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        pw.load(tmp_path / "a.safetensors", la.model)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes")
def test_pipes_and_devices_are_not_replaced(tmp_path: Path) -> None:
    """A rename puts a file in the place of whatever was there, and reading a pipe waits for ever."""
    la = posterior("diag")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="is a device, a pipe or a socket; expected the name of a file"):
        la.save(pipe)
    with pytest.raises(ValueError, match="is a device, a pipe or a socket; expected a file that"):
        pw.load(pipe, la.model)
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


def test_paths_of_every_type(tmp_path: Path) -> None:
    """Text, bytes and paths."""
    la = posterior("diag")
    for number, kind in enumerate((str, os.fsencode, Path)):
        path = kind(tmp_path / f"{number}.safetensors")
        la.save(path)
        assert pw.load(path, la.model).D == la.D


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, ValueError])
@pytest.mark.parametrize("step", ["save_file", "fsync", "replace"])
def test_interrupted_saves_leave_the_earlier_file(
    step: str, error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing beside it, wherever the interruption comes."""
    path = tmp_path / "a.safetensors"
    first = posterior("diag")
    first.save(path)
    kept = path.read_bytes()

    def fail(*args: Any) -> None:
        if step == "save_file":
            Path(args[1]).write_bytes(b"half of it")
        raise error("stop")

    monkeypatch.setattr(save if step == "save_file" else os, step, fail)
    with pytest.raises(error):
        posterior("full").save(path)
    monkeypatch.undo()
    assert path.read_bytes() == kept
    assert list(tmp_path.iterdir()) == [path]
    posterior("full").save(path)
    assert pw.load(path, first.model).structure == pw.Full()
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_followed(tmp_path: Path) -> None:
    """The file it names is replaced, not the link; permissions are those of any new file."""
    (tmp_path / "real").mkdir()
    link = tmp_path / "a.safetensors"
    link.symlink_to(tmp_path / "real" / "b.safetensors")
    la = posterior("diag")
    la.save(link)
    assert link.is_symlink()
    (tmp_path / "other").write_bytes(b"")
    assert (tmp_path / "real" / "b.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert_same(la, pw.load(link, la.model), moved(normal(4, 3)))


def test_truncated_files(tmp_path: Path) -> None:
    """Cut anywhere, or with something after the end."""
    la = posterior()
    la.save(tmp_path / "a.safetensors")
    whole = (tmp_path / "a.safetensors").read_bytes()
    path = tmp_path / "b.safetensors"
    for length in [*range(0, 40), *range(40, len(whole), 211), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="cannot be read as a safetensors file"):
            pw.load(path, la.model)
    path.write_bytes(whole + b"more")
    with pytest.raises(ValueError, match="cannot be read as a safetensors file"):
        pw.load(path, la.model)


def test_flipped_bits(tmp_path: Path) -> None:
    """In the header or in the data: seen, or without effect."""
    la = posterior()
    la.save(tmp_path / "a.safetensors")
    whole = bytearray((tmp_path / "a.safetensors").read_bytes())
    start = 8 + struct.unpack("<Q", whole[:8])[0]
    path = tmp_path / "b.safetensors"
    for place in [*range(0, 200), *range(200, start, 37), *range(start, len(whole), 29)]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"cannot be read|is damaged|without a posterior of peewit|has format"):
            pw.load(path, la.model)


def test_other_files(tmp_path: Path) -> None:
    """Texts, pickles and safetensors of others."""
    la, path = posterior("diag"), tmp_path / "a"
    path.write_text("not a posterior")
    with pytest.raises(ValueError, match="cannot be read as a safetensors file"):
        pw.load(path, la.model)
    torch.save(la.model.state_dict(), path)
    with pytest.raises(ValueError, match="cannot be read as a safetensors file"):
        pw.load(path, la.model)
    for texts in (None, {"format": "pt"}, {"peewit": "{}"}, {"format": "x", "peewit": "{}", "checksum": ""}):
        save_file({"x": torch.zeros(2)}, path, texts)
        with pytest.raises(ValueError, match="without a posterior of peewit"):
            pw.load(path, la.model)


def test_newer_formats_are_refused(tmp_path: Path) -> None:
    """Before anything else in them is read."""
    la, path = posterior("diag"), tmp_path / "a"
    for number in (str(format.FORMAT + 1), "9" * 5000):
        save_file({"x": torch.zeros(2)}, path, {"format": number, "version": "9.0", "peewit": "?", "checksum": "?"})
        with pytest.raises(ValueError, match=r"has format .* written by peewit '9.0'; this is .*Use a newer peewit"):
            pw.load(path, la.model)


@pytest.mark.parametrize("name", ["lapwing", "peewit"])
def test_older_formats_are_refused(tmp_path: Path, name: str) -> None:
    """Also those that have the name from before the first release."""
    la, path = posterior("diag"), tmp_path / "a"
    save_file({"x": torch.zeros(2)}, path, {"format": "4", "version": "0.1.0", name: "?", "checksum": "?"})
    with pytest.raises(ValueError, match=r"has format 4, from before peewit's first release.*Fit again"):
        pw.load(path, la.model)


def forged(source: Path, target: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], Any]) -> None:
    """A file with another content and a right checksum, as someone who means harm would write it."""
    texts, tensors = content_of(source)
    content = json.loads(texts["peewit"])
    text = change(content, tensors)
    save_file(tensors, target, save.header(json.dumps(content) if text is None else text, tensors))


def put(*path: Any, value: Any) -> Callable[[dict[str, Any], dict[str, Tensor]], None]:
    """Another value somewhere in the JSON text."""

    def change(content: Any, tensors: dict[str, Tensor]) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return change


def tensor(name: str, make: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Any], dict[str, Tensor]], None]:
    """Another tensor: the first whose name has this in it."""

    def change(content: Any, tensors: dict[str, Tensor]) -> None:
        found = next(each for each in tensors if name in each)
        tensors[found] = make(tensors[found]).contiguous()

    return change


def drop(content: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """A tensor that is not there."""
    del tensors["weights"]


def text(value: str) -> Callable[[dict[str, Any], dict[str, Tensor]], str]:
    """Another JSON text."""
    return lambda content, tensors: value


def schema(**fields: Any) -> dict[str, Any]:
    """Names of columns and classes as a file holds them."""
    sound = {"columns": ["a", "b"], "targets": ["b"], "header": True, "classes": ["no", "yes"]}
    return {"class": "Schema", "fields": {**sound, "named_inputs": [], "scaling": None, **fields}}


def scaling(**fields: Any) -> dict[str, Any]:
    """A schema with the scaling of columns as a file holds it."""
    sound = {"input_means": [0.0], "input_deviations": [1.0], "target_means": [], "target_deviations": []}
    return schema(scaling={"class": "Scaling", "fields": {**sound, **fields}})


LAYOUT = ("sums", "fields", "layouts", 0, 1, "fields")
HUGE = 1 << 62
FORGERIES: dict[str, tuple[Callable[..., Any], str]] = {
    "no JSON": (text("{"), "Expecting"),
    "a list": (text("[]"), "expected"),
    "another mode": (tensor("weights", lambda value: -value), "its weights are not those of the network"),
    "depth": (text("[" * 200_000 + "]" * 200_000), "recursion"),
    "NaN": (put("totals", "fields", "energy", value=float("nan")), "it holds NaN"),
    "infinity": (put("totals", "fields", "energy", value=float("inf")), "it holds Infinity"),
    "digits": (put("seed", value=1 << 70), "seed is"),
    "a missing entry": (lambda content, tensors: content.pop("weights") and None, "it holds"),
    "an entry too many": (put("code", value="import os"), "it holds"),
    "an unknown class": (put("structure", value={"class": "os.system", "fields": {}}), "expected one of Diag"),
    "an unknown likelihood": (put("likelihood", value={"class": "Popen", "fields": {}}), "expected one of Categorical"),
    "a known class elsewhere": (put("curvature_kind", value={"class": "Kron", "fields": {}}), "expected one of GGN"),
    "a class as a list": (put("structure", value=[]), "expected one of Diag"),
    "a class by number": (put("structure", value={"class": ["Kron"], "fields": {}}), "expected one of Diag"),
    "missing fields": (put("prior", "fields", value={}), "prior has the fields"),
    "other fields": (
        put("curvature_kind", "fields", value={"__class__": 1}),
        "kind has the fields",
    ),
    "fields of the wrong kind": (put("prior", "fields", value=3), "prior has the fields 3"),
    "an option": (put("structure", "fields", "approx", value="other"), "structure/approx is 'other'"),
    "a grouping": (
        put("prior", "fields", "grouping", "class", value="evil"),
        "grouping is 'evil'; expected one of Scalar",
    ),
    "a grouping by name": (
        put("prior", "fields", "grouping", value="scalar"),
        "grouping is None; expected one of Scalar",
    ),
    "the contract of groupings": (
        put("prior", "fields", "grouping", "class", value="WholeTensors"),
        "grouping is 'WholeTensors'; expected one of Scalar",
    ),
    "a known class as a grouping": (
        put("prior", "fields", "grouping", value={"class": "Diag", "fields": {}}),
        "grouping is 'Diag'; expected one of Scalar",
    ),
    "fields of a grouping": (
        put("prior", "fields", "grouping", value={"class": "Layerwise", "fields": {"sets": [], "name": "evil"}}),
        "grouping has the fields",
    ),
    "sets of a grouping": (
        put("prior", "fields", "grouping", value={"class": "Layerwise", "fields": {"sets": [["9.weight"]]}}),
        "sets of weights, .* that the network does not have",
    ),
    "patterns that are no texts": (
        put("prior", "fields", "grouping", value={"class": "NamedGroups", "fields": {"patterns": [1]}}),
        "grouping/patterns/0 is 1",
    ),
    "patterns that fit nothing": (
        put("prior", "fields", "grouping", value={"class": "NamedGroups", "fields": {"patterns": []}}),
        "no pattern of",
    ),
    "a text as a number": (put("totals", "fields", "examples", value="9"), "totals/examples is '9'"),
    "a boolean as a number": (put("totals", "fields", "examples", value=True), "totals/examples is True"),
    "no examples": (put("totals", "fields", "examples", value=0), "it counts 0 examples"),
    "an axis": (put("totals", "fields", "form", "fields", "axis", value=4), "its outputs have axis 4"),
    "names": (put("asked", "fields", "names", 0, value="9.weight"), "are not those of the network"),
    "order of names": (put("asked", "fields", "names", 0, value="3.bias"), "are not those of the network"),
    "shapes": (put("asked", "fields", "shapes", 0, value=[HUGE, HUGE]), "'0.weight' has shape"),
    "fewer shapes": (put("asked", "fields", "shapes", value=[]), "are not those of the network"),
    "a mask": (put("asked", "fields", "mask", value={"tensor": "weights"}), "its mask has shape"),
    "used weights": (put("used", value=["9.weight"]), "the used weights"),
    "no used weights": (put("used", value=[]), "the used weights"),
    "rules": (put("rules", value=[]), "its rules"),
    "pairs": (put("rules", value=[["a"]]), "expected pairs"),
    "a key twice": (put("rules", value=[["a", "b"], ["a", "c"]]), "holds a key twice"),
    "a layout": (put(*LAYOUT, "matrix", value=[1, HUGE, HUGE]), "holds .* weights; expected 12"),
    "a layout of two sides": (put(*LAYOUT, "matrix", value=[12, 1]), "has 2 values; expected 3"),
    "a negative side": (put(*LAYOUT, "matrix", value=[1, -3, -4]), "has an empty side"),
    "axes of a layout": (put(*LAYOUT, "order", value=[0, 0, 1]), "has axes"),
    "a range": (put("sums", "fields", "layouts", 0, 0, 0, 2, value=HUGE), "has no range"),
    "a range twice": (put("sums", "fields", "others", 0, 0, value=["0.weight", 0, 3]), "overlap"),
    "no factors": (put("sums", "fields", "factors", value=[]), "The factors are not those of the blocks"),
    "bases": (put("sums", "fields", "bases", value=[[[["0.weight", 0, 12]], [None, None]]]), "The factors are not"),
    "sums of another structure": (put("structure", value={"class": "Diag", "fields": {}}), "sums is"),
    "a count": (put("sums", "fields", "factors", 0, 1, "fields", "count", value=-1.0), "has -1.0 positions"),
    "no tensor": (put("weights", value=3), "weights is 3; expected a tensor"),
    "a tensor that is not there": (drop, "weights is the tensor 'weights', which the file does not hold"),
    "a fold": (put("knowledge", "fields", "axes", 0, 1, "fields", "fold", value="evil"), "impossible things"),
    "a cost": (put("knowledge", "fields", "costs", 0, 1, 0, value=0), "impossible things"),
    "columns that are no texts": (put("schema", value=schema(columns=[1, 2])), "schema/columns/0 is 1"),
    "a target that is no column": (put("schema", value=schema(targets=["c"])), "are not some of the columns"),
    "a class twice": (put("schema", value=schema(classes=["no", "no"])), "expected distinct names"),
    "an input twice": (put("schema", value=schema(named_inputs=["a", "a"])), "expected distinct names"),
    "an input that is the target": (put("schema", value=schema(named_inputs=["b"])), "columns beside the targets"),
    "a scaling without units": (put("schema", value=scaling(input_deviations=[0.0])), "deviations above zero"),
    "a scaling of other columns": (put("schema", value=scaling(input_means=[1.0, 2.0])), "as many means"),
    "a scaling of another network": (put("schema", value=scaling()), "The network is not the one that was saved"),
    "a fingerprint": (put("fingerprint", value=[]), "its fingerprint"),
    "a fingerprint of others": (put("fingerprint", "0.weight", value=3), "other weights or buffers"),
    "a network": (put("network", "0.weight", value=3), "differ in shape or dtype"),
    "NaN in a tensor": (tensor("gradients", lambda value: value * torch.nan), "holds NaN or Inf"),
    "infinity in a tensor": (tensor("weights", lambda value: value / 0), "holds NaN or Inf"),
    "a shape": (
        tensor("0.weight[0:12] False/inp", lambda value: value[:, :1]),
        "The input factor of '0.weight' has shape",
    ),
    "integers": (tensor("inputs", lambda value: value.long()), "has dtype torch.int64"),
    "half precision": (tensor("gradients", lambda value: value.half()), "has dtype torch.float16"),
    "the shape of others": (tensor("others", lambda value: value[:1]), "has shape"),
    "a negative diagonal": (tensor("others", lambda value: -value), "has negative numbers"),
    "a short mode": (tensor("weights", lambda value: value[1:]), "its weights are"),
    "a mode in float32": (tensor("weights", lambda value: value.float()), "its weights are"),
    "a negative precision": (tensor("prior", lambda value: -value), "its prior is"),
    "many precisions": (tensor("prior", lambda value: value.expand(7)), "7 precisions were given"),
    "precisions as integers": (tensor("prior", lambda value: value.long()), "its prior is"),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[pw.Laplace, Path]:
    """A posterior and its file."""
    la, path = posterior(), tmp_path_factory.mktemp("files") / "a.safetensors"
    la.save(path)
    return la, path


@pytest.mark.parametrize("what", FORGERIES)
def test_hostile_files(what: str, sound: tuple[pw.Laplace, Path], tmp_path: Path) -> None:
    """Whatever they claim, with a right checksum: a ValueError with the reason."""
    la, path = sound
    change, reason = FORGERIES[what]
    forged(path, tmp_path / "b", change)
    with pytest.raises(ValueError, match=reason):
        pw.load(tmp_path / "b", la.model)


def test_a_forgery_of_nothing_is_sound(sound: tuple[pw.Laplace, Path], tmp_path: Path) -> None:
    """So the table above could fail."""
    la, path = sound
    forged(path, tmp_path / "b", lambda content, tensors: None)
    assert_same(la, pw.load(tmp_path / "b", la.model), moved(normal(4, 3)))


def test_hostile_values_everywhere(sound: tuple[pw.Laplace, Path], tmp_path: Path) -> None:
    """Each value of the JSON text in turn replaced by others: a ValueError, or a posterior that says its size."""
    la, path = sound
    places: list[tuple[Any, ...]] = []

    def walk(value: Any, way: tuple[Any, ...]) -> None:
        places.append(way)
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, each in items:
            walk(each, (*way, key))

    walk(json.loads(content_of(path)[0]["peewit"]), ())
    evil = [None, -1, HUGE, 0.5, "", [], {}, [[]], {"tensor": "weights"}, {"class": "Prior"}]
    refused = 0
    for number, way in enumerate(places[1:]):
        forged(path, tmp_path / "b", put(*way, value=evil[number % len(evil)]))
        try:
            assert pw.load(tmp_path / "b", la.model).D == la.D
        except ValueError:
            refused += 1
    assert refused > 0.8 * len(places)


HOSTILE_SUMS: dict[str, tuple[str, Callable[..., Any], str]] = {
    "a diagonal": ("diag", tensor("sums", lambda value: value[1:]), "The diagonal of .* has shape"),
    "a negative one": ("diag", tensor("sums", lambda value: -value - 1), "has negative numbers"),
    "a block": ("block", tensor("sums", lambda value: value[1:]), "The curvature of .* has shape"),
    "no block": ("block", put("sums", "fields", "matrices", 0, 0, value=[["0.weight", 0, 12]]), "is not a block"),
    "a matrix": ("full", tensor("sums", lambda value: value[1:, 1:]), "has shape"),
    "a mask": ("full", put("sums", "fields", "mask", value={"tensor": "weights"}), "over other elements"),
    "second moments": ("ekfac", tensor("corrected", lambda value: value[:, 1:]), "The second moments of"),
    "negative moments": ("ekfac", tensor("corrected", lambda value: -value - 1), "has negative numbers"),
    "a basis": ("ekfac", tensor("bases", lambda value: value[:, 1:]), "A basis of"),
    "a negative factor": ("kron", tensor("gradients", lambda value: -value), "negative"),
    "negative inputs": ("kron", tensor("/inputs", lambda value: -value), "negative"),
    "no bases": ("ekfac", put("sums", "fields", "bases", value=[]), "The factors are not those"),
    "a Hessian": (
        "diag",
        put("curvature_kind", value={"class": "Hessian", "fields": {"clip": True}}),
        "a Hessian with structure Diag",
    ),
}


@pytest.mark.parametrize("what", HOSTILE_SUMS)
def test_hostile_sums(what: str, tmp_path: Path) -> None:
    """Of every structure."""
    structure, change, reason = HOSTILE_SUMS[what]
    la = posterior(structure)
    la.save(tmp_path / "a")
    forged(tmp_path / "a", tmp_path / "b", change)
    with pytest.raises(ValueError, match=reason):
        pw.load(tmp_path / "b", la.model)


def test_what_files_do_not_hold(tmp_path: Path) -> None:
    """A structure or numbers that could not be read again are refused before anything is written."""

    class Own(pw.Diag):
        """Someone's own structure."""

    la = posterior("diag")
    with pytest.raises(ValueError, match=r"cannot be saved: structure is a .*Own, which files do not hold"):
        pw.Laplace(replace(la.state, structure=Own())).save(tmp_path / "a")
    with pytest.raises(ValueError, match="'weights' holds NaN or Inf"):
        pw.Laplace(replace(la.state, weights=la.weights * torch.nan)).save(tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_options_of_load() -> None:
    """Bad ones are not blamed on the file."""
    with pytest.raises(TypeError, match=r"model is a str; expected a torch\.nn\.Module"):
        pw.load("a", "model")  # type: ignore[arg-type]  # what is refused


def test_memory_of_load(sound: tuple[pw.Laplace, Path]) -> None:
    """As in fit."""
    la, path = sound
    with pytest.raises(ValueError, match="memory=-1 was given"):
        pw.load(path, la.model, memory=-1)
    assert pw.load(path, la.model, memory=1e6).state.budget.bytes == 1_000_000
