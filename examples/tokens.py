"""Tokens: a small GPT with tied embedding and head, and ignored labels where the next token is unpredictable.

Run it with `python examples/tokens.py`. It takes a few seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import peewit as pw

VOCABULARY, LENGTH = 12, 6


class GPT(nn.Module):
    """Causal transformer blocks between an embedding and a head that share one weight."""

    def __init__(self, width: int = 24, depth: int = 1) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        block = nn.TransformerEncoderLayer(width, 2, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        return self.head(self.blocks(x, mask=mask, is_causal=True))


def counting(n: int, steps: list[int]) -> tuple[Tensor, Tensor]:
    """Sequences (n, T) that go up by one of `steps`, one token in ten wrong, and the next tokens (n, T)."""
    start = torch.randint(VOCABULARY, (n,))
    step = torch.tensor(steps)[torch.randint(len(steps), (n,))]
    text = (start[:, None] + step[:, None] * torch.arange(LENGTH + 1)) % VOCABULARY
    slip = torch.rand(text.shape) < 0.1
    text = torch.where(slip, torch.randint(VOCABULARY, text.shape), text)
    target = text[:, 1:].clone()
    target[:, 0] = -100  # one token does not determine the step: the first position has nothing to learn
    return text[:, :-1], target


def main(epochs: int = 120) -> tuple[pw.Laplace, dict[str, float]]:
    """Train, fit, tune and predict; returns the posterior and what was printed."""
    torch.manual_seed(0)
    x, y = counting(300, [1, 2, 3])
    model = GPT()
    # The decay of a prior precision of 1: training then ends at the mode that the posterior is built around.
    decay = 1 / int((y != -100).sum())
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=decay)
    for _ in range(epochs):
        optimiser.zero_grad()
        F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100).backward()
        optimiser.step()

    # The last layer is the shared weight, so the embedding is uncertain too.
    la = pw.fit(model, (x, y), "classification", weights="last_layer").tune(train=(x, y))

    new, truth = counting(50, [1, 2, 3])
    pred, strange = la.predict(new), la.predict(counting(50, [5])[0])
    labelled = truth != -100
    with torch.no_grad():
        plain = F.cross_entropy(model(new).flatten(0, 1), truth.flatten(), ignore_index=-100)
    seen = {
        "accuracy": (pred.argmax == truth)[labelled].float().mean().item(),
        "nll": -pred.log_prob(truth).sum().item() / int(labelled.sum()),
        "plain nll": plain.item(),
        "usual": pred.epistemic[:, 1:].mean().item(),
        "strange": strange.epistemic[:, 1:].mean().item(),
    }
    rule = la.coverage()["tokens.weight"].rule
    print(f"{la}, prior precision {la.prior.precision.item():.3g}; the shared weight: {rule}")
    print(
        f"next-token probabilities {tuple(pred.probs.shape)}, right for {seen['accuracy']:.1%} of the labelled tokens"
    )
    print(f"NLL per token {seen['nll']:.3f}, plain {seen['plain nll']:.3f}")
    print(f"epistemic uncertainty per token: {seen['usual']:.3f} nats; in steps never seen: {seen['strange']:.3f}")
    return la, seen


if __name__ == "__main__":
    main()
