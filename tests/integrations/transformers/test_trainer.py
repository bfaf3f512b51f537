"""Training by a `Trainer` with a learner: the same Trainer with a weight decay, and gradients by hand, as reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import IterableDataset, SequentialSampler, Subset

import peewit as pw

pytest.importorskip("transformers")  # machines with a GPU may do without
pytest.importorskip("accelerate")

from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

EXAMPLES, LENGTH, DECAY = 32, 5, 2.0**-7  # numbers of examples times decay are a precision without rounding
SIZES = {"vocab_size": 12, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
LONG = {"max_position_embeddings": 8}
QUIET = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False}


def classifier(outputs: int = 3) -> nn.Module:
    torch.manual_seed(1)
    return BertForSequenceClassification(BertConfig(**SIZES, **LONG, num_labels=outputs))  # with Dropout


def tagger() -> nn.Module:
    torch.manual_seed(1)
    return BertForTokenClassification(BertConfig(**SIZES, **LONG, num_labels=3))


def language_model() -> nn.Module:
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(**SIZES, **LONG, num_key_value_heads=2))


def rows(labels: str = "classes") -> list[dict[str, Any]]:
    """Texts with a label each, a number each, a tag for each token, or the tokens themselves."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 12, (EXAMPLES, LENGTH), generator=generator)
    targets = {
        "classes": (tokens[:, 0] % 3).tolist(),
        "numbers": tokens.float().mean(1).tolist(),
        "tags": (tokens % 3).tolist(),
        "tokens": tokens.tolist(),
    }[labels]
    return [{"input_ids": row, "labels": target} for row, target in zip(tokens.tolist(), targets, strict=True)]


class InOrder(Trainer):
    """Batches in the order of the data."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return SequentialSampler(self.train_dataset)


def trainer_of(
    model: nn.Module,
    folder: Path,
    decay: float = 0.0,
    data: Any = None,
    kind: type[Trainer] = InOrder,
    func: Any = None,
    **arguments: Any,
) -> Trainer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    settings = {"save_strategy": "no", "logging_strategy": "no", "num_train_epochs": 4, **QUIET, **arguments}
    return kind(
        model,
        TrainingArguments(str(folder), per_device_train_batch_size=8, **settings),
        train_dataset=rows() if data is None else data,
        optimizers=(optimizer, schedule),
        compute_loss_func=func,
    )


def learner_in(trainer: Trainer, likelihood: Any = "classification", **options: Any) -> Any:
    learning = pw.transformers.LearnerTrainerCallback(trainer, likelihood, **options)
    trainer.add_callback(learning)
    return learning


def same(model: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (InOrder, {"max_grad_norm": 0.05}),
        (InOrder, {"gradient_accumulation_steps": 2}),
        (InOrder, {"bf16": True}),
        (Trainer, {"num_train_epochs": 4}),
        (Trainer, {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}),
    ],
    ids=str,
)
def test_a_prior_that_is_not_learnt_is_a_weight_decay_bit_for_bit(
    kind: type[Trainer], arguments: dict[str, Any], tmp_path: Path
) -> None:
    """With Dropout and shuffled batches: what a learner draws, training does not notice."""
    model, expected, free = classifier(), classifier(), classifier()
    trainer = trainer_of(model, tmp_path, kind=kind, **arguments)
    learning = learner_in(trainer, every=2, rate=0.0, prior=EXAMPLES * DECAY, loss=1.0)
    trainer.train()
    trainer_of(expected, tmp_path, DECAY, kind=kind, **arguments).train()
    trainer_of(free, tmp_path, kind=kind, **arguments).train()
    assert same(model, expected)
    assert not same(model, free)
    assert [record.epoch for record in learning.history] == [2, 4]


def smoothed(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """Three times the cross-entropy, over all parts of a step."""
    return 3 * F.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch


class Squared(Trainer):
    """Computes its loss itself."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(input_ids=inputs["input_ids"])
        loss = 5 * (outputs.logits[:, 0] - inputs["labels"]).square().mean()
        return (loss, outputs) if return_outputs else loss


