"""Film reviews that are made here, a tokenizer and a training loop: what the other scripts have in common.

Nothing is downloaded. In your code, the tokenizer and the network come from `from_pretrained`.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import PreTrainedTokenizerFast

GOOD, BAD = ("good", "fine", "great", "superb"), ("bad", "poor", "awful", "dull")
THINGS, ADVERBS = ("film", "plot", "cast", "music", "end"), ("very", "really", "quite")
OTHERS = ("tax", "law", "vote", "minister", "court", "late", "legal", "annual")  # in no review
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (*SPECIAL, "the", "is", "and", *GOOD, *BAD, *THINGS, *ADVERBS, *OTHERS)
SMALL = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 24,
    "pad_token_id": 0,
}


def tokenizer() -> PreTrainedTokenizerFast:
    """One number for each word."""
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    pad, unknown, first, between, mask = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token=pad,
        unk_token=unknown,
        cls_token=first,
        sep_token=between,
        mask_token=mask,
    )


def reviews(count: int, seed: int = 0) -> list[tuple[str, int]]:
    """Reviews with one or two opinions, and whether the film was liked: in nine of ten as the first opinion says."""
    drawn = random.Random(seed)
    made = []
    for number in range(count):
        opinions = []
        for liked in (number % 2, drawn.randrange(2))[: drawn.choice((1, 1, 2))]:
            adverb = drawn.choice(("", *(f"{adverb} " for adverb in ADVERBS)))
            opinions.append(f"the {drawn.choice(THINGS)} is {adverb}{drawn.choice(GOOD if liked else BAD)}")
        liked = number % 2 if drawn.random() < 0.9 else 1 - number % 2
        made.append((" and ".join(opinions), liked))
    return made


def score(text: str) -> float:
    """How good a review says that a film is: one point for each opinion, half a point more for an adverb."""
    total, weight = 0.0, 1.0
    for word in text.split():
        weight = 1.5 if word in ADVERBS else weight
        if word in GOOD + BAD:
            total, weight = total + (weight if word in GOOD else -weight), 1.0
    return total


def strange(count: int, seed: int = 1) -> list[str]:
    """Sentences about other things, in words that no review has."""
    drawn = random.Random(seed)
    return [f"the {drawn.choice(OTHERS[:5])} is {drawn.choice(OTHERS[5:])}" for _ in range(count)]


def train(model: nn.Module, loader: Any, epochs: int) -> nn.Module:
    """Your own loop; a Trainer does the same."""
    optimiser = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=4e-3)
    for _ in range(epochs):
        for batch in loader:
            optimiser.zero_grad()
            model(**batch).loss.backward()
            optimiser.step()
    return model.eval()
