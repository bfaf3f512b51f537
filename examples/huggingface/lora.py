"""PEFT-LoRA: uncertain adapters on a Llama that stays as it is, and a file that holds the adapters' curvature alone.

Run it with `python examples/huggingface/lora.py`. It takes a few seconds.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import torch
from peft import LoraConfig, TaskType, get_peft_model
from reviews import SMALL, reviews, strange, tokenizer, train
from torch.utils.data import DataLoader
from transformers import DataCollatorWithPadding, LlamaConfig, LlamaForSequenceClassification

import peewit as pw


def main(epochs: int = 8) -> tuple[pw.Laplace, dict[str, float]]:
    """Train the adapters, fit, tune, save, load and predict; returns the posterior and what was printed."""
    torch.manual_seed(0)
    words = tokenizer()
    rows = [{**words(text), "labels": label} for text, label in reviews(240)]
    loader = DataLoader(rows, batch_size=24, collate_fn=DataCollatorWithPadding(words))
    base = LlamaForSequenceClassification(LlamaConfig(**SMALL, num_key_value_heads=2, num_labels=2))
    adapters = LoraConfig(task_type=TaskType.SEQ_CLS, r=4, target_modules=["q_proj", "v_proj", "down_proj"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of peft itself
        model = get_peft_model(base, adapters)
    model = train(model, loader, epochs)

    la = pw.fit(model, loader, "classification", weights="lora").tune(train=loader)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "adapters.safetensors"
        la.save(path)
        size, loaded = path.stat().st_size, pw.load(path, model)
    mean = {}
    for name, texts in {"usual": [text for text, _ in reviews(50, seed=2)], "strange": strange(50)}.items():
        mean[name] = loaded.predict(words(texts, padding=True, return_tensors="pt")).epistemic.mean().item()
    every = sum(weight.numel() for weight in model.parameters())
    print(f"{la}: {la.D:,} of {every:,} weights are uncertain, in a file of {size / 1024:.0f} KiB")
    print(f"epistemic uncertainty: {mean['usual']:.4f} nats; of sentences about other things {mean['strange']:.4f}")
    return la, mean


if __name__ == "__main__":
    main()
