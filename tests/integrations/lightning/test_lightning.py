"""Training by Lightning with a learner: plain loops with a weight decay, and loops with a learner, as the reference."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import peewit as pw

pytest.importorskip("lightning")  # machines with a GPU may do without

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint

pytestmark = [
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
]
EXAMPLES, DECAY = 64, 2.0**-7  # whose product is a precision without rounding
Loss = Callable[[Tensor, Tensor], Tensor]


def network(outputs: int = 3) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, outputs)).double()


def data(outputs: int = 0) -> DataLoader[tuple[Tensor, ...]]:
    """Labels of three classes, or numbers."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(EXAMPLES, 4, generator=generator, dtype=torch.float64)
    y = x[:, :outputs].sin() if outputs else torch.arange(EXAMPLES) % 3
    return DataLoader(TensorDataset(x, y), batch_size=16)


class Module(pl.LightningModule):
    """A network with its loss and its optimizer."""

    def __init__(self, net: nn.Module, make: Callable[..., Any], loss: Loss = F.cross_entropy) -> None:
        super().__init__()
        self.net, self.make, self.loss = net, make, loss

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(self(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return self.make(self.parameters(), 0.0)


class Validated(Module):
    """The same with a validation."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self(batch[0])


class ByHand(Module):
    """The same with a step of its own, which is taken after every second batch."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        if batch_idx % 2 == 0:
            optimizer.zero_grad()
        self.manual_backward(self.loss(self(batch[0]), batch[1]) / 2)
        if batch_idx % 2 == 1:
            optimizer.step()


def trainer(callbacks: list[Any], epochs: int = 4, **options: Any) -> pl.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    checkpoints = any(isinstance(each, ModelCheckpoint) for each in callbacks)
    return pl.Trainer(max_epochs=epochs, callbacks=callbacks, enable_checkpointing=checkpoints, **{**quiet, **options})


def tripled(outputs: Tensor, targets: Tensor) -> Tensor:
    return 3 * F.cross_entropy(outputs, targets)


MAKERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda weights, decay: torch.optim.SGD(weights, lr=0.1, momentum=0.9, weight_decay=decay),
    "adam": lambda weights, decay: torch.optim.Adam(weights, lr=0.01, weight_decay=decay),
    "adamw": lambda weights, decay: torch.optim.AdamW(weights, lr=0.01, weight_decay=decay),
}


def plain(make: Callable[..., Any], decay: float, clip: float = 0, parts: int = 1, cast: bool = False) -> nn.Module:
    """A loop of torch's own, with a weight decay in the optimizer."""
    model = network()
    optimizer = make(model.parameters(), decay)
    model.train()
    for _ in range(4):
        for number, (x, y) in enumerate(data()):
            with torch.autocast("cpu", torch.bfloat16, enabled=cast, cache_enabled=False):
                loss = F.cross_entropy(model(x), y) / parts
            loss.backward()
            if number % parts == parts - 1:
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
    return model


def same(model: nn.Module, other: nn.Module, atol: float = 0.0) -> bool:
    pairs = zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.allclose(a.double(), b.double(), rtol=0, atol=atol) for a, b in pairs)


