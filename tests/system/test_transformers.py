"""Networks of transformers and peft, unwrapped, in batches as collators make them."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
import reference_dense as dense
import texts
from fitting import names_of, weights_of
from tables import relative
from texts import transformers

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Logits(nn.Module):
    """The logits alone, as the reference has them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)

    def forward(self, **inputs: Tensor) -> Tensor:
        """(N, ...)."""
        logits: Tensor = self.model(**inputs).logits
        return logits


def examples(**more: list[Any]) -> list[dict[str, Any]]:
    """Tokenised sentences with what else belongs to each."""
    encoded = texts.tokenizer()(texts.SENTENCES)
    return [
        {"input_ids": ids, "attention_mask": mask, **{name: values[number] for name, values in more.items()}}
        for number, (ids, mask) in enumerate(zip(encoded["input_ids"], encoded["attention_mask"], strict=True))
    ]


def loader(rows: list[dict[str, Any]], collator: Any, size: int = 4) -> torch.utils.data.DataLoader[Any]:
    """Batches of a collator, in the order of the sentences."""
    return torch.utils.data.DataLoader(rows, batch_size=size, collate_fn=collator)  # type: ignore[arg-type]


def next_labels(labels: Tensor) -> Tensor:
    """The label of the next position, by a loop."""
    result = torch.full_like(labels, -100)
    for n in range(labels.shape[0]):
        for t in range(labels.shape[1] - 1):
            result[n, t] = labels[n, t + 1]
    return result


def assert_dense(model: nn.Module, batches: list[Any], y: list[Tensor], likelihood: str = "classification") -> None:
    """A full posterior has the precision of dense loops over every batch."""
    model = copy.deepcopy(model).double()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        la = pw.fit(model, batches, likelihood, structure="full", curvature="ggn", prior=2.0)
    plain = Logits(model)
    names = [f"model.{name}" for name in names_of(model)]
    expected = 2.0 * torch.eye(la.D, dtype=torch.float64)
    energy = torch.zeros((), dtype=torch.float64)
    for batch, labels in zip(batches, y, strict=True):
        x = {name: value for name, value in batch.items() if name != "labels"}
        expected += dense.ggn(plain, x, labels, likelihood, names)
        energy += dense.energy(plain, x, labels, likelihood)
    v = torch.randn(3, la.D, dtype=torch.float64)
    assert relative(la.precision.mv(v), v @ expected) < 1e-7
    assert la.state.totals.energy == pytest.approx(float(energy), rel=1e-9)
    assert len(weights_of(model)) == la.D


def test_sentences() -> None:
    """BERT, batches with padding."""
    collator = transformers.DataCollatorWithPadding(texts.tokenizer())
    batches = list(loader(examples(labels=texts.LABELS), collator))
    model = texts.network("BertForSequenceClassification", "BertConfig", num_labels=2)
    assert len({batch["input_ids"].shape for batch in batches}) == 2
    assert_dense(model, batches, [batch["labels"] for batch in batches])


def test_tokens() -> None:
    """BERT that tags tokens, whose padding has the label -100: nothing is shifted."""
    tags = [[index % 3 for index in row["input_ids"]] for row in examples()]
    collator = transformers.DataCollatorForTokenClassification(texts.tokenizer())
    batches = list(loader(examples(labels=tags), collator))
    model = texts.network("BertForTokenClassification", "BertConfig", num_labels=3)
    assert_dense(model, batches, [batch["labels"] for batch in batches])


def test_causal_language_model() -> None:
    """GPT-2: labels are the inputs, shifted; its Conv1D has the linear rule."""
    collator = transformers.DataCollatorForLanguageModeling(texts.tokenizer(), mlm=False)
    batches = list(loader(examples()[:6], collator, 3))
    model = texts.network("GPT2LMHeadModel", "GPT2Config", n_embd=4, n_inner=6)
    assert_dense(model, batches, [next_labels(batch["labels"]) for batch in batches])
    la = pw.fit(model, batches, "classification")
    assert la.likelihood == pw.Categorical(shift=True)
    rules = {row.name: (row.rule, row.approximation) for row in la.coverage()}
    convolutions = [name for name in rules if name.rpartition(".")[0].endswith(("c_attn", "c_proj", "c_fc"))]
    assert len(convolutions) == 8
    assert {rules[name] for name in convolutions} == {("linear", "Kronecker (expand)")}