def gradients(trainer: Trainer) -> list[Tensor]:
    """Of the first step of the optimizer, as the Trainer leaves them."""
    seen: list[Tensor] = []

    class Note(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if not seen:
                seen.extend(weight.grad.clone() for weight in trainer.model.parameters() if weight.grad is not None)

    trainer.add_callback(Note())
    trainer.train()
    return seen


LOSSES: dict[str, tuple[Any, str, dict[str, Any], Any]] = {
    "a label each": (classifier, "classes", {}, "classification"),
    "a number each": (lambda: classifier(1), "numbers", {}, pw.Gaussian(1.0)),
    "a tag per token": (tagger, "tags", {}, "classification"),
    "the next token": (language_model, "tokens", {}, "classification"),
    "a function": (classifier, "classes", {"func": smoothed}, "classification"),
    "smoothed labels": (
        classifier,
        "classes",
        {"label_smoothing_factor": 0.1},
        pw.Categorical(label_smoothing=0.1),
    ),
    "a Trainer's own": (lambda: classifier(1), "numbers", {"kind": Squared}, pw.Gaussian(1.0)),
}


def energies(model: nn.Module, batch: dict[str, Tensor], what: str) -> Tensor:
    """Summed over the examples of a batch: minus the log-likelihood, by hand."""
    f, y = model(input_ids=batch["input_ids"]).logits, batch["labels"]
    if what in ("a number each", "a Trainer's own"):
        return 0.5 * (f[:, 0] - y).square().sum()
    if what == "the next token":
        f, y = f[:, :-1].flatten(0, 1), y[:, 1:].flatten()
    elif what == "a tag per token":
        f, y = f.flatten(0, 1), y.flatten()
    smoothing = 0.1 if what == "smoothed labels" else 0.0
    return F.cross_entropy(f, y, reduction="sum", label_smoothing=smoothing)


@pytest.mark.filterwarnings("ignore:The network's own loss on its first examples:peewit.FitWarning")
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("what", LOSSES)
def test_the_factor_of_the_loss_is_that_of_the_gradients_of_a_step(what: str, parts: int, tmp_path: Path) -> None:
    """Gradients of the Trainer's first step are c times those of the mean energy per example."""
    make, labels, arguments, likelihood = LOSSES[what]
    model = make().eval()
    for module in model.modules():
        module.train = lambda mode=True, module=module: module  # no Dropout
    before = {name: value.clone() for name, value in model.state_dict().items()}
    data = rows(labels)
    own = {"kind": arguments["kind"]} if "kind" in arguments else {}
    kind = type("Ordered", (InOrder, *own.values()), {}) if own else InOrder
    others = {name: value for name, value in arguments.items() if name != "kind"}
    trainer = trainer_of(
        model, tmp_path, data=data, kind=kind, gradient_accumulation_steps=parts, max_steps=2, max_grad_norm=0, **others
    )
    learning = learner_in(trainer, likelihood)
    theirs = gradients(trainer)
    model.load_state_dict(before)
    batch = {name: torch.tensor([row[name] for row in data[: 8 * parts]]) for name in data[0]}
    model.zero_grad()
    (energies(model, batch, what) / len(batch["labels"])).backward()
    factor = learning.learner.loss_factor
    ours = [factor * weight.grad for weight in model.parameters() if weight.grad is not None]
    assert sum(float(slope.square().sum()) for slope in theirs) > 1e-8
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-6) for a, b in zip(theirs, ours, strict=True))


