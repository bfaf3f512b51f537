"""A causal language model: a small GPT-2 that knows where its sentences leave what it has learnt.

Labels are the inputs, as the collator makes them, and are shifted as the model itself shifts them. Run it with
`python examples/huggingface/next_tokens.py`. It takes a few seconds.
"""

from __future__ import annotations

import torch
from reviews import SMALL, reviews, strange, tokenizer, train
from torch.utils.data import DataLoader
from transformers import DataCollatorForLanguageModeling, GPT2Config, GPT2LMHeadModel

import peewit as pw


def main(epochs: int = 8) -> tuple[pw.Laplace, dict[str, float]]:
    """Train, fit, tune and predict; returns the posterior and what was printed."""
    torch.manual_seed(0)
    words = tokenizer()
    rows = [words(text) for text, _ in reviews(240)]
    loader = DataLoader(rows, batch_size=24, collate_fn=DataCollatorForLanguageModeling(words, mlm=False))
    size = SMALL["vocab_size"]
    config = GPT2Config(
        vocab_size=size,
        n_positions=24,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=2,
        eos_token_id=3,
        tie_word_embeddings=False,  # variances of a head of its own are exact, however many tokens there are
    )
    model = train(GPT2LMHeadModel(config), loader, epochs)

    la = pw.fit(model, loader, "classification", weights="last_layer").tune(train=loader)
    total = {"loss": 0.0, "labels": 0}
    with torch.no_grad():
        for batch in loader:
            count = int((batch["labels"][:, 1:] != -100).sum())
            total["loss"] += model(**batch).loss.item() * count
            total["labels"] += count
    mean = {}
    for name, texts in {"usual": [text for text, _ in reviews(50, seed=2)], "strange": strange(50)}.items():
        encoded = words(texts, padding=True, return_tensors="pt")
        pred = la.predict(encoded)
        mean[name] = pred.epistemic[encoded["attention_mask"].bool()].mean().item()
    seen = {**mean, "own loss": total["loss"], "energy": float(la.state.totals.energy)}
    print(f"{la}, shifted labels: {la.likelihood.shift}")
    print(f"the energy is {seen['energy']:.2f}; the model's own loss times its labels is {total['loss']:.2f}")
    print(f"epistemic uncertainty per token: {mean['usual']:.3f} nats; in other sentences {mean['strange']:.3f}")
    return la, seen


if __name__ == "__main__":
    main()
