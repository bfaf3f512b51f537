"""A whole training run whose hyperparameters are learnt: a loop of epochs that yields a record after each."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..laplace import Laplace
from ..likelihoods import Likelihood, LikelihoodName
from ..messages.arguments import is_count
from ..messages.errors import NotFiniteError, PeewitError
from ..network.batches import Batches
from ..network.calling import call
from ..network.nests import Data
from ..posterior.linear_mode import At
from .checkpoint import read_run, run_file, write_run
from .examples import in_batches
from .learner import Learner
from .losses import TrainingLoss
from .options import check_stepped
from .records import History, LearningRecord, Log
from .status import StatusLine


class Training:
    """A training run: iterate over it, and each epoch ends in a record. `pw.learning.train` returns one.

    Attributes:
        learner: The `pw.learning.Learner` inside.
        epochs: Number of epochs of the whole run.
        epoch: Number of epochs finished.
        history: All records so far, a `pw.learning.History`.

    Example:
        >>> net = torch.nn.Linear(2, 3)
        >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> run = pw.learning.train(net, (x, y), "classification", optimizer, epochs=2)
        >>> [record.epoch for record in run]
        [1, 2]
    """

    learner: Learner
    epochs: int
    epoch: int

    def __init__(
        self,
        *,
        learner: Learner,
        data: Any,
        loss: TrainingLoss | None,
        epochs: int,
        due: Callable[[int], bool],
        stepped: Sequence[Any],
        checkpoint: Path | None,
        log: Log,
        progress: bool,
    ) -> None:
        self.learner = learner
        self.epochs = epochs
        self.epoch = 0
        self.data = data
        self._loss, self._due, self._stepped = loss, due, stepped
        self._checkpoint, self._log, self._progress = checkpoint, log, progress

    @property
    def history(self) -> History:
        """All records so far, a `pw.learning.History`."""
        return self.learner.history

    def posterior(self, *, at: At = "trained_weights", progress: bool = False) -> Laplace:
        """The posterior at the kept weights: `learner.posterior`.

        Args:
            at: The weights at which its evidence is taken, as in `pw.fit`.
            progress: Whether to show progress bars.

        Returns:
            A `pw.Laplace`.

        Raises:
            PeewitError: No hyper-step was taken yet.

        Example:
            >>> net = torch.nn.Linear(2, 3)
            >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            >>> pw.learning.train(net, (x, y), "classification", optimizer, epochs=2).finish().posterior()
            Laplace(D=9, N=60, Kron, ggn, Categorical)
        """
        return self.learner.posterior(at=at, progress=progress)

    def finish(self) -> Training:
        """Run all epochs that are left.

        Returns:
            Itself.

        Raises:
            NotFiniteError: The loss became NaN or infinite.

        Example:
            >>> net = torch.nn.Linear(2, 3)
            >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            >>> pw.learning.train(net, (x, y), "classification", optimizer, epochs=2).finish().epoch
            2
        """
        for _ in self:
            pass
        return self

    def __iter__(self) -> Iterator[LearningRecord]:
        """Train for the epochs that are left, and yield a record after each."""
        with StatusLine(self.epochs, self.epoch, self._progress) as status:
            while self.epoch < self.epochs:
                loss = self._train_epoch()
                for each in self._stepped:
                    each.step()
                self.epoch += 1
                record = self._record(loss)
                if self._checkpoint is not None:
                    write_run(self._checkpoint, self.learner, self.data, self._stepped, self.epoch)
                self._log.write(self.history)
                status.show(record)
                yield record

    def _record(self, loss: float) -> LearningRecord:
        if not self._due(self.epoch):
            return self.learner.note(epoch=self.epoch, loss=loss)
        try:
            return self.learner.step(epoch=self.epoch, loss=loss)
        except NotFiniteError as error:
            raise NotFiniteError(f"{error} This was seen after epoch {self.epoch}. {self._way_out(1)}") from error

    def _train_epoch(self) -> float:
        """One pass of training over the data, and its mean loss."""
        learner = self.learner
        learner.model.train()
        total, examples = torch.zeros((), dtype=torch.float64), 0
        for inputs, targets in Batches(self.data, learner.model):
            for optimizer in learner.optimizers:
                optimizer.zero_grad()
            loss = self._loss_of(call(learner.model, inputs), targets)
            self._objective(loss).backward()
            for optimizer in learner.optimizers:
                optimizer.step()
            total = total.to(loss.device) + loss.detach().double() * len(targets)
            examples += len(targets)
        mean = float(total) / examples
        if not math.isfinite(mean):
            raise NotFiniteError(f"The loss became {mean} in epoch {self.epoch + 1}. {self._way_out(0)}")
        return mean

    def _objective(self, loss: Tensor) -> Tensor:
        """What the gradient is taken of: the prior is in it where no hook adds its part."""
        return loss + self.learner.penalty() if self.learner.hook.decay == "loss" else loss

    def _loss_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (self.learner.loss if self._loss is None else self._loss)(outputs, targets)

    def _way_out(self, back: int) -> str:
        """What is still whole after so many epochs back, and what to do."""
        kept = "posterior() still has the kept weights. " if self.history.hyper_steps else ""
        saved = self.epoch - back if self._checkpoint is not None else 0
        held = f"{self._checkpoint} holds the state after epoch {saved}. " if saved else ""
        return f"{held}{kept}Lower the learning rate, or clip gradients in a loop of your own."


def train(
    model: nn.Module,
    data: Data,
    likelihood: LikelihoodName | Likelihood,
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    epochs: int,
    every: int = 5,
    burn_in: int | None = None,
    loss: TrainingLoss | None = None,
    scheduler: Any = None,
    batch_size: int = 64,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    log: str | os.PathLike[str] | None = None,
    tensorboard: str | os.PathLike[str] | None = None,
    progress: bool = False,
    **options: Any,
) -> Training:
    """Train a network while its prior precisions and noise are learnt by the evidence, without validation data.

    Nothing happens until you iterate over what it returns: every epoch then ends in a record.

    Args:
        model: The network.
        data: The training data, in any form that `pw.fit` takes. Tensors and a `Dataset` are shuffled anew in every
            epoch; a DataLoader comes as it is.
        likelihood: How targets are distributed given the outputs, as in `pw.fit`.
        optimizer: The optimizer of the network's weights, or a list of several; without a weight decay of its own.
        epochs: Number of passes over the data.
        every: Number of epochs between hyper-steps. The last epoch has one in any case.
        burn_in: Number of epochs before the first hyper-step. None for a tenth of them.
        loss: The loss to minimise, a function of outputs and targets that averages over the batch. None for the mean
            energy per example under the likelihood.
        scheduler: A learning rate scheduler, or a list of several, which step after every epoch.
        batch_size: Examples of a batch, where `data` are not in batches.
        checkpoint: A file for the state of the whole run, written after every epoch. None for no file.
        resume: Whether to go on from `checkpoint` if it exists. Without, an existing file is refused.
        log: A file for records as lines of JSON.
        tensorboard: A folder for TensorBoard.
        progress: Whether to show a line with the epoch and the last record.
        **options: Further options of `pw.learning.Learner`.

    Returns:
        A `pw.learning.Training`: iterate over it, then ask it for the posterior.

    Raises:
        PeewitError: An option is out of its range, the checkpoint exists already, or what `pw.learning.Learner` raises.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        >>> optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        >>> run = pw.learning.train(net, (x, y), "classification", optimizer, epochs=20, every=10)
        >>> for record in run:
        ...     if record.log_evidence is not None:
        ...         last = record.epoch
        >>> last, run.posterior()
        (20, Laplace(D=51, N=60, Kron, ggn, Categorical))
    """
    for name, value in (("epochs", epochs), ("every", every), ("batch_size", batch_size)):
        if not is_count(value):
            raise PeewitError(f"{name}={value!r} was given; expected a positive whole number.")
    first = -(-epochs // 10) if burn_in is None else burn_in
    if isinstance(first, bool) or not isinstance(first, int) or not 0 <= first <= epochs:
        raise PeewitError(f"burn_in={burn_in!r} was given; expected a whole number from 0 to epochs={epochs}.")
    stepped = check_stepped(scheduler)
    path = None if checkpoint is None else run_file(checkpoint, resume)
    learner = Learner(model, data, likelihood, optimizer, loss=loss, **options)
    run = Training(
        learner=learner,
        data=in_batches(data, learner.model, batch_size),
        loss=loss,
        epochs=epochs,
        due=lambda epoch: epoch == epochs or (epoch >= first and epoch % every == 0),
        stepped=stepped,
        checkpoint=path,
        log=Log(path=log, board=tensorboard, resume=resume),
        progress=progress,
    )
    if path is not None and path.exists():
        run.epoch = read_run(path, learner, run.data, stepped)
        if run.epoch > epochs:
            raise PeewitError(f"{path} is of a run with {run.epoch} epochs finished, and epochs={epochs} was given.")
    return run