WAYS: dict[str, tuple[type[Module], dict[str, Any], dict[str, Any]]] = {
    "plain": (Module, {}, {}),
    "clipped": (Module, {"gradient_clip_val": 0.05}, {"clip": 0.05}),
    "accumulated": (Module, {"accumulate_grad_batches": 2}, {"parts": 2}),
    "bfloat16": (Module, {"precision": "bf16-mixed"}, {"cast": True}),
    "by hand": (ByHand, {}, {"parts": 2}),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("way", WAYS)
def test_a_prior_that_is_not_learnt_is_a_weight_decay_bit_for_bit(way: str, name: str) -> None:
    """Also where gradients are clipped: before the prior's is added, as before a weight decay's."""
    kind, given, by_hand = WAYS[way]
    model, make = network(), MAKERS[name]
    learning = pw.lightning.LearnerCallback("classification", every=2, rate=0.0, prior=EXAMPLES * DECAY, loss=1.0)
    trainer([learning], **given).fit(kind(model, make), data())
    expected = plain(make, DECAY, **by_hand)
    assert same(model, expected)
    assert not same(model, plain(make, 0.0, **by_hand), 1e-4)
    assert [record.epoch for record in learning.history] == [2, 4]


@pytest.mark.parametrize("way", WAYS)
def test_the_loss_is_read_from_the_first_step(way: str) -> None:
    kind, given, _ = WAYS[way]
    loss: Loss = lambda f, y: 3 * F.cross_entropy(f.double(), y)  # noqa: E731
    learning = pw.lightning.LearnerCallback("classification")
    trainer([learning], 1, **given).fit(kind(network(), MAKERS["sgd"], loss), data())
    expected = 1.5 if way == "by hand" else 3  # halved by the user, who adds two of them
    assert learning.learner.loss_factor == pytest.approx(expected, rel=0.03 if way == "bfloat16" else 1e-9)


def test_squared_errors_are_twice_the_energy_per_output() -> None:
    """One epoch of gradient steps by hand: of the mean square over examples and outputs, and of the prior beside it."""
    model, expected, noise, precision = network(2), network(2), 0.5, 3.0
    learning = pw.lightning.LearnerCallback(
        pw.Gaussian(noise), prior=precision, rate=0.0, network="net", parameters=["prior"]
    )
    trainer([learning], 1).fit(Module(model, MAKERS["sgd"], nn.MSELoss()), data(2))
    assert learning.learner.loss_factor == pytest.approx(2 / 2)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1, momentum=0.9)
    for x, y in data(2):
        optimizer.zero_grad()
        residual = y - expected(x)
        log_likelihood = -0.5 * residual.square().sum() / len(x) * EXAMPLES / noise**2  # of a batch, for all examples
        log_prior = -0.5 * precision * sum(weight.square().sum() for weight in expected.parameters())
        (-(log_likelihood + log_prior) / (EXAMPLES / noise**2) * 2 / 2).backward()  # in units of the mean square
        optimizer.step()
    assert same(model, expected, 1e-12)


def test_a_line_search_gets_the_objective_with_the_prior() -> None:
    """L-BFGS asks for the loss several times a step, against the same by hand."""
    model, expected, precision = network(), network(), 5.0
    make = lambda weights, _: torch.optim.LBFGS(weights, max_iter=4, line_search_fn="strong_wolfe")  # noqa: E731
    learning = pw.lightning.LearnerCallback("classification", prior=precision, rate=0.0, loss=1.0)
    trainer([learning], 2).fit(Module(model, make), data())
    optimizer = make(expected.parameters(), 0.0)
    for x, y in [*data(), *data()]:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            penalty = 0.5 * precision / EXAMPLES * sum(weight.square().sum() for weight in expected.parameters())
            loss = F.cross_entropy(expected(x), y) + penalty
            loss.backward()
            return loss

        optimizer.step(closure)
    assert same(model, expected, 1e-8)


def by_loop(model: nn.Module, **options: Any) -> pw.learning.Learner:
    """Eight epochs of a loop with a learner of its own."""
    optimizer = MAKERS["adam"](model.parameters(), 0.0)
    learner = pw.learning.Learner(model, data(), "classification", optimizer, loss=1.0, **options)
    for epoch in range(1, 9):
        model.train()
        for x, y in data():
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        if epoch in (3, 6, 8):
            learner.step(epoch=epoch)
    return learner


@pytest.mark.parametrize("options", [{}, {"structure": "diag", "prior": pw.Prior.layerwise()}], ids=["kron", "diag"])
def test_what_is_learnt_is_what_a_loop_learns(options: dict[str, Any]) -> None:
    model, expected = network(), network()
    learning = pw.lightning.LearnerCallback("classification", every=3, loss=1.0, **options)
    fitted = trainer([learning], 8)
    fitted.fit(Module(model, MAKERS["adam"]), data())
    learner = by_loop(expected, **options)
    assert same(model, expected)
    for record, other in zip(learning.history, learner.history, strict=True):
        assert (record.epoch, record.kept) == (other.epoch, other.kept)
        assert record.log_evidence == pytest.approx(other.log_evidence, rel=1e-12)
    assert torch.equal(learning.posterior().prior.precision, learner.posterior().prior.precision)
    logged = {name: float(value) for name, value in fitted.callback_metrics.items()}
    assert logged["learning/log_evidence"] == pytest.approx(learning.history[1].log_evidence, rel=1e-6)
    group = learning.history.groups[-1]
    assert logged[f"precision/{group}"] == pytest.approx(float(learning.history[1].precision[-1]), rel=1e-6)


