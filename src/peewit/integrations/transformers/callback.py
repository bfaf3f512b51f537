"""The callback."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
from transformers import Trainer, TrainerCallback

from ... import likelihoods
from ...laplace import Laplace
from ...learning.hosted import HostedLearner, Schedule
from ...learning.learner import Learner
from ...learning.options import PARALLEL
from ...learning.randomness import preserved_randomness
from ...learning.records import History, numbers_to_log
from ...likelihoods import Likelihood, LikelihoodName, like_own_loss
from ...messages.errors import ArgumentTypeError, MismatchError, PeewitError
from ...messages.names import check_name, resolve_name
from ...network.batches import Batches
from ...posterior.linear_mode import At
from ...storage.atomic import writing
from .training import loss_factor_of, training_data

Unit: TypeAlias = Literal["epochs", "steps"]
"""What `every` and `burn_in` count: passes over the data, or steps of the optimizer."""
UNITS: tuple[Unit, ...] = get_args(Unit)
FILE = "peewit_learner.pt"  # in the folder of a checkpoint
BEGIN = "call trainer.add_callback with the callback, and then trainer.train()."


class LearnerTrainerCallback(TrainerCallback):  # type: ignore[misc]  # its types are not looked at
    """Learns prior precisions and the noise by the evidence while a `Trainer` of transformers trains.

    A `pw.learning.Learner` as a callback. It is made when training begins, takes hyper-steps every few epochs or steps,
    one of them at the end, and logs what comes out through `trainer.log` (`learning/log_evidence`, `learning/noise`,
    `precision/...`). Its state is in the file `peewit_learner.pt` of every checkpoint, from which it goes on. The prior
    takes the place of a weight decay: leave `weight_decay` of the `TrainingArguments` at 0.

    The loss is the Trainer's own. Its gradient on the first batch tells whether it is a multiple of the energy under
    the likelihood, and which. The prior is added after gradients are accumulated, unscaled and clipped, so that
    `max_grad_norm` bounds the gradient of the loss alone.

    Args:
        trainer: The `Trainer`, to which you then add the callback.
        likelihood: How targets are distributed given the outputs, as in `pw.fit`.
        every: Number of epochs, or of steps, between hyper-steps.
        unit: What `every` and `burn_in` count: "epochs", or "steps" of the optimizer.
        burn_in: How many of them come before the first hyper-step. None for a tenth of the training.
        **options: Further options of `pw.learning.Learner`. `loss` is the Trainer's where it is not given.

    Attributes:
        trainer: The `Trainer`.
        learner: The `pw.learning.Learner`, once training has begun.
        history: What came out so far, a `pw.learning.History`.

    Raises:
        PeewitError: An option is not known or out of its range. When training begins: what `pw.learning.Learner`
            raises, and a loss that is not a multiple of the energy.
        ArgumentTypeError: `trainer` is not a `Trainer`.

    Example:
        >>> learning = pw.transformers.LearnerTrainerCallback(trainer, "classification", every=2)
        >>> trainer.add_callback(learning)
        >>> _ = trainer.train()  # doctest: +ELLIPSIS
        {...}
        >>> [record.epoch for record in learning.history], learning.posterior().N
        ([2, 4], 24)
    """

    trainer: Any

    def __init__(
        self,
        trainer: Any,
        likelihood: LikelihoodName | Likelihood,
        *,
        every: int = 1,
        unit: Unit = "epochs",
        burn_in: int | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(trainer, Trainer):
            raise ArgumentTypeError(
                f"trainer is a {type(trainer).__name__}; expected a transformers.Trainer, to which the callback is "
                "added by trainer.add_callback."
            )
        check_name(unit, UNITS, "unit")
        self.trainer, self.likelihood, self.unit = trainer, likelihood, unit
        self._hosted = HostedLearner(schedule=Schedule(every=every, burn_in=burn_in), options=options)

    @property
    def learner(self) -> Learner:
        """The learner."""
        return self._hosted.present(BEGIN)

    @property
    def history(self) -> History:
        """All records."""
        return self._hosted.history

    def posterior(self, *, at: At = "trained_weights", progress: bool = False) -> Laplace:
        """The posterior at the kept weights, which the network then holds: `learner.posterior`.

        Args:
            at: The weights at which its evidence is taken, as in `pw.fit`.
            progress: Whether to show progress bars.

        Returns:
            A `pw.Laplace`.

        Raises:
            PeewitError: No hyper-step was taken yet.

        Example:
            >>> pw.transformers.LearnerTrainerCallback(trainer, "classification").posterior()
            Traceback (most recent call last):
            peewit.messages.errors.PeewitError: There is no learner before training begins: ...
        """
        return self.learner.posterior(at=at, progress=progress)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make the learner, once the Trainer has loaded what it resumes from."""
        if args.n_gpu > 1:
            raise PeewitError(PARALLEL)
        resumed = state.global_step > 0
        model, options = self.trainer.model, dict(self._hosted.options)
        data = options.pop("curvature_data", None)
        if data is None:
            data = training_data(kwargs["train_dataloader"])
        family: Any = resolve_name(self.likelihood, likelihoods.NAMES, "likelihood", Likelihood)
        batches = Batches(data, model)
        with preserved_randomness(data):
            first = batches.first()
            family = like_own_loss(model, family, lambda: first)
            if options.get("loss") is None:
                options["loss"] = loss_factor_of(self.trainer, family, *first)
        if resumed and self._hosted.waiting is None:
            self.load_state_dict(state_in(places(args, state), state))
        self._hosted.begin(resumed, model, data, family, kwargs["optimizer"], **options)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A hyper-step, if the schedule has one after a step."""
        if self.unit == "steps" and self._hosted.schedule.due(state.global_step, state.max_steps):
            self._step(state)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A hyper-step, if the schedule has one after an epoch."""
        if self.unit == "epochs" and self._hosted.schedule.due(round(state.epoch), state.num_train_epochs):
            self._step(state)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the learner's state beside that of the optimizer."""
        folder = places(args, state)[-1]
        if folder.is_dir():  # a search of the Trainer's over hyperparameters has other folders, and resumes from none
            with writing(folder / FILE) as temporary:
                torch.save(self.state_dict(), temporary)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A hyper-step at the end, wherever it comes."""
        self._step(state)
        self._hosted.end()

    def _step(self, state: Any) -> None:
        if self._hosted.step(state.global_step, math.floor(state.epoch + 1e-6)):  # of steps in an epoch: it rounds
            self.trainer.log(numbers_to_log(self.history))

    def state_dict(self) -> dict[str, Any]:
        """What the learner has learnt: the content of `peewit_learner.pt` in a checkpoint.

        Returns:
            A mapping for `load_state_dict`.

        Example:
            >>> pw.transformers.LearnerTrainerCallback(trainer, "classification").state_dict()
            {}
        """
        return self._hosted.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there when training begins; needed only for a checkpoint outside the Trainer's output folder.

        Args:
            state: What `state_dict` returned, or `torch.load` of the file.

        Raises:
            MismatchError: When training begins: it is of another prior or other weights.

        Example:
            >>> learning = pw.transformers.LearnerTrainerCallback(trainer, "classification")
            >>> learning.load_state_dict(learning.state_dict())
        """
        self._hosted.load_state_dict(state)


def places(args: Any, state: Any) -> list[Path]:
    """Folders in which the checkpoint of the present step may be; the last one is where the Trainer writes it."""
    named = args.resume_from_checkpoint
    folders = [Path(named)] if isinstance(named, str) else []
    return [*folders, Path(args.output_dir) / f"checkpoint-{state.global_step}"]


def state_in(folders: list[Path], state: Any) -> Mapping[str, Any]:
    """The learner's state in a checkpoint."""
    files = [folder / FILE for folder in folders if (folder / FILE).is_file()]
    if not files:
        raise MismatchError(
            f"Training resumes at step {state.global_step}, and {folders[-1]} has no {FILE}. If the checkpoint is "
            f"elsewhere, call load_state_dict(torch.load('.../{FILE}')) of the callback first; if it was written "
            "without a learner, load its weights into the network and begin a new training."
        )
    content: Mapping[str, Any] = torch.load(files[0], map_location="cpu", weights_only=True)
    return content
