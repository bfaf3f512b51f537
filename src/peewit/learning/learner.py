"""A learner of prior precisions and noise, which steps whenever a training loop asks it to."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import likelihoods
from ..curvature import kinds, structures
from ..curvature.contracts import Structure
from ..curvature.kinds import Auto, CurvatureKind, CurvatureName, Hessian
from ..curvature.structures import StructureName
from ..fitting import fit
from ..laplace import Laplace
from ..likelihoods import Likelihood, LikelihoodName, WithNoise
from ..messages.errors import MismatchError, PeewitError
from ..messages.names import check_name, resolve_name, spelled_class
from ..network.batches import Batches
from ..network.isolation import entry_point
from ..network.modules import device_of, unwrap
from ..network.nests import Data
from ..network.values import own_copy
from ..posterior.linear_mode import At, check_at
from ..posterior.measure import with_residual_noise
from ..posterior.state import PosteriorState
from ..priors.prior import Number, Prior, as_prior
from ..runtime.arithmetic import ArithmeticName
from ..runtime.memory import budget
from ..runtime.progress import Progress
from ..runtime.random import seed_of
from ..tracing.selection import Weights, select
from ..tuning.profile import EvidencePoint, profile_of
from ..weights.space import Space
from .ascent import HyperOptimizer
from .decay import DECAYS, Decay, PriorHook, attach, check_owned, optimizers_of, pulls_of
from .examples import apart, count_examples, share_of
from .losses import TrainingLoss, loss_factor, mean_energy, noise_precision_of
from .options import (
    LearntParameter,
    Measuring,
    Rate,
    ascending,
    check_share,
    check_space,
    refuse_kept_bases,
    refuse_parallel,
)
from .randomness import preserved_randomness
from .records import MOST, History, LearningRecord
from .refresh import RunningSums, decoded, encoded, refresh

Keep: TypeAlias = Literal["best", "last"]
"""Which weights the posterior is about: those of the best evidence, or the last."""
KEEPS: tuple[Keep, ...] = get_args(Keep)


@dataclass(frozen=True, eq=False, kw_only=True)
class KeptWeights:
    """The weights of the best evidence so far, with the hyperparameters there."""

    value: float
    weights: dict[str, Any]  # the network's state, buffers included
    z: Tensor  # logarithms of the precisions and of the noise precision


@spelled_class
class Learner:
    """Learns prior precisions and the noise by the evidence while a network trains, without validation data.

    Put `learner.step()` into your training loop, every few epochs. It measures the curvature at the present weights,
    moves the hyperparameters up the evidence, and keeps the weights with the best evidence. In between, training
    follows the prior: a hook of the optimizer adds its gradient just before every step, in place of a weight decay.
    Gradient clipping, mixed precision, schedulers and accumulation of gradients stay as they are. A step changes
    neither the network nor any generator of random numbers.

    Args:
        model: The network.
        data: The training data, in any form that `pw.fit` takes, with a length.
        likelihood: How targets are distributed given the outputs, as in `pw.fit`.
        optimizer: The optimizer of the network's weights, or a list of several; without a weight decay of its own.
        loss: The loss that your loop minimises, as a function of outputs and targets that averages over the batch. None
            for `learner.loss`. A number says that it is so many times the mean energy per example.
        prior: The prior to begin with: a number, the precision of all weights, or a `pw.Prior` such as
            `pw.Prior.layerwise()`, which gets a precision for each group.
        weights: The weights that the prior is about, as in `pw.fit`: whole tensors.
        structure: How curvature is stored, as in `pw.fit`. One precision per weight needs "diag", "block" or "full".
        curvature: Which curvature is measured, as in `pw.fit`. "fisher" is the cheapest.
        parameters: What is learnt: "prior", "noise", or both. None for what the likelihood has.
        steps: How many steps of Adam in the logarithms of the hyperparameters one `step()` takes.
        rate: Their learning rate, or a function that returns it for the number of steps taken so far, such as
            `pw.learning.cosine`. With 0 nothing is learnt, and training is plain training.
        curvature_data: Other data for the curvature, such as the training data without augmentation. None for `data`.
        share: The share of the data that a step measures, drawn anew each time, from above 0 to 1 for all.
        running: How much sums of earlier steps count beside those of a new one, from 0 to below 1.
        examples: Number N of training examples that the prior counts beside. None for as many as the data have.
        decay: How the prior enters training. "coupled" adds its gradient to that of the loss; "decoupled" shrinks
            weights beside the step, as AdamW does; "auto" does what the optimizer's own weight decay would do; "loss"
            does nothing: add `learner.penalty()` to your loss.
        keep: Which weights `posterior` is about: "best" for those of the best evidence, "last" for the present ones.
        memory: Bytes for temporary results of a step. None for a limit that fits the device.
        arithmetic: How products are rounded, as in `pw.fit`.
        generator: Source of the seed for drawn labels and shares of the data. None for a fixed seed.

    Attributes:
        model: The network.
        prior: The prior at present.
        likelihood: The likelihood, with the noise at present where it has one.
        noise: That noise: its standard deviation, or the common factor of several; None for a likelihood without one.
        space: The weights that the prior is about, a `pw.Space`.
        examples: Number N of training examples.
        history: What came out so far, a `pw.learning.History`.

    Raises:
        PeewitError: An optimizer does not own the selected weights, or has a weight decay for them; the loss is not a
            multiple of the energy; the number of examples is not known; training runs in several processes; the prior
            or the weights cannot be learnt so.
        ArgumentTypeError: An argument has the wrong type.
        NotFiniteError: The loss has a gradient of NaN or Inf on the first batch.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        >>> optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        >>> own = pw.learning.Learner(net, (x, y), "classification", optimizer, loss=torch.nn.CrossEntropyLoss())
        >>> for epoch in range(20):
        ...     optimizer.zero_grad()
        ...     torch.nn.functional.cross_entropy(net(x), y).backward()
        ...     optimizer.step()
        ...     if epoch % 10 == 9:
        ...         record = own.step()
        >>> own.posterior()
        Laplace(D=51, N=60, Kron, ggn, Categorical)
    """

    model: nn.Module
    prior: Prior
    likelihood: Likelihood
    space: Space
    examples: int
    history: History

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        likelihood: LikelihoodName | Likelihood,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        loss: TrainingLoss | float | None = None,
        prior: Prior | Number = 1.0,
        weights: Weights = "all",
        structure: StructureName | Structure = "kron",
        curvature: CurvatureName | CurvatureKind | Hessian | Auto = "auto",
        parameters: Iterable[LearntParameter] | None = None,
        steps: int = 30,
        rate: Rate = 0.1,
        curvature_data: Data | None = None,
        share: float = 1.0,
        running: float = 0.0,
        examples: int | None = None,
        decay: Decay = "auto",
        keep: Keep = "best",
        memory: float | None = None,
        arithmetic: ArithmeticName = "auto",
        generator: torch.Generator | None = None,
    ) -> None:
        refuse_parallel(model)
        self.model = unwrap(model)
        data = apart(data)
        self.data: Any = data if curvature_data is None else apart(curvature_data)
        self.optimizers = optimizers_of(optimizer)
        check_share(share, running)
        check_name(decay, DECAYS, "decay")
        check_name(keep, KEEPS, "keep")
        batches = Batches(data, self.model)
        batches.refuse_one_shot("Learning while training passes over the data many times")
        Batches(self.data, self.model).refuse_one_shot("Learning while training passes over the data many times")
        self.examples = count_examples(data, batches, examples)
        with preserved_randomness(data, self.data):
            first = batches.first()
            family = own_copy(resolve_name(likelihood, likelihoods.NAMES, "likelihood", Likelihood))
            if isinstance(family, WithNoise) and family.awaits_residuals:
                family = with_residual_noise(self.model, family, batches)
            self.loss_factor = loss_factor(self.model, family, batches, loss)
            limit = budget(memory, device_of(self.model), arithmetic)
            self.space = select(self.model, weights, lambda: first[0], limit, refuse_variances)
        self.likelihood = family
        self.prior = own_copy(as_prior(prior))
        check_space(self.space, self.prior)
        self.prior.refuse_unknown(name for name, _ in self.model.named_parameters())
        self.prior.count(self.space)
        check_owned(self.optimizers, self.model, self.space, self._price)
        self.measuring = Measuring(
            weights=list(self.space.names),
            structure=resolve_name(structure, structures.NAMES, "structure", Structure),
            curvature=resolve_name(curvature, kinds.NAMES, "curvature", "name"),
            share=share,
            running=running,
            memory=memory,
            arithmetic=arithmetic,
            seed=seed_of(generator, 31),
        )
        refuse_kept_bases(self.measuring)
        self.ascending = ascending(parameters, family, steps, rate)
        self.keep = keep
        self.kept: KeptWeights | None = None
        self.history = History(groups=group_names(self.prior, self.space))
        self.hyper = HyperOptimizer.of(self.prior, self.space, noise_precision_of(family))
        self.running: RunningSums | None = None
        if self.prior.grouping.within_tensors:  # not every structure holds it: said now, and not after a burn-in
            state, _ = self._measure([first], 0, Progress())
            profile_of(state.problem, state.prior)
        self.hook = PriorHook(decay)
        self._follow()
        self.handles = attach(self.optimizers, self.hook)

    @property
    def _price(self) -> float:
        """`N beta / c`: what a weight decay is multiplied with to be a prior precision."""
        return self.examples * noise_precision_of(self.likelihood) / self.loss_factor

    @property
    def noise(self) -> float | None:
        """The noise at present; None for a likelihood without one."""
        return noise_precision_of(self.likelihood) ** -0.5 if isinstance(self.likelihood, WithNoise) else None

    def _follow(self) -> None:
        """Let training follow the present prior and noise."""
        self.hook.pulls = pulls_of(self.model, self.space, self.prior, 1 / self._price)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss that belongs to the likelihood: the mean over examples of the energy, to which the prior is added.

        Args:
            outputs: The network's outputs for a batch (B, ...).
            targets: Its targets (B, ...).

        Returns:
            A number () with its graph.

        Raises:
            PeewitError: The targets do not have the form that the likelihood expects.

        Example:
            >>> learner.loss(model(x), y).shape
            torch.Size([])
        """
        return mean_energy(self.likelihood, outputs, targets)

    def penalty(self) -> Tensor:
        """The prior's part of the objective in the units of your loss: add it there with `decay="loss"`.

        Returns:
            A number () with its graph: half of the sum of decay times squared distance from the prior's mean.

        Example:
            >>> bool(learner.penalty() > 0)
            True
        """
        total = sum(pull.half_square() for pull in self.hook.pulls.values())
        assert isinstance(total, Tensor)
        return total

    @entry_point
    def step(self, *, epoch: int | None = None, loss: float | None = None, progress: bool = False) -> LearningRecord:
        """Take a hyper-step: curvature at the present weights, then steps of precisions and noise up the evidence.

        If it fails or is interrupted, the hyperparameters stay as they were.

        Args:
            epoch: Number of epochs finished, for the record.
            loss: Mean loss of the training since the last record, for the record.
            progress: Whether to show progress bars.

        Returns:
            What came out, a `pw.learning.LearningRecord`, also the last of `learner.history`.

        Raises:
            NotFiniteError: Weights, data or outputs hold NaN or Inf.
            PeewitError: The data or the prior do not fit the network, as in `pw.fit`.

        Warns:
            TuningWarning: The steps left the range in which there is a posterior.

        Example:
            >>> learner.step(epoch=1).epoch
            1
        """
        began = time.perf_counter()
        number = len(self.history.hyper_steps)
        state, running = self._measure(self.data, number, Progress(progress))
        hyper = self.hyper.copy()  # a step that fails changes nothing
        point = hyper.climb(state, self._numbers(state), self.ascending)
        best = self._best(point, hyper)
        record = LearningRecord(
            epoch=epoch,
            loss=loss,
            hyper_step=number + 1,
            log_evidence=point.value,
            log_likelihood=point.log_likelihood,
            complexity=point.value - point.log_likelihood,
            precision=self._listed(hyper.precision),
            effective_dimensions=self._dimensions(state, point),
            noise=hyper.noise if self.noise is not None else None,
            examples=self.examples,
            kept=best is not self.kept or self.keep == "last",
            seconds=time.perf_counter() - began,
            measuring=state.measurement.timings["measure"],
            decomposing=state.measurement.timings["decompose"],
        )
        self.running, self.kept = running, best
        self._take(hyper)
        self.history = self.history.plus(record)
        return record

    def _measure(self, data: Any, number: int, progress: Progress) -> tuple[PosteriorState, RunningSums | None]:
        """The posterior at the present weights, prior and noise; training will not notice."""
        with preserved_randomness(self.data):
            return refresh(
                self.model,
                data,
                self.likelihood,
                self.prior,
                self.measuring,
                number,
                self.examples,
                self.running,
                progress,
            )

    def note(self, *, epoch: int | None = None, loss: float | None = None) -> LearningRecord:
        """Add a record of an epoch without a hyper-step to the history, and return it."""
        steps = len(self.history.hyper_steps)
        record = LearningRecord(epoch=epoch, loss=loss, hyper_step=steps, examples=self.examples)
        self.history = self.history.plus(record)
        return record

    def _numbers(self, state: PosteriorState) -> Tensor:
        """(groups of the weights in use,): their numbers among the groups of all selected weights."""
        if state.space.names == self.space.names:
            return torch.arange(self.prior.count(self.space), device="cpu")
        return self.prior.grouping.find_numbers(self.space, state.space)

    def _listed(self, values: Tensor) -> Tensor | None:
        return values.clone() if len(values) <= MOST else None

    def _dimensions(self, state: PosteriorState, point: EvidencePoint) -> Tensor:
        """(groups,) effective dimensions, none of groups without a weight in use; (1,) of very many."""
        groups = torch.zeros(self.prior.count(self.space), dtype=torch.float64, device="cpu")
        groups[self._numbers(state)] = point.gamma
        return groups if len(groups) <= MOST else groups.sum()[None]

    def _best(self, point: EvidencePoint, hyper: HyperOptimizer) -> KeptWeights | None:
        """The present weights if they have the best evidence, else those before."""
        if self.keep == "last" or (self.kept is not None and point.value <= self.kept.value):
            return self.kept
        weights = {name: own_copy(value) for name, value in self.model.state_dict().items()}
        return KeptWeights(value=point.value, weights=weights, z=hyper.z.detach().clone())

    def _take(self, hyper: HyperOptimizer) -> None:
        """Train and measure with other hyperparameters from now on; equal ones stay what they are, to the last bit."""
        changed = not torch.equal(hyper.z, self.hyper.z)
        self.hyper = hyper
        if changed:
            self._set(hyper)

    def _set(self, hyper: HyperOptimizer) -> None:
        if self.ascending.prior:
            self.prior = self.prior.with_precision(hyper.precision)
        if self.ascending.noise and isinstance(self.likelihood, WithNoise):
            self.likelihood = self.likelihood.with_noise(hyper.noise)
        self._follow()

    @entry_point
    def posterior(self, *, at: At = "trained_weights", progress: bool = False) -> Laplace:
        """The posterior at the kept weights, which the network then holds, under the prior and noise learnt there.

        Args:
            at: The weights at which its evidence is taken, as in `pw.fit`.
            progress: Whether to show progress bars.

        Returns:
            A `pw.Laplace`, measured on all of the data that the learner measures. Where these are not as many as the N
            training examples, its temperature lets them count as N.

        Raises:
            PeewitError: No hyper-step was taken yet.

        Example:
            >>> learner.posterior()
            Laplace(D=51, N=60, Kron, ggn, Categorical)
        """
        check_at(at)
        if not self.history.hyper_steps:
            raise PeewitError("posterior() was asked for before the first hyper-step; call learner.step() first.")
        if self.kept is not None:
            self.model.load_state_dict(self.kept.weights)
            hyper = self.hyper.copy()
            with torch.no_grad():
                hyper.z.copy_(self.kept.z)
            self._take(hyper)
        measuring = self.measuring
        data = share_of(self.data, self.model, 1.0, measuring.seed)
        with preserved_randomness(self.data):
            la = fit(
                self.model,
                data,
                self.likelihood,
                weights=measuring.weights,
                structure=measuring.structure,
                curvature=measuring.curvature,
                prior=self.prior,
                memory=measuring.memory,
                arithmetic=measuring.arithmetic,
                progress=progress,
            )
            measured = la.N
            if measured != self.examples:  # as in a step: what is measured stands for all training examples
                la = la.with_temperature(measured / self.examples)
            if at == "trained_weights":
                return la
            return la.at_linear_mode(data, memory=measuring.memory, progress=progress)

    def detach(self) -> None:
        """Take the prior out of the optimizer's steps: from now on training is plain, without weight decay.

        Example:
            >>> learner.detach()
        """
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def state_dict(self) -> dict[str, Any]:
        """What the learner has learnt, in tensors and plain values; the network and its optimizers are not in it.

        Returns:
            A mapping for `load_state_dict`, which `torch.save` writes and `torch.load(weights_only=True)` reads.

        Example:
            >>> sorted(learner.state_dict())
            ['groups', 'history', 'hyper', 'kept', 'kinds', 'noise', 'precision', 'running']
        """
        return {
            "groups": list(self.history.groups),
            "history": [record.fields() for record in self.history],
            "hyper": self.hyper.state_dict(),
            "kept": None if self.kept is None else dict(vars(self.kept)),
            "precision": self.prior.precision.detach().clone(),
            "noise": own_copy(self.likelihood.noise) if isinstance(self.likelihood, WithNoise) else None,
            "running": encoded(self.running),
            "kinds": self._kinds(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what another learner of the same network and prior had learnt.

        Args:
            state: What `state_dict` returned.

        Raises:
            MismatchError: It is of another prior, likelihood or structure.

        Example:
            >>> learner.load_state_dict(learner.state_dict())
        """
        self._refuse_other(state)
        hyper = self.hyper.copy()
        hyper.load_state_dict(state["hyper"])
        history = History(tuple(LearningRecord(**each) for each in state["history"]), self.history.groups)
        best = None if state["kept"] is None else KeptWeights(**state["kept"])
        running = decoded(state["running"], self.measuring.structure, device_of(self.model))
        prior, likelihood = self.prior.with_precision(state["precision"].cpu()), self.likelihood
        if isinstance(likelihood, WithNoise):
            likelihood = likelihood.with_noise(state["noise"])
        self.hyper, self.history, self.kept, self.running = hyper, history, best, running
        self.prior, self.likelihood = prior, likelihood
        self._follow()

    def _kinds(self) -> dict[str, str]:
        """What a state has to be of, by name."""
        return {"likelihood": type(self.likelihood).__name__, "structure": type(self.measuring.structure).__name__}

    def _refuse_other(self, state: Mapping[str, Any]) -> None:
        """Refuse a state of another prior, likelihood or structure."""
        names = list(self.history.groups)
        if list(state["groups"]) != names:
            raise MismatchError(
                f"The state is of a prior with the groups {shortened(state['groups'])}, and this learner's has "
                f"{shortened(names)}; make the learner with the same prior= and weights=."
            )
        for what, name in self._kinds().items():
            if state["kinds"][what] != name:
                raise MismatchError(
                    f"The state is of the {what} {state['kinds'][what]}, and this learner's is {name}; give the same."
                )

    def __reduce__(self) -> Any:
        raise PeewitError(
            "A learner is tied to its optimizer and cannot be copied or pickled: make another one for the copy, and "
            "give it load_state_dict(learner.state_dict())."
        )

    def __repr__(self) -> str:
        """What it learns, and how far it is."""
        last = self.history.hyper_steps[-1:] or ("no hyper-step yet",)
        return f"Learner({type(self.model).__name__}, {self.prior.grouping.name} prior: {last[0]})"


def set_loss_factor(learner: Learner, factor: float) -> None:
    """Say what multiple of the mean energy training minimises, where that was learnt after the learner was made."""
    learner.loss_factor = factor
    learner._follow()


def refuse_variances() -> Tensor:
    """A subnetwork by its variances needs a posterior."""
    raise PeewitError("weights=Subnetwork.largest_variance needs a trained network; use names of parameters.")


def shortened(names: Sequence[str]) -> str:
    """Some names and how many more."""
    return f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"


def group_names(prior: Prior, space: Space) -> tuple[str, ...]:
    """The groups of a prior; none of very many."""
    return tuple(prior.names(space)) if prior.count(space) <= MOST else ()