@pytest.mark.parametrize("validation", [False, True])
def test_a_run_that_goes_on_is_the_run_that_never_stopped(tmp_path: Path, validation: bool) -> None:
    """From the trainer's own checkpoint, with a fresh module and callback; also if it is saved after a validation."""

    def run(epochs: int, path: str | None = None) -> tuple[nn.Module, Any, Any]:
        model = network()
        learning = pw.lightning.LearnerCallback("classification", every=2, burn_in=0)
        saving = ModelCheckpoint(tmp_path / f"{epochs} {path is None}", save_last=True, every_n_epochs=1)
        kind, loaders = (Validated, [data(), data()]) if validation else (Module, [data()])
        trainer([saving, learning], epochs).fit(kind(model, MAKERS["adam"], tripled), *loaders, ckpt_path=path)
        return model, learning, saving

    first = run(5)
    whole, expected, _ = run(8)
    model, learning, _ = run(8, first[2].last_model_path)
    assert [record.epoch for record in learning.history] == [2, 4, 6, 8]
    assert [record.log_evidence for record in learning.history] == [record.log_evidence for record in expected.history]
    assert same(model, whole)
    assert learning.learner.loss_factor == expected.learner.loss_factor == pytest.approx(3)
    assert float(learning.posterior().log_evidence()) == float(expected.posterior().log_evidence())


def test_a_second_fit_goes_on_and_a_new_trainer_begins_anew() -> None:
    model = network()
    learning = pw.lightning.LearnerCallback("classification", every=2)
    module, fitting = Module(model, MAKERS["adam"]), trainer([learning], 2)
    fitting.fit(module, data())
    precision = float(learning.history[-1].precision)
    fitting.fit_loop.max_epochs = 4
    fitting.fit(module, data())
    assert [record.epoch for record in learning.history] == [2, 4]
    assert float(learning.history[0].precision) == precision
    trainer([learning], 2).fit(module, data())
    assert [record.epoch for record in learning.history] == [2]


def test_early_stopping_has_a_last_step() -> None:
    class Stop(pl.Callback):
        def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            trainer.should_stop = trainer.current_epoch == 2

    learning = pw.lightning.LearnerCallback("classification", every=2)
    trainer([learning, Stop()], 9).fit(Module(network(), MAKERS["sgd"]), data())
    assert [record.epoch for record in learning.history] == [2, 3]


