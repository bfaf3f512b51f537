"""The architectures: networks of timm and transformers at their usual sizes, with random weights and inputs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

CLASSES = 10  # of images and sounds
LABELS = 2  # of texts
TOKENS = 128
SMALL_TOKENS = 16
SMALL_PIXELS = 64
SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 1000,
}

Options = dict[str, Any]
Batch = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One network of a library, and the inputs that it takes."""

    name: str  # of the network in timm, of the class in transformers
    library: str  # "timm" or "transformers"
    what: str  # in the table
    inputs: str  # a row of INPUTS
    task: str = "classes"  # "classes", "tokens", "next tokens", "pixels"
    config: str = ""  # the class of its configuration in transformers; that of the name's first word where empty
    options: Options = field(default_factory=dict)  # of its configuration
    small: Options | None = None  # those that make it small enough for a CPU; None where there are none
    size: int = 224  # pixels

    def built(self, small: bool) -> str:
        """The name of the network that is built: a smaller one of the same kind may stand for it."""
        return str(self.chosen(small).get("name", self.name)).rpartition(":")[2]

    def chosen(self, small: bool) -> Options:
        """The options of its configuration."""
        return {**self.options, **((self.small or {}) if small else {})}

    def build(self, small: bool = False) -> nn.Module:
        """The network in evaluation mode, with weights as after some training: no gradient is zero everywhere."""
        torch.manual_seed(0)
        library = importlib.import_module(self.library)
        chosen = self.chosen(small)
        if self.library == "timm":
            # A smaller network of the same kind, or the class of a network whose name takes no options.
            name = chosen.pop("name", self.name)
            file, _, kind = name.partition(":")
            make = getattr(importlib.import_module(f"timm.models.{file}"), kind) if kind else library.create_model
            model = make(**({} if kind else {"model_name": name}), num_classes=CLASSES, **chosen)
        else:
            config = getattr(library, self.config)(**chosen)
            model = getattr(library, self.name)(config)
        return roughened(model).eval()

    def batch(self, examples: int, small: bool = False, seed: int = 0) -> Batch:
        """Inputs and labels by the names of the network's arguments; timm's are `x` and `labels`."""
        generator = torch.Generator().manual_seed(seed)
        inputs = INPUTS[self.inputs](self, examples, small, generator)
        return {**inputs, "labels": self.labels(examples, inputs, small, generator)}

    def labels(self, examples: int, inputs: Batch, small: bool, generator: torch.Generator) -> Tensor:
        """One label per example, token or pixel; causal language models shift the tokens themselves."""
        if self.task == "next tokens":
            return inputs["input_ids"].clone()
        if self.task == "tokens":
            return torch.randint(LABELS, inputs["input_ids"].shape, generator=generator)
        if self.task == "pixels":
            side = inputs["pixel_values"].shape[-1] // 4
            return torch.randint(CLASSES, (examples, side, side), generator=generator)
        classes = LABELS if self.inputs == "text" else CLASSES
        return torch.randint(classes, (examples,), generator=generator)


def roughened(model: nn.Module) -> nn.Module:
    """Weights that begin as constants get noise, and batch norms the statistics of their inputs are left as they are.

    Libraries begin scales of residual branches at zero: all gradients behind them would be zero too.
    """
    with torch.no_grad():
        for weight in model.parameters():
            if weight.numel() > 1 and weight.is_floating_point() and bool((weight == weight.flatten()[0]).all()):
                weight.add_(0.1 * torch.randn_like(weight))
    return model


def settled(model: nn.Module, batch: Batch) -> None:
    """Give batch norms the statistics of a batch; without them activations of random networks grow or vanish."""
    norms = [each for each in model.modules() if isinstance(each, _BatchNorm)]
    if not norms:
        return
    momenta = [each.momentum for each in norms]
    for each in norms:
        each.train().momentum = 1.0
    with torch.no_grad():
        forward(model, batch)
    for each, momentum in zip(norms, momenta, strict=True):
        each.eval().momentum = momentum


