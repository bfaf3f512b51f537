"""Token classification: a small DistilBERT marks what a review speaks of; padding has no label.

Run it with `python examples/huggingface/tag_tokens.py`. It takes a few seconds.
"""

from __future__ import annotations

import torch
from reviews import ADVERBS, BAD, GOOD, SMALL, THINGS, reviews, tokenizer, train
from torch.utils.data import DataLoader
from transformers import DataCollatorForTokenClassification, DistilBertConfig, DistilBertForTokenClassification

import peewit as pw

TAGS = ("other", "thing", "opinion")


def tags(text: str) -> list[int]:
    """One label for each word; nobody labelled adverbs."""
    return [
        -100 if word in ADVERBS else 1 if word in THINGS else 2 if word in GOOD + BAD else 0 for word in text.split()
    ]


def main(epochs: int = 4) -> tuple[pw.Laplace, dict[str, float]]:
    """Train, fit, tune and predict; returns the posterior and what was printed."""
    torch.manual_seed(0)
    words = tokenizer()
    rows = [{**words(text), "labels": tags(text)} for text, _ in reviews(200)]
    loader = DataLoader(rows, batch_size=20, collate_fn=DataCollatorForTokenClassification(words))
    config = DistilBertConfig(
        vocab_size=SMALL["vocab_size"], dim=32, hidden_dim=64, n_layers=2, n_heads=4, num_labels=len(TAGS)
    )
    model = train(DistilBertForTokenClassification(config), loader, epochs)

    la = pw.fit(model, loader, "classification").tune(train=loader)
    labels = sum(int((batch["labels"] != -100).sum()) for batch in loader)
    right = [
        int(la.predict(batch).argmax[batch["labels"] == tag].eq(tag).sum()) for batch in loader for tag in range(3)
    ]
    text = "the plot is really dull"
    pred = la.predict(words(text, return_tensors="pt"))
    seen = {"accuracy": sum(right) / labels, "labels": labels}
    print(f"{la}, {labels} labelled tokens, {seen['accuracy']:.1%} of them tagged right")
    print(f"{text}:", " ".join(TAGS[tag] for tag in pred.argmax[0]))
    print("how sure:", " ".join(f"{p:.2f}" for p in pred.probs[0].max(-1).values))
    return la, seen


if __name__ == "__main__":
    main()
