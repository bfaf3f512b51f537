"""The state of a whole run in one file, which is written whole or not at all."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..messages.errors import MismatchError, PeewitError
from ..storage.atomic import writable, writing
from .learner import Learner
from .randomness import generators_in, random_state, set_random_state

FORMAT = 1  # raised whenever an older version could misread a file
ENTRIES = {"peewit_run", "kinds", "epoch", "model", "optimizers", "stepped", "learner", "random"}


def run_file(path: str | os.PathLike[str], resume: bool) -> Path:
    """Where the state goes; a file that is there already is refused unless the run goes on from it."""
    target = writable(path, "run.pt")
    if target.exists() and not resume:
        raise PeewitError(
            f"{target} exists already. To go on from it give resume=True; for a new run delete it, or choose another "
            "checkpoint=."
        )
    return target


def write_run(path: Path, learner: Learner, data: Any, stepped: Sequence[Any], epoch: int) -> None:
    """Everything that training goes on from: an earlier file stays until this one is whole and on the disk."""
    state = {
        "peewit_run": FORMAT,
        "epoch": epoch,
        "model": learner.model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in learner.optimizers],
        "stepped": [each.state_dict() for each in stepped],
        "learner": learner.state_dict(),
        "random": random_state(data, learner.data),
        "kinds": {
            "optimizers": kinds_of(learner.optimizers),
            "schedulers": kinds_of(stepped),
            "generators": sum(len(generators_in(each)) for each in (data, learner.data)),
        },
    }
    try:
        with writing(path) as temporary:
            torch.save(state, temporary)
    except (OSError, RuntimeError) as error:  # torch writes by itself, and says "unexpected pos" of a full disk
        whole = f"; the file of epoch {epoch - 1} is whole" if path.exists() else ""
        raise PeewitError(
            f"The state after epoch {epoch} could not be written to {path} ({error}){whole}. Make room on the disk, "
            "and go on with resume=True."
        ) from error


def read_run(path: Path, learner: Learner, data: Any, stepped: Sequence[Any]) -> int:
    """Put everything back, and return the number of epochs finished."""
    state = read(path, learner)
    refuse_other_run(path, state, learner, data, stepped)
    learner.model.load_state_dict(state["model"])
    for name, owners in (("optimizers", learner.optimizers), ("stepped", stepped)):
        for owner, each in zip(owners, state[name], strict=True):
            owner.load_state_dict(each)
    learner.load_state_dict(state["learner"])
    set_random_state(state["random"], data, learner.data)
    return int(state["epoch"])


def refuse_other_run(path: Path, state: dict[str, Any], learner: Learner, data: Any, stepped: Sequence[Any]) -> None:
    """Refuse a file of other optimizers, schedulers or loaders, before anything is put back."""
    loaders = sum(len(generators_in(each)) for each in (data, learner.data))
    here = {"optimizers": kinds_of(learner.optimizers), "schedulers": kinds_of(stepped), "generators": loaders}
    for what, found in here.items():
        if state["kinds"][what] != found:
            raise MismatchError(f"{path} is of a run with {what} {state['kinds'][what]}, and this one has {found}.")


def kinds_of(owners: Sequence[Any]) -> list[str]:
    """The classes of optimizers or schedulers."""
    return [type(owner).__name__ for owner in owners]


def read(path: Path, learner: Learner) -> dict[str, Any]:
    """A file's content, if it is of a run and in a format that is known; nothing that it says is run."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError, KeyError) as error:
        raise PeewitError(
            f"{path} cannot be read: it is damaged, or was not written by peewit.learning ({error})."
        ) from error
    if not isinstance(state, dict) or set(state) != ENTRIES:
        raise MismatchError(f"{path} is not the state of a run; expected a file that peewit.learning.train wrote.")
    if state["peewit_run"] != FORMAT:
        raise MismatchError(f"{path} has format {state['peewit_run']}, and this version reads format {FORMAT}.")
    own = {name: tuple(value.shape) for name, value in learner.model.state_dict().items()}
    theirs = {name: tuple(value.shape) for name, value in state["model"].items()}
    if own != theirs:
        different = sorted(name for name in own.keys() | theirs.keys() if own.get(name) != theirs.get(name))
        raise MismatchError(f"{path} is of another network: {', '.join(different[:3])} differ; give the same network.")
    return state