class Turned(nn.Module):
    """A linear layer in place of GPT-2's Conv1D."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(*layer.weight.shape)
        self.linear.load_state_dict({"weight": layer.weight.T, "bias": layer.bias})

    def forward(self, x: Tensor) -> Tensor:
        """(..., O)."""
        result: Tensor = self.linear(x)
        return result


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block"])
def test_conv1d_is_a_linear_layer(structure: str) -> None:
    """The same evidence as with `nn.Linear`, whatever the structure."""
    collator = transformers.DataCollatorForLanguageModeling(texts.tokenizer(), mlm=False)
    batches = list(loader(examples(), collator))
    model = texts.network("GPT2LMHeadModel", "GPT2Config").double()
    turned = copy.deepcopy(model)
    for block in turned.transformer.h:
        for module, name in (
            (block.attn, "c_attn"),
            (block.attn, "c_proj"),
            (block.mlp, "c_fc"),
            (block.mlp, "c_proj"),
        ):
            setattr(module, name, Turned(getattr(module, name)))
    options: dict[str, Any] = {"structure": structure, "curvature": "ggn"}
    turned.double()
    la = pw.fit(model, batches, "classification", **options)
    expected = pw.fit(turned, batches, "classification", **options)
    assert relative(la.log_evidence(), expected.log_evidence()) < 1e-9
    x = {name: value for name, value in batches[0].items() if name != "labels"}
    assert relative(la.predict(x).output_variance, expected.predict(x).output_variance) < 1e-8


def test_masked_language_model() -> None:
    """Labels stand where tokens were masked: nothing is shifted."""
    collator = transformers.DataCollatorForLanguageModeling(texts.tokenizer(), mlm_probability=0.5, seed=1)
    batches = list(loader(examples()[:4], collator))
    assert any(bool((batch["labels"] >= 0).any()) for batch in batches)
    model = texts.network("DistilBertForMaskedLM", "DistilBertConfig", dim=4, hidden_dim=6, n_layers=1, n_heads=2)
    assert_dense(model, batches, [batch["labels"] for batch in batches])


def test_predictions_of_batches() -> None:
    """A whole batch, its keywords, and a tokenizer's encoding are the same question; labels are not inputs."""
    collator = transformers.DataCollatorWithPadding(texts.tokenizer())
    (batch,) = loader(examples(labels=texts.LABELS), collator, 8)
    model = texts.network("BertForSequenceClassification", "BertConfig", num_labels=2)
    la = pw.fit(model, [batch], "classification")
    encoding = texts.tokenizer()(texts.SENTENCES, padding=True, return_tensors="pt")
    assert isinstance(encoding, transformers.BatchEncoding) and "labels" in batch
    x = {name: batch[name] for name in ("input_ids", "attention_mask")}
    expected = la.predict(x)
    assert torch.equal(la.predict(batch).probs, expected.probs)
    assert torch.equal(la.predict(**batch, link="mc").probs, la.predict(x, link="mc").probs)
    assert torch.equal(la.predict(encoding).output_mean, la.predict(**encoding).output_mean)
    assert torch.equal(la.functional(batch).mean, la.functional(x).mean)


def test_batches_of_a_trainer(tmp_path: Path) -> None:
    """The loader of a Trainer is data; a shuffled one too."""
    arguments = transformers.TrainingArguments(
        str(tmp_path), per_device_train_batch_size=3, report_to=[], use_cpu=True, dataloader_pin_memory=False
    )
    model = texts.network("BertForSequenceClassification", "BertConfig", num_labels=2).double()
    rows = examples(labels=texts.LABELS)
    collator = transformers.DataCollatorWithPadding(texts.tokenizer())
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, data_collator=collator)
    la = pw.fit(model.train(), trainer.get_train_dataloader(), "classification", structure="full", curvature="ggn")
    plain = pw.fit(model, list(loader(rows, collator)), "classification", structure="full", curvature="ggn")
    assert model.training and len(rows) == la.N
    assert relative(la.log_evidence(), plain.log_evidence()) < 1e-8


def test_regression_head() -> None:
    """One number per sentence, whose loss is the mean of squares."""
    values = [[0.1 * number] for number in range(8)]
    batches = list(loader(examples(labels=values), transformers.DataCollatorWithPadding(texts.tokenizer())))
    model = texts.network("BertForSequenceClassification", "BertConfig", num_labels=1)
    assert batches[0]["labels"].shape == (4, 1)
    assert_dense(model, batches, [batch["labels"] for batch in batches], "regression")


