"""What is evaluated, a posterior or a plain network, and the baselines it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from .. import likelihoods
from ..laplace import Laplace
from ..likelihoods import Form, Labelled, Likelihood, WithNoise, like_own_loss
from ..messages.errors import ArgumentTypeError, PeewitError
from ..messages.names import check_name, resolve_name
from ..network.batches import Batches
from ..network.buffers import restore_buffers
from ..network.calling import call
from ..network.isolation import isolated
from ..network.modules import device_of, unwrap
from ..network.nests import Inputs
from ..network.scaling import network_name
from ..posterior.network import network_of
from ..predictions.families import family_of
from ..runtime.memory import Budget, budget
from ..runtime.progress import Progress
from ..tuning.by_evidence import residual_noise
from .describing import noise_of
from .methods import DROPOUT_SAMPLES, TEMPERATURES, Method, Networks, Posterior, dropouts, fit_temperature, members
from .scorers import takes_temperature

Baseline: TypeAlias = Literal["plain", "temperature", "ensemble", "dropout"]
"""What a posterior is compared with."""
Baselines: TypeAlias = Literal["auto"] | Baseline | Iterable[Baseline]
"""One baseline or several; "auto" for all that are possible."""
BASELINES = get_args(Baseline)
PLAIN = "Plain network"


@dataclass(frozen=True, eq=False, kw_only=True)
class Subject:
    """What is evaluated: a network, with its posterior or without."""

    la: Laplace | None
    model: nn.Module
    likelihood: Likelihood
    form: Form | None
    predict: Mapping[str, Any]
    device: torch.device
    budget: Budget  # of plain networks; a posterior has its own

    @staticmethod
    def of(
        source: Any, likelihood: str | Likelihood | None, predict: Mapping[str, Any], memory: float | None
    ) -> Subject:
        """A posterior, or a network and its likelihood."""
        if isinstance(source, Laplace):
            if likelihood is not None:
                raise PeewitError(
                    f"likelihood={likelihood!r} was given with a posterior, which has its own; leave it out."
                )
            network_of(source.state, None)  # refuses a network that has changed
            return Subject(
                la=source,
                model=source.model,
                likelihood=source.likelihood,
                form=source.state.totals.form,
                predict=predict if memory is None else {"memory": memory, **predict},
                device=source.state.weights.device,
                budget=budget(memory, source.state.weights.device),
            )
        if not isinstance(source, nn.Module):
            raise ArgumentTypeError(
                f"evaluate was given a {type(source).__name__}; expected a Laplace, which peewit.fit returns, or a "
                "torch.nn.Module."
            )
        if likelihood is None:
            raise PeewitError(
                "evaluate was given a network without its likelihood; expected likelihood='classification', 'binary', "
                "'regression', ..."
            )
        if predict:
            raise PeewitError("predict= has options of a posterior's predictions, and a plain network was given.")
        family: Likelihood = resolve_name(likelihood, likelihoods.NAMES, "likelihood", Likelihood)
        model = unwrap(source)
        device = device_of(model)
        return Subject(
            la=None, model=model, likelihood=family, form=None, predict={}, device=device, budget=budget(memory, device)
        )

    @property
    def known_form(self) -> Form:
        """Where the outputs are."""
        assert self.form is not None  # `formed` was called
        return self.form

    def with_form(self, first: Inputs, targets: Tensor) -> Subject:
        """With the form of the outputs, which a plain network shows in its first batch."""
        if self.form is not None:
            return self
        with isolated(self.model, []), torch.no_grad():
            f = call(self.model, first)
            restore_buffers(self.model)
        likelihood = like_own_loss(self.model, self.likelihood, lambda: (first, targets.to(f.device)))
        labels = Labelled.of(likelihood, f, targets.to(f.device))
        return replace(self, form=labels.form, likelihood=labels.likelihood)

    def in_order(self, data: Any) -> Any:
        """Data whose columns are in the order of the fit, where both have names."""
        schema = None if self.la is None else self.la.schema
        return data if schema is None else schema.in_order(data)

    def network(self) -> Networks:
        """The network as it is, with the noise of the likelihood."""
        return Networks(
            name=PLAIN,
            description="the trained network as it is, with one setting of its weights.",
            models=(self.model,),
            likelihood=self.likelihood,
            form=self.known_form,
            budget=self.budget,
        )

    @property
    def borrows_noise(self) -> bool:
        """Whether the likelihood has a noise that was tuned for the posterior, so that the network needs its own."""
        return self.la is not None and isinstance(self.likelihood, WithNoise)

    def plain(self, temperature: Callable[[], float] | None) -> Networks:
        """The network as it is; beside a posterior with the noise of its own residuals.

        `temperature` is the factor of the noise's variance on validation data; None where there are none.
        """
        network, likelihood = self.network(), self.likelihood
        if self.la is None or not isinstance(likelihood, WithNoise):
            return network
        if temperature is not None:
            noise, data = float(likelihood.noise_precision) ** -0.5 * temperature() ** 0.5, "validation"
        else:
            # As they are. Corrected for effective dimensions, as `diagnose` does, they would be the noise that the
            # evidence chose, larger than the targets deviate, and the network would be blamed for it.
            noise, data = residual_noise(self.la.state), "training"
        if not noise > 0:
            return network
        words = (
            f"the trained network as it is; the noise of its predictions, {noise:.3g}, is the root mean square of its "
            f"residuals on the {data} data."
        )
        return replace(network, likelihood=likelihood.with_noise(noise), description=words)

    def methods(
        self,
        baselines: Baselines,
        validation: Any,
        ensemble: Sequence[nn.Module] | None,
        seed: int,
        notes: list[str],
        bars: Progress,
    ) -> list[Method]:
        """The method of the subject, then baselines."""
        chosen = baseline_names(baselines, validation is not None, ensemble is not None, bool(dropouts(self.model)))
        temperature = cache(
            lambda: fit_temperature(self.network(), Batches(validation, self.model, "validation"), bars)
        )
        plain = self.plain(None if validation is None else temperature) if chosen else self.network()
        if baselines == "auto" and self.borrows_noise:
            chosen -= {"temperature"}  # the plain network's noise is chosen in this way
        methods: list[Method] = [plain if self.la is None else Posterior(self.la, self.predict)]
        makers: dict[str, Callable[[], Method | None]] = {
            "plain": lambda: None if self.la is None else plain,
            "temperature": lambda: self._temperature(temperature, notes, baselines == "auto"),
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
            method = makers[name]() if name in chosen else None
            if method is not None:
                methods.append(method)
        return methods

    def _temperature(self, temperature: Callable[[], float], notes: list[str], auto: bool) -> Method | None:
        if not takes_temperature(self.likelihood):
            words = f"Temperature scaling is not known for {type(self.likelihood).__name__}"
            if not auto:
                raise PeewitError(f"baselines: {words}; leave 'temperature' out.")
            notes.append(f"{words}, and is left out.")
            return None
        value = temperature()
        if family_of(self.likelihood).classes is not None:
            words = f"the plain network, its outputs divided by {value:.3g}, which was chosen on validation data."
            if not TEMPERATURES[0] * 1.01 < value < TEMPERATURES[1] / 1.01:
                notes.append(f"Temperature scaling ended at its limit, {value:.3g}: validation data has no best one.")
        else:
            words = f"the plain network, its noise multiplied by {value**0.5:.3g}, which was chosen on validation data."
        return replace(self.network(), name="Temperature scaling", description=words, temperature=value)

    def _ensemble(self, plain: Networks, ensemble: Sequence[nn.Module] | None) -> Method:
        assert ensemble is not None  # or its name would have been refused
        models = members(ensemble, self.device)
        words = f"{len(models)} networks trained apart, their predictions averaged."
        return replace(plain, name="Deep ensemble", description=words, models=models)

    def describe(self) -> dict[str, Any]:
        """Settings of a plain network."""
        settings = {"network": network_name(self.model), "likelihood": type(self.likelihood).__name__}
        noise = noise_of(self.likelihood)
        return settings if noise is None else {**settings, "noise": noise}


def baseline_names(baselines: Any, validation: bool, ensemble: bool, dropout: bool) -> set[str]:
    """Which baselines to compare with; refuses those that something is missing for."""
    possible = {"plain": True, "temperature": validation, "ensemble": ensemble, "dropout": dropout}
    if isinstance(baselines, str) and baselines == "auto":
        return {name for name, present in possible.items() if present}
    names = [baselines] if isinstance(baselines, str) else baselines
    if not isinstance(names, Iterable):
        raise ArgumentTypeError(
            f"baselines is a {type(baselines).__name__}; expected 'auto', or some of {', '.join(BASELINES)}."
        )
    missing = {
        "temperature": "needs validation=data that was not trained on",
        "ensemble": "needs ensemble=[networks trained apart]",
        "dropout": "needs a network with dropout layers, and this one has none",
    }
    names = list(names)
    for name in names:
        check_name(name, ("auto", *BASELINES), "baselines")
        if not possible.get(name, True):
            raise PeewitError(f"baselines: {name!r} {missing[name]}.")
    return set(names)
