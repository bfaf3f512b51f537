"""The callback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ...laplace import Laplace
from ...learning.examples import count_examples
from ...learning.hosted import READ, HostedLearner, LossReading, Schedule
from ...learning.learner import Learner, set_loss_factor
from ...learning.records import History, numbers_to_log
from ...likelihoods import Likelihood, LikelihoodName
from ...messages.errors import ArgumentTypeError, PeewitError
from ...network.batches import Batches, split_batch
from ...posterior.linear_mode import At

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:  # the package that was there before
        from pytorch_lightning import Callback

BEGIN = "give the callback to pl.Trainer(callbacks=[...]) and call trainer.fit."


class LearnerCallback(Callback):  # type: ignore[misc]  # its types are not looked at
    """Learns prior precisions and the noise by the evidence while a Lightning `Trainer` trains.

    A `pw.learning.Learner` as a callback. It is made when training starts, takes hyper-steps at the ends of epochs, one
    of them after the last epoch, logs what comes out (`learning/log_evidence`, `learning/noise`, `precision/...`), and
    is saved in the trainer's checkpoints, from which it goes on. The prior takes the place of a weight decay: set that
    of your optimizer to 0.

    The first training step shows whether the loss is a multiple of the energy under the likelihood, and which; that of
    every other epoch, whether it still is one. The
    prior is added after gradients are accumulated, unscaled and clipped, so that clipping bounds the gradient of the
    loss alone.

    Args:
        likelihood: How targets are distributed given the outputs, as in `pw.fit`.
        network: The attribute of the module that is the network, such as "model", from inputs to outputs. None for the
            module itself and its `forward`.
        every: Number of epochs between hyper-steps.
        burn_in: Number of epochs before the first hyper-step. None for a tenth of `max_epochs`.
        **options: Further options of `pw.learning.Learner`. With `curvature_data`, batches of the training data may
            have any form. `loss` is read from the first training step where it is not given.

    Attributes:
        learner: The `pw.learning.Learner`, once training has begun.
        history: What came out so far, a `pw.learning.History`.

    Raises:
        PeewitError: An option is not known or out of its range. When training starts: what `pw.learning.Learner`
            raises, and a loss that is not a multiple of the energy.

    Example:
        >>> learning = pw.lightning.LearnerCallback("classification", every=2)
        >>> quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
        >>> trainer = pl.Trainer(max_epochs=4, callbacks=[learning], enable_model_summary=False, **quiet)
        >>> trainer.fit(module, loader)
        >>> [record.epoch for record in learning.history], learning.posterior()
        ([2, 4], Laplace(D=51, N=60, Kron, ggn, Categorical))
    """

    def __init__(
        self,
        likelihood: LikelihoodName | Likelihood,
        *,
        network: str | None = None,
        every: int = 5,
        burn_in: int | None = None,
        **options: Any,
    ) -> None:
        if network is not None and not isinstance(network, str):
            raise ArgumentTypeError(
                f"network is a {type(network).__name__}; expected the name of an attribute of the module, such as "
                "'model', or None for the module itself."
            )
        self.likelihood, self.network = likelihood, network
        self._hosted = HostedLearner(schedule=Schedule(every=every, burn_in=burn_in), options=options)
        self._targets: Tensor | None = None
        self._reading: LossReading | None = None
        self._known = False  # whether the factor of the loss is known

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

        It is measured where the network is. Lightning leaves it on the CPU: move it back to a GPU first.

        Args:
            at: The weights at which its evidence is taken, as in `pw.fit`.
            progress: Whether to show progress bars.

        Returns:
            A `pw.Laplace`.

        Raises:
            PeewitError: No hyper-step was taken yet.

        Example:
            >>> pw.lightning.LearnerCallback("classification").posterior()
            Traceback (most recent call last):
            peewit.messages.errors.PeewitError: There is no learner before training begins: ...
        """
        return self.learner.posterior(at=at, progress=progress)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Make the learner, once the trainer has restored what it resumes from."""
        network = self._network(pl_module)
        options = dict(self._hosted.options)
        data = options.pop("curvature_data", None)
        if data is not None and options.get("examples") is None:
            loader = trainer.train_dataloader
            options["examples"] = count_examples(loader, Batches(loader, network), None)
        data = trainer.train_dataloader if data is None else data
        resumed = trainer.global_step > 0
        self._hosted.begin(resumed, network, data, self.likelihood, trainer.optimizers, **options)
        if options.get("loss") is None and pl_module._compiler_ctx is not None:
            self._hosted.end()
            raise PeewitError(f"The module is compiled, so that its loss cannot be read; {READ}.")
        self._known = self._hosted.continues
        self.on_train_epoch_start(trainer, pl_module)

    def _network(self, pl_module: Any) -> nn.Module:
        if self.network is None:
            return pl_module  # type: ignore[no-any-return]
        try:
            return pl_module.get_submodule(self.network)  # type: ignore[no-any-return]
        except AttributeError as error:
            names = ", ".join(name for name, _ in pl_module.named_children())
            raise PeewitError(
                f"network={self.network!r}: the {type(pl_module).__name__} has no such module; it has {names}."
            ) from error

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Look at the loss of the next step: at first to learn what it is, later whether it still is a multiple."""
        if self._hosted.options.get("loss") is None and self._reading is None:
            self._reading = LossReading(self._network(pl_module))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Note the targets of the step that is looked at."""
        if self._reading is None:
            return
        self._reading.outputs.clear()  # of a step without a backward pass
        try:
            self._targets = split_batch(batch)[1]
        except PeewitError as error:
            raise type(error)(f"{error} For batches of another form {READ}.") from error

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """Learn from the first loss which multiple of the energy it is: before the first step is taken."""
        if self._reading is None or self._targets is None:
            return
        reading, targets, self._reading, self._targets = self._reading, self._targets, None, None
        factor = reading.factor(loss, targets, self.learner.likelihood) / scale_of(trainer)
        parts = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
        if not self._known:
            self._known = True
            set_loss_factor(self.learner, factor * parts)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """A hyper-step, if the schedule has one."""
        epoch = trainer.current_epoch + 1
        if self._hosted.schedule.due(epoch, trainer.max_epochs or 0) and self._hosted.step(trainer.global_step, epoch):
            pl_module.log_dict(numbers_to_log(self.history))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """A hyper-step after the last epoch, wherever training ends."""
        if self._hosted.step(trainer.global_step, trainer.current_epoch):
            for logger in trainer.loggers:
                logger.log_metrics(numbers_to_log(self.history), step=trainer.global_step)
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave the optimizer as it was."""
        self._end()

    def _end(self) -> None:
        if self._reading is not None:
            self._reading.handle.remove()
        self._reading = self._targets = None
        self._hosted.end()

    def state_dict(self) -> dict[str, Any]:
        """What the learner has learnt: what the trainer saves in its checkpoints.

        Returns:
            A mapping for `load_state_dict`.

        Example:
            >>> pw.lightning.LearnerCallback("classification").state_dict()
            {}
        """
        return self._hosted.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from there when training starts; the trainer calls it.

        Args:
            state_dict: What `state_dict` returned.

        Raises:
            MismatchError: When training starts: it is of another prior or other weights.

        Example:
            >>> learning = pw.lightning.LearnerCallback("classification")
            >>> learning.load_state_dict(learning.state_dict())
        """
        self._hosted.load_state_dict(state_dict)


def scale_of(trainer: Any) -> float:
    """What mixed precision multiplies losses with."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return 1.0 if scaler is None else float(scaler.get_scale())