def test_several_labels_per_sentence() -> None:
    """Binary labels; the model's own loss is their mean cross entropy, and that of classes is another."""
    labels = [[float(number % 2), float(number % 3 == 0)] for number in range(8)]
    batches = list(loader(examples(labels=labels), transformers.DataCollatorWithPadding(texts.tokenizer())))
    options = {"num_labels": 2, "problem_type": "multi_label_classification"}
    model = texts.network("BertForSequenceClassification", "BertConfig", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        la = pw.fit(model, batches, "binary")
    with torch.no_grad():
        total = sum(float(model(**batch).loss) * batch["labels"].numel() for batch in batches)
    assert la.state.totals.energy == pytest.approx(total, rel=1e-5)
    for batch in batches:
        batch["labels"] = torch.stack([batch["labels"][:, 0], 1 - batch["labels"][:, 0]], 1)
    with pytest.warns(UserWarning, match="own loss on its first examples"):
        pw.fit(model, batches, "classification")


def test_lora() -> None:
    """Adapters of peft: their weights alone, and with the head that is trained beside them."""
    peft = pytest.importorskip("peft")
    model = texts.network("BertForSequenceClassification", "BertConfig", num_labels=2)
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"], init_lora_weights=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = peft.get_peft_model(model, config).eval()
    batches = list(loader(examples(labels=texts.LABELS), transformers.DataCollatorWithPadding(texts.tokenizer())))
    la = pw.fit(model, batches, "classification", weights="lora")
    adapters = [name for name, weight in model.named_parameters() if weight.requires_grad and "lora_" in name]
    assert set(la.space.names) == set(adapters) and la.D == 2 * 2 * (8 * 2)
    assert {row.rule for row in la.coverage() if row.name in adapters} == {"linear"}
    assert_dense(model, batches, [batch["labels"] for batch in batches])


def test_reward_model() -> None:
    """Pairs by the names that collators for rewards give them, and single sentences."""
    encoded = texts.tokenizer()(texts.SENTENCES, padding=True, return_tensors="pt")
    ids, mask = encoded["input_ids"], encoded["attention_mask"]
    batch = {
        "input_ids_chosen": ids[::2],
        "attention_mask_chosen": mask[::2],
        "input_ids_rejected": ids[1::2, :5],  # of another length
        "attention_mask_rejected": mask[1::2, :5],
    }
    model = texts.network("BertForSequenceClassification", "BertConfig", num_labels=1).double()
    la = pw.fit(model, [batch], "preference", structure="full", curvature="ggn")
    plain = Logits(model)
    names = [f"model.{name}" for name in names_of(model)]
    first, second = (
        {"input_ids": ids[::2], "attention_mask": mask[::2]},
        {
            "input_ids": ids[1::2, :5],
            "attention_mask": mask[1::2, :5],
        },
    )
    j = dense.jacobian(plain, first, names)[:, 0] - dense.jacobian(plain, second, names)[:, 0]
    p = torch.sigmoid(dense.outputs(plain, first) - dense.outputs(plain, second))
    expected = (j * p * (1 - p)).T @ j + torch.eye(la.D, dtype=torch.float64)
    v = torch.randn(2, la.D, dtype=torch.float64)
    assert relative(la.precision.mv(v), v @ expected) < 1e-7
    pred = la.predict(batch)
    assert isinstance(pred, pw.Binary) and pred.probs.shape == (4, 1)
    assert isinstance(la.predict(first), pw.Outputs) and la.predict(**first).mean.shape == (4, 1)


def test_encoder_and_decoder() -> None:
    """T5: its collator adds what the decoder reads; without it the message says so."""
    config = {"d_model": 4, "d_kv": 2, "d_ff": 6, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
    model = texts.network("T5ForConditionalGeneration", "T5Config", **config)
    rows = [{**row, "labels": row["input_ids"][:3]} for row in examples()[:4]]
    collator = transformers.DataCollatorForSeq2Seq(texts.tokenizer(), model=model)
    (batch,) = loader(rows, collator)
    assert bool((batch["labels"] == -100).any()) and "decoder_input_ids" in batch
    assert_dense(model, [batch], [batch["labels"]])
    assert pw.fit(model, [batch], "classification").predict(**batch).probs.shape == (4, 3, texts.SIZE)
    del batch["decoder_input_ids"]
    with pytest.raises(ValueError, match=r"needs 'decoder_input_ids' in the batch.*DataCollatorForSeq2Seq"):
        pw.fit(model, [batch], "classification")


SEQUENCES = {
    "BertForSequenceClassification": "BertConfig",
    "DistilBertForSequenceClassification": "DistilBertConfig",
    "RobertaForSequenceClassification": "RobertaConfig",
    "ElectraForSequenceClassification": "ElectraConfig",
    "LlamaForCausalLM": "LlamaConfig",
    "Qwen2ForCausalLM": "Qwen2Config",
    "GPTNeoXForCausalLM": "GPTNeoXConfig",
    "OPTForCausalLM": "OPTConfig",
}


@pytest.mark.parametrize("kind", SEQUENCES)
def test_architectures(kind: str) -> None:
    """No warning, no generic rule, and labels shifted in causal language models alone."""
    causal = kind.endswith("CausalLM")
    rows = examples() if causal else examples(labels=texts.LABELS)
    collator = transformers.DataCollatorWithPadding(texts.tokenizer())
    if causal:
        collator = transformers.DataCollatorForLanguageModeling(texts.tokenizer(), mlm=False)
    own = {
        "Distil": {"dim": 8, "hidden_dim": 12, "n_layers": 1, "n_heads": 2},
        "OPT": {"ffn_dim": 12},
        "Qwen2": {"num_key_value_heads": 2},
    }
    options = next((value for name, value in own.items() if kind.startswith(name)), {})
    options = {**options, "word_embed_proj_dim": 8} if kind.startswith("OPT") else options
    options = {**options, "max_position_embeddings": 24}  # Roberta counts from the padding token on
    model = texts.network(kind, SEQUENCES[kind], **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        la = pw.fit(model, list(loader(rows, collator)), "classification", curvature=pw.MonteCarlo(1))
    assert isinstance(la.likelihood, pw.Categorical) and (la.likelihood.shift is True) == causal
    assert not [row.name for row in la.coverage() if "generic" in row.rule]
