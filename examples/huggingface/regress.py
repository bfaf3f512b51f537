"""A regression head: a small RoBERTa gives a score with an interval.

Run it with `python examples/huggingface/regress.py`. It takes a few seconds.
"""

from __future__ import annotations

import torch
from reviews import SMALL, reviews, score, tokenizer, train
from torch.utils.data import DataLoader
from transformers import DataCollatorWithPadding, RobertaConfig, RobertaForSequenceClassification

import peewit as pw


def main(epochs: int = 12) -> tuple[pw.Laplace, dict[str, float]]:
    """Train, fit, tune and predict; returns the posterior and what was printed."""
    torch.manual_seed(0)
    words = tokenizer()

    def loader(count: int, seed: int) -> DataLoader:
        """Reviews and scores that somebody gave, half a point off."""
        noise = 0.5 * torch.randn(count, generator=torch.Generator().manual_seed(seed))
        texts = [text for text, _ in reviews(count, seed)]
        rows = [{**words(text), "labels": [score(text) + float(off)]} for text, off in zip(texts, noise, strict=True)]
        return DataLoader(rows, batch_size=24, collate_fn=DataCollatorWithPadding(words))

    data, new = loader(240, 0), loader(200, 2)
    model = train(RobertaForSequenceClassification(RobertaConfig(**SMALL, num_labels=1)), data, epochs)

    la = pw.fit(model, data, "regression").tune(train=data)
    inside = []
    for batch in new:
        low, high = la.predict(batch).interval(0.9)  # labels are left out
        inside.append((low <= batch["labels"]) & (batch["labels"] <= high))
    low, high = la.predict(words("the film is really superb", return_tensors="pt")).interval(0.9)
    seen = {
        "covered": torch.cat(inside).float().mean().item(),
        "noise": float(la.likelihood.noise),
        "low": float(low),
        "high": float(high),
    }
    print(f"{la}, noise {seen['noise']:.2f}")
    print(f"the film is really superb: {seen['low']:.2f} to {seen['high']:.2f}")
    print(f"90 % intervals hold {seen['covered']:.0%} of new scores")
    return la, seen


if __name__ == "__main__":
    main()
