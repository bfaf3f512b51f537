"""Trainer and collators: train with a Trainer, then fit to the loader that it trained with.

Run it with `python examples/huggingface/trainer.py`. It takes a few seconds.
"""

from __future__ import annotations

import tempfile

import torch
from reviews import SMALL, reviews, tokenizer
from transformers import (
    DataCollatorWithPadding,
    ElectraConfig,
    ElectraForSequenceClassification,
    Trainer,
    TrainingArguments,
)

import peewit as pw


def main(epochs: int = 6) -> tuple[pw.Laplace, dict[str, float]]:
    """Train, fit, tune and evaluate; returns the posterior and what was printed."""
    torch.manual_seed(0)
    words = tokenizer()
    rows, held = ([{**words(text), "labels": label} for text, label in reviews(*each)] for each in ((240, 0), (120, 1)))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=epochs,
            learning_rate=4e-3,
            per_device_train_batch_size=24,
            per_device_eval_batch_size=40,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
        )
        model = ElectraForSequenceClassification(ElectraConfig(**SMALL, embedding_size=32, num_labels=2))
        trainer = Trainer(
            model, arguments, train_dataset=rows, eval_dataset=held, data_collator=DataCollatorWithPadding(words)
        )
        trainer.train()

        la = pw.fit(trainer.model, trainer.get_train_dataloader(), "classification")
        la = la.tune(validation=trainer.get_eval_dataloader())
        report = pw.evaluate(la, trainer.get_eval_dataloader(), baselines="plain")
    scores = {method.name: method.metrics["nll"].value for method in report.methods}
    print(la)
    print(", ".join(f"{name}: NLL {value:.4f}" for name, value in scores.items()))
    return la, scores


if __name__ == "__main__":
    main()
