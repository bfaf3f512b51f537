"""What is evaluated, a posterior or a plain network, and the baselines it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .. import likelihoods
from ..laplace import Laplace
from ..likelihoods import Form, Likelihood
from ..messages.errors import ArgumentTypeError, PeewitError
from ..messages.names import named, nearest
from ..network.batches import Batches
from ..network.buffers import restore_buffers
from ..network.calling import call
from ..network.isolation import isolated
from ..network.modules import device_of, unwrapped
from ..network.nests import Inputs
from ..posterior.network import network_of
from ..predictions.families import family_of
from ..runtime.memory import budget
from .answers import tempered
from .describing import noise_of
from .methods import DROPOUT_SAMPLES, STEEPEST, Method, Networks, Posterior, dropouts, fit_temperature, members

BASELINES = ("plain", "temperature", "ensemble", "dropout")
PLAIN = "Plain network"


@dataclass(frozen=True, eq=False)
class Subject:
    """What is evaluated: a network, with its posterior or without."""

    la: Laplace | None
    model: nn.Module
    likelihood: Likelihood
    form: Form | None
    predict: Mapping[str, Any]
    device: torch.device

    @staticmethod
    def of(given: Any, likelihood: str | Likelihood | None, predict: Mapping[str, Any]) -> Subject:
        """A posterior, or a network and its likelihood."""
        if isinstance(given, Laplace):
            if likelihood is not None:
                raise PeewitError(
                    f"likelihood={likelihood!r} was given with a posterior, which has its own; leave it out."
                )
            network_of(given.state, None)  # refuses a network that has changed
            return Subject(given, given.model, given.likelihood, given.state.totals.form, predict, given.weights.device)
        if not isinstance(given, nn.Module):
            raise ArgumentTypeError(
                f"evaluate was given a {type(given).__name__}; expected a Laplace, which peewit.fit returns, or a "
                "torch.nn.Module."
            )
        if likelihood is None:
            raise PeewitError(
                "evaluate was given a network without its likelihood; expected likelihood='classification', 'binary', "
                "'regression', ..."
            )
        if predict:
            raise PeewitError("predict= has options of a posterior's predictions, and a plain network was given.")
        family: Likelihood = named(likelihood, likelihoods.NAMES, "likelihood", Likelihood)
        model = unwrapped(given)
        return Subject(None, model, family, None, predict, device_of(model))

    @property
    def known_form(self) -> Form:
        """Where the outputs are."""
        assert self.form is not None  # `formed` was called
        return self.form

    def formed(self, first: Inputs, targets: Tensor) -> Subject:
        """With the form of the outputs, which a plain network shows in its first batch."""
        if self.form is not None:
            return self
        with isolated(self.model, []), torch.no_grad():
            f = call(self.model, first)
            restore_buffers(self.model)
        form = self.likelihood.form(f, targets.to(f.device))
        return replace(self, form=form, likelihood=self.likelihood.bound(form))

    def plain(self) -> Networks:
        """The network as it is."""
        words = "the trained network as it is, with one setting of its weights."
        limit = budget(None, self.device)
        return Networks(PLAIN, words, (self.model,), self.likelihood, self.known_form, limit)

    def methods(
        self,
        baselines: str | Iterable[str],
        validation: Any,
        ensemble: Sequence[nn.Module] | None,
        seed: int,
        notes: list[str],
    ) -> list[Method]:
        """The one asked about, then baselines."""
        plain = self.plain()
        chosen = baseline_names(baselines, validation is not None, ensemble is not None, bool(dropouts(self.model)))
        made: list[Method] = [plain if self.la is None else Posterior(self.la, self.predict)]
        makers: dict[str, Callable[[], Method | None]] = {
            "plain": lambda: None if self.la is None else plain,
            "temperature": lambda: self._temperature(plain, validation, notes, baselines == "auto"),
            "ensemble": lambda: self._ensemble(plain, ensemble),
            "dropout": lambda: replace(
                plain,
                name="MC dropout",
                description=f"the network with dropout left on, averaged over {DROPOUT_SAMPLES} passes.",
                dropout=DROPOUT_SAMPLES,
                seed=seed,
            ),
        }
        for name in BASELINES:
            one = makers[name]() if name in chosen else None
            if one is not None:
                made.append(one)
        return made

    def _temperature(self, plain: Networks, validation: Any, notes: list[str], auto: bool) -> Method | None:
        if not tempered(self.likelihood):
            words = f"Temperature scaling is not known for {type(self.likelihood).__name__}"
            if not auto:
                raise PeewitError(f"baselines: {words}; leave 'temperature' out.")
            notes.append(f"{words}, and is left out.")
            return None
        value = fit_temperature(plain, Batches(validation, self.device, "validation"))
        if family_of(self.likelihood).classes is not None:
            words = f"the plain network, its outputs divided by {value:.3g}, which was chosen on validation data."
            if not 1 / STEEPEST * 1.01 < value < STEEPEST / 1.01:
                notes.append(f"Temperature scaling ended at its limit, {value:.3g}: validation data has no best one.")
        else:
            words = f"the plain network, its noise multiplied by {value**0.5:.3g}, which was chosen on validation data."
        return replace(plain, name="Temperature scaling", description=words, temperature=value)

    def _ensemble(self, plain: Networks, ensemble: Sequence[nn.Module] | None) -> Method:
        assert ensemble is not None  # or its name would have been refused
        models = members(ensemble, self.device)
        words = f"{len(models)} networks trained apart, their predictions averaged."
        return replace(plain, name="Deep ensemble", description=words, models=models)

    def described(self) -> dict[str, Any]:
        """Settings of a plain network."""
        made: dict[str, Any] = {"network": type(self.model).__name__, "likelihood": type(self.likelihood).__name__}
        noise = noise_of(self.likelihood)
        return made if noise is None else {**made, "noise": noise}


def baseline_names(asked: Any, validation: bool, ensemble: bool, dropout: bool) -> set[str]:
    """Which baselines to compare with; refuses those that something is missing for."""
    possible = {"plain": True, "temperature": validation, "ensemble": ensemble, "dropout": dropout}
    if asked == "auto":
        return {name for name, there in possible.items() if there}
    names = [asked] if isinstance(asked, str) else asked
    if not isinstance(names, Iterable):
        raise ArgumentTypeError(
            f"baselines is a {type(asked).__name__}; expected 'auto', or some of {', '.join(BASELINES)}."
        )
    missing = {
        "temperature": "needs validation=data that was not trained on",
        "ensemble": "needs ensemble=[networks trained apart]",
        "dropout": "needs a network with dropout layers, and this one has none",
    }
    made = set()
    for name in names:
        if name not in BASELINES:
            near = nearest(name, BASELINES) if isinstance(name, str) else ""
            raise PeewitError(f"baselines: {name!r} is not known; {near}Known: auto, {', '.join(BASELINES)}.")
        if not possible[name]:
            raise PeewitError(f"baselines: {name!r} {missing[name]}.")
        made.add(name)
    return made
