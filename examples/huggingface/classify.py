"""Sequence classification: a small BERT says whether a review is good, and how sure it is.

Run it with `python examples/huggingface/classify.py`. It takes a few seconds.
"""

from __future__ import annotations

import torch
from reviews import SMALL, reviews, strange, tokenizer, train
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, DataCollatorWithPadding

import peewit as pw


def main(epochs: int = 6) -> tuple[pw.Laplace, dict[str, float]]:
    """Train, fit, tune and predict; returns the posterior and what was printed."""
    torch.manual_seed(0)
    words = tokenizer()
    rows = [{**words(text), "labels": label} for text, label in reviews(240)]
    loader = DataLoader(rows, batch_size=24, collate_fn=DataCollatorWithPadding(words))
    model = train(BertForSequenceClassification(BertConfig(**SMALL, num_labels=2)), loader, epochs)

    la = pw.fit(model, loader, "classification").tune(train=loader)

    new = reviews(200, seed=2)
    usual = la.predict(words([text for text, _ in new], padding=True, return_tensors="pt"))
    other = la.predict(**words(strange(50), padding=True, return_tensors="pt"))
    truth = torch.tensor([label for _, label in new])
    seen = {
        "accuracy": (usual.argmax == truth).float().mean().item(),
        "usual": usual.epistemic.mean().item(),
        "strange": other.epistemic.mean().item(),
    }
    print(la)
    print(f"{seen['accuracy']:.1%} of new reviews are classified right")
    print(f"epistemic uncertainty: {seen['usual']:.4f} nats; of sentences about other things {seen['strange']:.4f}")
    return la, seen


if __name__ == "__main__":
    main()