def forward(model: nn.Module, batch: Batch) -> Tensor:
    """The outputs, labels left out."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    made = model(inputs["x"]) if "x" in inputs else model(**inputs)
    logits: Tensor = made if isinstance(made, Tensor) else made["logits"]
    return logits


def images(architecture: Architecture, examples: int, small: bool, generator: torch.Generator) -> Batch:
    """Three channels."""
    chosen = architecture.chosen(small)
    side = chosen.get("image_size", chosen.get("img_size", SMALL_PIXELS if small else architecture.size))
    name = "x" if architecture.library == "timm" else "pixel_values"
    return {name: torch.randn(examples, 3, side, side, generator=generator)}


def text(architecture: Architecture, examples: int, small: bool, generator: torch.Generator) -> Batch:
    """Token numbers without padding, the last one an end."""
    length = SMALL_TOKENS if small else TOKENS
    size = SMALL["vocab_size"] if small else 30000
    ids = torch.randint(5, size, (examples, length), generator=generator)
    ids[:, -1] = 1
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def mel(architecture: Architecture, examples: int, small: bool, generator: torch.Generator) -> Batch:
    """Log-mel spectra of 30 seconds."""
    chosen = architecture.chosen(small)
    length = 2 * chosen.get("max_source_positions", 1500)
    return {"input_features": torch.randn(examples, 80, length, generator=generator)}


def spectrogram(architecture: Architecture, examples: int, small: bool, generator: torch.Generator) -> Batch:
    """Frames of 128 mel bins."""
    chosen = architecture.chosen(small)
    return {"input_values": torch.randn(examples, chosen.get("max_length", 1024), 128, generator=generator)}


def wave(architecture: Architecture, examples: int, small: bool, generator: torch.Generator) -> Batch:
    """A second of sound."""
    return {"input_values": torch.randn(examples, 3200 if small else 16000, generator=generator)}


INPUTS = {
    "images": images,
    "text": text,
    "mel": mel,
    "spectrogram": spectrogram,
    "wave": wave,
}


def vision(name: str, what: str, size: int = 224, /, **small: Any) -> Architecture:
    """A network of timm; `small` holds the options of a small one."""
    return Architecture(name=name, library="timm", what=what, inputs="images", size=size, small=small or None)


def hugging(name: str, what: str, config: str, options: Options | None = None, **more: Any) -> Architecture:
    """A network of transformers; texts where nothing else is said."""
    inputs = more.pop("inputs", "text")
    classes = LABELS if inputs == "text" else CLASSES
    named = {} if more.get("task") == "next tokens" else {"num_labels": classes}
    chosen = {**named, **(options or {})}
    small = more.pop("small", SMALL)
    return Architecture(
        name=name, library="transformers", what=what, inputs=inputs, config=config, options=chosen, small=small, **more
    )


SMALL_VIT = {"embed_dim": 64, "depth": 2, "num_heads": 4, "img_size": 64}
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
GPT2_SMALL = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_inner": 128, "vocab_size": 1000}
IMAGE_SMALL = {"image_size": 32, "patch_size": 8, **{k: v for k, v in SMALL.items() if k != "vocab_size"}}
# Networks that one run of limited time should have come first: they are measured in this order.
ARCHITECTURES = (
    vision("resnet50", "ResNet-50", layers=(1, 1, 1, 1), channels=(8, 16, 32, 64)),
    hugging("BertForSequenceClassification", "BERT", "BertConfig"),
    vision("vit_base_patch16_224", "ViT", **SMALL_VIT),
    hugging("GPT2ForSequenceClassification", "GPT-2", "GPT2Config", {"pad_token_id": 0}, small=GPT2_SMALL),
    vision("convnext_tiny", "ConvNeXt", depths=(1, 1, 2, 1), dims=(16, 32, 64, 128)),
    hugging("RobertaForSequenceClassification", "RoBERTa", "RobertaConfig", {"max_position_embeddings": 514}),
    vision("efficientnet_b0", "EfficientNet", name="test_efficientnet"),
    hugging(
        "DistilBertForSequenceClassification",
        "DistilBERT",
        "DistilBertConfig",
        small={"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "vocab_size": 1000},
    ),
    vision(
        "swin_tiny_patch4_window7_224", "Swin", embed_dim=16, depths=(1, 1, 2, 1), num_heads=(1, 2, 4, 8), img_size=56
    ),
    hugging(
        "LlamaForCausalLM",
        "Llama",
        "LlamaConfig",
        {
            "vocab_size": 49152,
            "hidden_size": 576,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "intermediate_size": 1536,
            "tie_word_embeddings": True,
        },
        task="next tokens",
        small={**SMALL, "num_key_value_heads": 1},
    ),
    vision("mobilenetv3_large_100", "MobileNetV3", name="mobilenetv3_small_050"),
    hugging(
        "DebertaV2ForSequenceClassification",
        "DeBERTa v3",
        "DebertaV2Config",
        {
            **BASE,
            "num_hidden_layers": 6,
            "vocab_size": 128100,
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_buckets": 256,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "position_biased_input": False,
            "type_vocab_size": 0,
        },
    ),
    vision("mixer_b16_224", "MLP-Mixer", name="mlp_mixer:MlpMixer", embed_dim=64, num_blocks=2, img_size=64),
    hugging("ElectraForSequenceClassification", "ELECTRA", "ElectraConfig", small={**SMALL, "embedding_size": 32}),
    vision("regnety_016", "RegNetY", name="regnety_002"),
    hugging("AlbertForSequenceClassification", "ALBERT", "AlbertConfig", BASE, small={**SMALL, "embedding_size": 32}),
    vision("densenet121", "DenseNet", growth_rate=8, block_config=(2, 2, 2, 2)),
    hugging(
        "WhisperForAudioClassification",
        "Whisper's encoder",
        "WhisperConfig",
        {"d_model": 512, "encoder_layers": 6, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048},
        inputs="mel",
        small={
            "d_model": 64,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 128,
            "max_source_positions": 50,
        },
    ),
    vision("deit3_small_patch16_224", "DeiT III", **SMALL_VIT),
    hugging(
        "T5ForTokenClassification",
        "T5's encoder",
        "T5Config",
        task="tokens",
        small={"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 1000},
    ),
    hugging(
        "CLIPForImageClassification",
        "CLIP's image half",
        "CLIPConfig",
        inputs="images",
        small={"vision_config": {**IMAGE_SMALL}, "image_size": 32},
    ),
    hugging("ViTForImageClassification", "ViT", "ViTConfig", inputs="images", small=IMAGE_SMALL),
    vision("seresnet50", "SE-ResNet-50", layers=(1, 1, 1, 1), channels=(8, 16, 32, 64)),
    hugging(
        "GPTNeoXForSequenceClassification",
        "GPT-NeoX (Pythia)",
        "GPTNeoXConfig",
        {**BASE, "vocab_size": 50304, "pad_token_id": 0},
    ),
    vision(
        "resnext50_32x4d", "ResNeXt-50", layers=(1, 1, 1, 1), channels=(8, 16, 32, 64), cardinality=4, base_width=16
    ),
    hugging(
        "ModernBertForSequenceClassification",
        "ModernBERT",
        "ModernBertConfig",
        {"pad_token_id": 0},
        small={**SMALL, "num_hidden_layers": 2},
    ),
    vision("poolformer_s12", "PoolFormer", name="metaformer:MetaFormer", depths=(1, 1, 1, 1), dims=(16, 32, 64, 64)),
    hugging(
        "MambaForCausalLM",
        "Mamba",
        "MambaConfig",
        {"num_hidden_layers": 24, "vocab_size": 50280},
        task="next tokens",
        small={"num_hidden_layers": 2, "hidden_size": 64, "state_size": 8, "vocab_size": 1000},
    ),
    vision("maxvit_tiny_tf_224", "MaxViT", name="test_maxvit", img_size=160),
    hugging(
        "Wav2Vec2ForSequenceClassification",
        "wav2vec 2.0",
        "Wav2Vec2Config",
        inputs="wave",
        small={
            **{k: v for k, v in SMALL.items() if k != "vocab_size"},
            "conv_dim": (8,) * 7,
            "num_conv_pos_embeddings": 8,
            "num_conv_pos_embedding_groups": 2,
        },
    ),
    vision("resmlp_12_224", "ResMLP"),
    hugging(
        "Dinov2ForImageClassification",
        "DINOv2",
        "Dinov2Config",
        {"hidden_size": 384, "num_attention_heads": 6, "image_size": 224},
        inputs="images",
        small=IMAGE_SMALL,
    ),
    vision("repvgg_a2", "RepVGG", name="test_byobnet"),
    hugging(
        "SegformerForSemanticSegmentation",
        "SegFormer",
        "SegformerConfig",
        inputs="images",
        task="pixels",
        small={
            "hidden_sizes": [8, 8, 16, 16],
            "depths": [1] * 4,
            "num_attention_heads": [1, 1, 2, 2],
            "image_size": 64,
        },
    ),
    vision("ghostnet_100", "GhostNet", name="ghostnet_050"),
    hugging(
        "MixtralForSequenceClassification",
        "Mixtral",
        "MixtralConfig",
        {
            "hidden_size": 512,
            "num_hidden_layers": 6,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "intermediate_size": 1024,
            "num_local_experts": 4,
            "pad_token_id": 0,
        },
        small={**SMALL, "num_key_value_heads": 1, "num_local_experts": 2},
    ),
    vision("inception_v3", "Inception v3", 299),
    hugging(
        "ASTForAudioClassification",
        "Audio spectrogram transformer",
        "ASTConfig",
        {"max_length": 512},
        inputs="spectrogram",
        small={**{k: v for k, v in SMALL.items() if k != "vocab_size"}, "max_length": 64},
    ),
    vision("nf_resnet50", "NF-Net (standardised weights)", name="test_nfnet"),
    hugging("GPT2LMHeadModel", "GPT-2, next tokens", "GPT2Config", task="next tokens", small=GPT2_SMALL),
)


def named(name: str) -> Architecture:
    """An architecture of the table."""
    return next(each for each in ARCHITECTURES if each.name == name)