def by_loop(model: nn.Module, **options: Any) -> pw.learning.Learner:
    """Six epochs of a loop with a learner of its own."""
    data = rows()
    batches = [
        {name: torch.tensor([row[name] for row in data[start : start + 8]]) for name in data[0]}
        for start in range(0, EXAMPLES, 8)
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    learner = pw.learning.Learner(model, batches, "classification", optimizer, loss=1.0, **options)
    model.train()
    for epoch in range(1, 7):
        for batch in batches:
            optimizer.zero_grad()
            model(**batch).loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if epoch in (3, 6):
            learner.step(epoch=epoch)
    return learner


def without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


@pytest.mark.parametrize("options", [{}, {"structure": "diag", "prior": pw.Prior.layerwise()}], ids=["kron", "diag"])
def test_what_is_learnt_is_what_a_loop_learns(options: dict[str, Any], tmp_path: Path) -> None:
    model, expected = without_dropout(classifier()), without_dropout(classifier())
    trainer = trainer_of(model, tmp_path, num_train_epochs=6)
    learning = learner_in(trainer, every=3, **options)
    trainer.train()
    learner = by_loop(expected, **options)
    assert learning.learner.loss_factor == pytest.approx(1, rel=1e-5)
    for record, other in zip(learning.history, learner.history, strict=True):
        assert record.log_evidence == pytest.approx(other.log_evidence, rel=1e-4)
        assert torch.allclose(record.precision, other.precision, rtol=1e-2)
    posterior = learning.posterior()
    assert sum(weight.numel() for weight in model.parameters()) == posterior.D
    logs = [entry for entry in trainer.state.log_history if "learning/log_evidence" in entry]
    assert [entry["learning/log_evidence"] for entry in logs] == [record.log_evidence for record in learning.history]
    assert [entry["epoch"] for entry in logs] == [3, 6]
    assert f"precision/{learning.history.groups[-1]}" in logs[0]


def test_loggers_get_what_is_learnt(tmp_path: Path) -> None:
    """Callbacks that write logs somewhere come before ours."""
    seen: list[dict[str, float]] = []

    class Board(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            seen.append(dict(logs))

    trainer = trainer_of(classifier(), tmp_path, num_train_epochs=1)
    trainer.callback_handler.callbacks.insert(0, Board())
    learner_in(trainer)
    trainer.train()
    assert any("learning/log_evidence" in logs for logs in seen)


def test_hyper_steps_are_counted_in_steps(tmp_path: Path) -> None:
    """In the middle of epochs, too, and a last one at the end."""
    model, expected = classifier(), classifier()
    trainer = trainer_of(model, tmp_path, num_train_epochs=3, kind=Trainer)
    learning = learner_in(trainer, every=5, unit="steps", burn_in=2, rate=0.0, prior=EXAMPLES * DECAY, loss=1.0)
    trainer.train()
    trainer_of(expected, tmp_path, DECAY, num_train_epochs=3, kind=Trainer).train()
    assert same(model, expected)
    steps = [entry["step"] for entry in trainer.state.log_history if "learning/log_evidence" in entry]
    assert steps == [5, 10, 12]
    assert [record.epoch for record in learning.history] == [1, 2, 3]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_run_that_goes_on_is_the_run_that_never_stopped(tmp_path: Path, elsewhere: bool) -> None:
    """From the Trainer's own checkpoint, with a fresh network, Trainer and callback."""

    def run(folder: str, epochs: int, path: str | None = None, known: bool = True) -> tuple[nn.Module, Any]:
        model = classifier()
        arguments = {"save_strategy": "epoch", "num_train_epochs": epochs}
        trainer = trainer_of(model, tmp_path / folder, **arguments)
        learning = learner_in(trainer, every=2, burn_in=0)
        if not known:
            learning.load_state_dict(torch.load(f"{path}/peewit_learner.pt"))
        trainer.train(resume_from_checkpoint=path)
        return model, learning

    whole, expected = run("whole", 6)
    run("first", 3)  # its last hyper-step comes after its last checkpoint
    model, learning = run("other" if elsewhere else "first", 6, str(tmp_path / "first/checkpoint-12"), not elsewhere)
    assert [record.epoch for record in learning.history] == [2, 4, 6]
    assert [record.log_evidence for record in learning.history] == [record.log_evidence for record in expected.history]
    assert same(model, whole)
    files = sorted(path.name for path in (tmp_path / "whole/checkpoint-12").iterdir())
    assert "peewit_learner.pt" in files and not any(name.endswith(".tmp") for name in files)


def test_a_checkpoint_without_a_learner_is_refused(tmp_path: Path) -> None:
    trainer_of(classifier(), tmp_path, save_strategy="epoch", num_train_epochs=1).train()
    trainer = trainer_of(classifier(), tmp_path, num_train_epochs=2)
    learner_in(trainer)
    with pytest.raises(pw.MismatchError, match=r"resumes at step 4, and .*checkpoint-4 has no peewit_learner.pt"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))


def test_a_second_training_begins_anew(tmp_path: Path) -> None:
    """With the same optimizer, which has one learner at a time."""
    trainer = trainer_of(classifier(), tmp_path, num_train_epochs=1)
    learning = learner_in(trainer)
    trainer.train()
    assert not trainer.optimizer.optimizer._optimizer_step_pre_hooks
    trainer.train()
    assert [record.hyper_step for record in learning.history] == [1]


def test_the_passes_of_a_learner_do_not_change_the_order_of_training(tmp_path: Path) -> None:
    """Accelerate's loaders count their passes."""
    model, expected = classifier(), classifier()
    trainer = trainer_of(model, tmp_path, kind=Trainer, accelerator_config={"use_seedable_sampler": True})
    learner_in(trainer, rate=0.0, prior=EXAMPLES * DECAY, loss=1.0, share=0.5, curvature="fisher")
    trainer.train()
    trainer_of(expected, tmp_path, DECAY, kind=Trainer, accelerator_config={"use_seedable_sampler": True}).train()
    assert same(model, expected)


class Endless(IterableDataset[dict[str, Any]]):
    def __iter__(self) -> Any:
        return iter(rows())


class Some(Trainer):
    """Trains on a part of its data."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return SequentialSampler(Subset(self.train_dataset, range(8)))


MISTAKES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a weight decay": (
        {"decay": 0.01},
        {},
        "weight_decay=0.01 for 'bert.embeddings.word_embeddings.weight'.*The prior precision that means the same",
    ),
    "another likelihood": ({}, {"likelihood": "binary"}, "target|labels"),
    "smoothed labels": (
        {"label_smoothing_factor": 0.3},
        {},
        r"label_smoothing_factor=0.3, and .*expected pw.Categorical\(label_smoothing=0.3\)",
    ),
    "another loss": (
        {"func": lambda outputs, labels, num_items_in_batch=None: F.multi_margin_loss(outputs.logits, labels)},
        {},
        "not a multiple of the energy under Categorical.*Give the likelihood that the loss belongs to",
    ),
    "no length": ({"data": Endless(), "max_steps": 2}, {}, "on an unknown number of the examples of a Endless"),
    "a part of the data": ({"kind": Some}, {}, "trains on 8 of the examples of a list.*give the examples as curvature"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_are_named(what: str, tmp_path: Path) -> None:
    arguments, options, message = MISTAKES[what]
    trainer = trainer_of(classifier(), tmp_path, **arguments)
    learning = learner_in(trainer, **options)
    with pytest.raises(pw.PeewitError, match=message):
        trainer.train()
    assert learning.history == pw.learning.History()


def test_several_gpus_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(classifier(), tmp_path)
    learning = learner_in(trainer)
    monkeypatch.setattr(TrainingArguments, "n_gpu", 2)
    with pytest.raises(pw.PeewitError, match="under DistributedDataParallel or FSDP yet"):
        learning.on_train_begin(trainer.args, trainer.state, trainer.control)


def test_options_are_checked_at_once(tmp_path: Path) -> None:
    trainer = trainer_of(classifier(), tmp_path)
    with pytest.raises(pw.PeewitError, match="unit='epoch' is not known; did you mean 'epochs'"):
        pw.transformers.LearnerTrainerCallback(trainer, "classification", unit="epoch")
    with pytest.raises(pw.PeewitError, match="did you mean 'structure'"):
        pw.transformers.LearnerTrainerCallback(trainer, "classification", structur="diag")
    with pytest.raises(pw.ArgumentTypeError, match=r"trainer is a str; expected a transformers\.Trainer"):
        pw.transformers.LearnerTrainerCallback("classification", "classification")
    with pytest.raises(pw.PeewitError, match=r"no learner before training begins: call trainer.add_callback"):
        pw.transformers.LearnerTrainerCallback(trainer, "classification").posterior()


def test_what_is_learnt_is_written_as_plain_numbers(tmp_path: Path) -> None:
    """The Trainer's own state is a file of JSON."""
    trainer = trainer_of(classifier(), tmp_path, save_strategy="epoch", num_train_epochs=2)
    learner_in(trainer)
    trainer.train()
    state = json.loads((tmp_path / "checkpoint-8/trainer_state.json").read_text())
    assert any("learning/log_evidence" in entry for entry in state["log_history"])


@pytest.mark.parametrize("name", ["transformers", "accelerate"])
def test_a_missing_package_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(pw.transformers), "LearnerTrainerCallback", raising=False)
    monkeypatch.setattr(pw.transformers, "find_spec", lambda package: None if package == name else object())
    with pytest.raises(pw.MissingPackageError, match=f"needs {name}, which is not installed: pip install {name}"):
        _ = pw.transformers.LearnerTrainerCallback
    with pytest.raises(AttributeError, match="it has LearnerTrainerCallback"):
        _ = pw.transformers.Learner
    assert dir(pw.transformers) == ["LearnerTrainerCallback"]
