"""A small pre-norm transformer on questions (TREC), or on the rows of images if the text is not available.

    python examples/evidence/transformer.py --data DIR

Each LayerNorm sees the sum of all earlier outputs in the residual stream. Predictions stay the same only if the
embeddings and the outputs of all blocks are scaled together; no single layer is scale-invariant.
"""

from __future__ import annotations

import torch
from common import BASIC, Row, cross_entropy, finish, folder, options, train
from readers import Task, digits, questions
from torch import Tensor, nn


class Block(nn.Module):
    """Attention and two linear layers, each behind a LayerNorm and beside a short cut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        """(B, T, width), and a mask (B, T) of the positions that are not padding."""
        parts = self.query_key_value(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind()
        scores = query @ key.mT / key.shape[-1] ** 0.5
        scores = scores.masked_fill(~there[:, None, None], -1e4)
        x = x + self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
        return x + self.narrow(nn.functional.gelu(self.wide(self.norm2(x))))


class Transformer(nn.Module):
    """Words (B, T) or rows of images (B, 1, T, 28) -> (B, classes)."""

    def __init__(self, words: int, length: int, classes: int, width: int = 32, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width) if words else nn.Linear(28, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T) -> (B, classes), from the mean over positions."""
        rows = x if x.dim() == 2 else x[:, 0]
        there = x != 0 if x.dim() == 2 else torch.ones(rows.shape[:2], dtype=torch.bool, device=x.device)
        stream = self.embedding(rows) + self.position
        for block in self.blocks:
            stream = block(stream, there)
        weight = there[..., None].to(stream)
        return self.head((self.norm(stream) * weight).sum(1) / weight.sum(1))


def data(asked_folder: object, quick: bool) -> tuple[Task, int]:
    """The task, and the size of the vocabulary (0 for rows of images)."""
    if asked_folder is None:
        return digits(None), 0
    return questions(asked_folder, least=20 if quick else 3)  # type: ignore[arg-type]


def main(arguments: list[str] | None = None) -> list[Row]:
    """Train, compare, print and draw."""
    asked = options(__doc__).parse_args(arguments)
    task, words = data(folder(asked, "text"), asked.quick)
    task = (task.cut(40, 30) if asked.quick else task.cut(asked.images or 800, 2_000 if asked.images else 500)).to(
        asked.device
    )
    torch.manual_seed(asked.seed)
    length = task.train[0].shape[-2] if words == 0 else task.train[0].shape[1]
    model = Transformer(words, length, 10 if words == 0 else 6, depth=1 if asked.quick else 2).to(asked.device)
    train(model, task.train, cross_entropy, epochs=10 if asked.quick else 25, rate=3e-3, decay=0.01)
    return finish(asked, "transformer", model, task, "Transformer, pre-norm", ways=BASIC)


if __name__ == "__main__":
    main()
