"""Tagging: several yes-or-no labels per input, for documents that are counts of words.

Run it with `python examples/tagging.py`. It takes a few seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import peewit as pw

TAGS = ("sport", "politics", "science", "music")
WORDS_PER_TAG, UNUSED = 10, 10  # the last words of the vocabulary occur in no training document
VOCABULARY = len(TAGS) * WORDS_PER_TAG + UNUSED


def documents(n: int, length: int = 12) -> tuple[Tensor, Tensor]:
    """Counts of words (n, V) and tags (n, 4); a tagged document uses the words of its tags and some of the others."""
    tags = (torch.rand(n, len(TAGS)) < 0.4).float()
    rates = (0.15 + tags).repeat_interleave(WORDS_PER_TAG, 1)
    words = torch.multinomial(rates, length, replacement=True)
    return F.one_hot(words, VOCABULARY).sum(1).float(), tags


def main(steps: int = 200) -> tuple[pw.Laplace, dict[str, float]]:
    """Train, fit, tune and predict; returns the posterior and what was printed."""
    torch.manual_seed(0)
    x, y = documents(300)
    model = nn.Sequential(nn.Linear(VOCABULARY, 32), nn.GELU(), nn.Linear(32, len(TAGS)))
    # The decay of a prior precision of 1: training then ends at the mode that the posterior is built around.
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1 / y.numel())
    for _ in range(steps):
        optimiser.zero_grad()
        F.binary_cross_entropy_with_logits(model(x), y).backward()
        optimiser.step()

    la = pw.fit(model, (x, y), "binary").tune(train=(x, y))  # the same as pw.Bernoulli()

    new, truth = documents(500)
    pred = la.predict(new)
    strange = torch.zeros(1, VOCABULARY)
    strange[:, -UNUSED:] = 1.2  # twelve words that never occurred in training
    unsure = la.predict(strange)
    with torch.no_grad():
        plain = F.binary_cross_entropy_with_logits(model(new), truth)
    seen = {
        "accuracy": (pred.mode == truth).float().mean().item(),
        "nll": -pred.log_prob(truth).mean().item() / len(TAGS),
        "plain nll": plain.item(),
        "usual": pred.epistemic.mean().item(),
        "strange": unsure.epistemic.mean().item(),
    }
    print(f"{la}, prior precision {la.prior.precision.item():.3g}")
    print("the first document:", ", ".join(f"{t} {p:.0%}" for t, p in zip(TAGS, pred.probs[0].tolist(), strict=True)))
    print(f"{seen['accuracy']:.1%} of the tags are right; NLL per tag {seen['nll']:.3f}, plain {seen['plain nll']:.3f}")
    print(f"epistemic uncertainty per tag: {seen['usual']:.3f} nats; of words never seen: {seen['strange']:.3f}")
    return la, seen


if __name__ == "__main__":
    main()
