"""A reward model: fit to pairs of which one was preferred, and ask about single texts.

Run it with `python examples/huggingface/rewards.py`. It takes a few seconds.
"""

from __future__ import annotations

import torch
from reviews import SMALL, reviews, score, tokenizer
from torch.nn.functional import logsigmoid
from transformers import LlamaConfig, LlamaForSequenceClassification

import peewit as pw


def main(steps: int = 40) -> tuple[pw.Laplace, dict[str, float]]:
    """Train on pairs, fit, and predict for single texts and for pairs; returns the posterior and what was printed."""
    torch.manual_seed(0)
    words = tokenizer()
    texts = [text for text, _ in reviews(240)]
    tastes = torch.randn(240).tolist()  # people do not agree
    rated = sorted(zip(texts[::2], texts[1::2], tastes[::2], tastes[1::2], strict=True))
    pairs = [(a, b) if score(a) + s > score(b) + t else (b, a) for a, b, s, t in rated]
    chosen, rejected = (words(list(side), padding=True, return_tensors="pt") for side in zip(*pairs, strict=True))
    model = LlamaForSequenceClassification(LlamaConfig(**SMALL, num_key_value_heads=2, num_labels=1))
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        (-logsigmoid(model(**chosen).logits - model(**rejected).logits).mean()).backward()
        optimiser.step()

    # Pairs say nothing of a constant that is added to all rewards: a head with a bias would leave it out of `weights`.
    data = pw.Pair(chosen, rejected)
    la = pw.fit(model.eval(), data, "preference").tune(train=data)
    new = ["the film is really superb", "the plot is dull"]
    rewards = la.predict(words(new, padding=True, return_tensors="pt"))
    deviation = rewards.epistemic.sqrt()
    better = la.predict(pw.Pair(*(words(text, return_tensors="pt") for text in new))).probs.item()
    print(la)
    for text, value, off in zip(new, rewards.mean.flatten().tolist(), deviation.flatten().tolist(), strict=True):
        print(f"{text}: {value:.2f} ± {off:.2f}")
    print(f"the first is preferred to the second with probability {better:.2f}")
    first, second = rewards.mean.flatten().tolist()
    return la, {"better": better, "first": first, "second": second}


if __name__ == "__main__":
    main()