def test_curvature_has_data_of_its_own() -> None:
    """And batches of training any form; N is that of training."""

    class Named(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch["pictures"]
            return self.loss(self(x), y)

    loader = data()
    loader.collate_fn = lambda rows: {"pictures": tuple(torch.stack(column) for column in zip(*rows, strict=True))}
    x, y = next(iter(data()))
    learning = pw.lightning.LearnerCallback("classification", curvature_data=(x, y), loss=1.0)
    trainer([learning], 1).fit(Named(network(), MAKERS["sgd"]), loader)
    assert learning.learner.examples == EXAMPLES
    posterior = learning.posterior()
    measured = posterior.N
    assert measured == len(x)
    with pytest.raises(pw.PeewitError, match=r"For batches of another form give loss="):
        trainer([pw.lightning.LearnerCallback("classification", curvature_data=(x, y))], 1).fit(
            Named(network(), MAKERS["sgd"]), loader
        )


def hooks(optimizer: torch.optim.Optimizer) -> int:
    return len(optimizer._optimizer_step_pre_hooks)


def test_the_optimizer_is_plain_after_training_and_after_a_failure() -> None:
    module = Module(network(), MAKERS["sgd"])
    learning, fitting = pw.lightning.LearnerCallback("classification"), trainer([], 1)
    fitting.callbacks.append(learning)
    fitting.fit(module, data())
    assert hooks(fitting.optimizers[0]) == 0
    assert not module._forward_hooks

    class Broken(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.optimizer = self.optimizers().optimizer
            assert hooks(self.optimizer) == 1
            raise KeyError("broken")

    broken = Broken(network(), MAKERS["sgd"])
    with pytest.raises(KeyError, match="broken"):
        trainer([pw.lightning.LearnerCallback("classification")], 1).fit(broken, data())
    assert hooks(broken.optimizer) == 0
    assert not broken._forward_hooks


class Beside(Module):
    """Its loss is computed beside `forward`."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(self.net(batch[0]), batch[1])


def decaying(weights: Any, _: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(weights, weight_decay=0.01)


MISTAKES: dict[str, tuple[Callable[[], pl.LightningModule], dict[str, Any], str]] = {
    "a weight decay": (
        lambda: Module(network(), decaying),
        {},
        r"weight_decay=0.01 for 'net.0.weight'.*set it to 0. The prior precision that means the same is 0.64",
    ),
    "another loss": (
        lambda: Module(network(), MAKERS["sgd"], nn.MultiMarginLoss()),
        {},
        "not a multiple of the energy under Categorical",
    ),
    "no forward": (lambda: Beside(network(), MAKERS["sgd"]), {}, "ran 0 times in a training step"),
    "no such network": (lambda: Module(network(), MAKERS["sgd"]), {"network": "model"}, "no such module; it has net"),
    "targets that do not fit": (lambda: Module(network(2), MAKERS["sgd"]), {}, "class"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_are_named(what: str) -> None:
    make, options, message = MISTAKES[what]
    module = make()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(pw.PeewitError, match=message):
        trainer([pw.lightning.LearnerCallback("classification", **options)], 1).fit(module, data())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items() if "weight" in name)


def test_a_loss_that_turns_into_another_is_noticed() -> None:
    """At first all outputs are zero, and the gradient of smoothed labels is a multiple of that of plain ones."""
    model = network()
    nn.init.zeros_(model[-1].weight)
    nn.init.zeros_(model[-1].bias)
    module = Module(model, MAKERS["sgd"], nn.CrossEntropyLoss(label_smoothing=0.3))
    with pytest.raises(pw.PeewitError, match="not a multiple of the energy"):
        trainer([pw.lightning.LearnerCallback("classification", burn_in=1)], 3).fit(module, data())
    assert module.trainer.current_epoch == 1


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
def test_a_step_without_a_loss_is_passed_over() -> None:
    class Sparing(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
            loss = super().training_step(batch, batch_idx)
            return loss if batch_idx else None

    learning = pw.lightning.LearnerCallback("classification")
    trainer([learning], 1).fit(Sparing(network(), MAKERS["sgd"]), data())
    assert learning.learner.loss_factor == pytest.approx(1)


def test_a_network_inside_the_module_is_named() -> None:
    learning = pw.lightning.LearnerCallback("classification", network="net")
    trainer([learning], 1).fit(Beside(network(), MAKERS["sgd"]), data())
    assert learning.posterior().space.names[0] == "0.weight"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every=0 was given"),
        ({"burn_in": -1}, "burn_in=-1 was given"),
        ({"structur": "diag"}, "did you mean 'structure'"),
        ({"network": nn.Linear(1, 1)}, "network is a Linear; expected the name"),
    ],
    ids=str,
)
def test_options_are_checked_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pw.PeewitError, match=re.escape(message)):
        pw.lightning.LearnerCallback("classification", **options)


def test_the_state_of_another_prior_is_refused(tmp_path: Path) -> None:
    saving = ModelCheckpoint(tmp_path, save_last=True)
    trainer([saving, pw.lightning.LearnerCallback("classification")], 1).fit(Module(network(), MAKERS["sgd"]), data())
    other = pw.lightning.LearnerCallback("classification", prior=pw.Prior.layerwise())
    with pytest.raises(pw.MismatchError, match="make the learner with the same prior="):
        trainer([other], 2).fit(Module(network(), MAKERS["sgd"]), data(), ckpt_path=saving.last_model_path)


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda *_: 2)
    callback = pw.lightning.LearnerCallback("classification")
    with pytest.raises(pw.PeewitError, match="under DistributedDataParallel or FSDP yet"):
        callback.on_train_start(Started(), Module(network(), MAKERS["sgd"]))


class Started:
    """What a trainer has when training starts."""

    train_dataloader = data()
    global_step = 0
    optimizers: tuple[()] = ()


def test_the_older_package_works() -> None:
    """In which a module and a trainer are other classes."""
    older = pytest.importorskip("pytorch_lightning")
    kind = type("Older", (older.LightningModule,), dict(vars(Module)) | {"__init__": older.LightningModule.__init__})
    module = kind()
    module.net, module.make, module.loss = network(), MAKERS["adam"], F.cross_entropy
    learning = pw.lightning.LearnerCallback("classification", every=1)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    older.Trainer(max_epochs=2, callbacks=[learning], enable_checkpointing=False, **quiet).fit(module, data())
    assert [record.epoch for record in learning.history] == [1, 2]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(pw.lightning), "LearnerCallback", raising=False)
    monkeypatch.setattr(pw.lightning, "find_spec", lambda name: None)
    with pytest.raises(pw.MissingPackageError, match="needs Lightning, which is not installed: pip install lightning"):
        _ = pw.lightning.LearnerCallback
    with pytest.raises(AttributeError, match="it has LearnerCallback"):
        _ = pw.lightning.Learner


def test_lightning_is_loaded_when_it_is_asked_for() -> None:
    assert importlib.util.find_spec("lightning")
    assert dir(pw.lightning) == ["LearnerCallback"]
