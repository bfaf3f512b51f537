"""Sentences, a tokenizer and small random networks of transformers: nothing is downloaded."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # remarks on special tokens of small vocabularies
os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

SENTENCES = [
    "the film was good",
    "a bad plot",
    "good",
    "the plot was very bad",
    "a very good film and a good plot",
    "bad film",
    "the film and the plot",
    "very very bad",
]
LABELS = [1, 0, 1, 0, 1, 0, 1, 0]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = sorted({word for sentence in SENTENCES for word in sentence.split()})
SIZE = len(SPECIAL) + len(WORDS)
SIZES: dict[str, Any] = {
    "vocab_size": SIZE,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
}
GPT2: dict[str, Any] = {
    "vocab_size": SIZE,
    "n_embd": 8,
    "n_layer": 1,
    "n_head": 2,
    "n_inner": 12,
    "n_positions": 16,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "pad_token_id": 0,
}


def tokenizer() -> Any:
    """One number for each word."""
    vocabulary = {word: number for number, word in enumerate(SPECIAL + WORDS)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def network(kind: str, config: str, seed: int = 0, **options: Any) -> Any:
    """A small network with random weights that are not small, by the names of its classes."""
    sizes = GPT2 if config == "GPT2Config" else SIZES
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, kind)(getattr(transformers, config)(**{**sizes, **options}))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()
