"""The table of small networks, with inputs and targets, on which every quantity is compared with its definition."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import contraction_networks as con
import convolutional_networks as conv
import networks as net
import routed_networks as routed
import sequence_networks as seq

Inputs = Callable[[int], Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network, its inputs and targets for n examples, and the class axis of its outputs (N, *rest)."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Inputs
    likelihood: str
    targets: Callable[[int], Tensor]
    axis: int = -1
    train: bool = False
    note: str = ""

    def make(self, n: int = 5, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Any, Tensor]:
        """Return the model, the inputs of n examples and their targets, without touching the global random state."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(zlib.crc32(self.name.encode()))
            model = self.build().double()
            randomise(model)
        targets = self.targets(n)
        targets = targets.to(dtype) if targets.is_floating_point() else targets
        return model.to(dtype).train(self.train), cast(self.inputs(n), dtype), targets

    def names(self, model: nn.Module) -> list[str]:
        """Return the names of the parameters that are not frozen."""
        return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def randomise(model: nn.Module) -> None:
    """Move scales, shifts and running statistics away from the zeros and ones they begin with."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() <= 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
        for module in model.modules():
            if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                module.running_mean.normal_(std=0.3)
                module.running_var.uniform_(0.5, 1.5)


def cast(x: Any, dtype: torch.dtype) -> Any:
    """Return inputs with their floating tensors in the given type."""
    if isinstance(x, Mapping):
        return {key: cast(value, dtype) for key, value in x.items()}
    if isinstance(x, tuple):
        return tuple(cast(value, dtype) for value in x)
    return x.to(dtype) if x.is_floating_point() else x


def generator(seed: int) -> torch.Generator:
    """Return a random generator with a fixed seed."""
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 1) -> Inputs:
    """Return inputs (n, *shape) from a normal distribution."""
    return lambda n: torch.randn(n, *shape, generator=generator(seed), dtype=torch.float64)


def tokens(count: int, length: int, low: int = 0, seed: int = 2) -> Inputs:
    """Return inputs (n, length) of integers from low to count - 1."""
    return lambda n: torch.randint(low, count, (n, length), generator=generator(seed))


def repeated(n: int) -> Tensor:
    """Return tokens (n, 4) that occur more than once in an example."""
    return torch.tensor([[1, 1, 1, 1], [2, 3, 2, 3], [0, 5, 0, 0], [4, 4, 2, 1]])[torch.arange(n) % 4]


def padded(n: int) -> Tensor:
    """Return tokens (n, 4) with zeros, the padding index, at the end of some examples."""
    return torch.tensor([[1, 2, 3, 4], [5, 2, 0, 0], [3, 3, 1, 0], [4, 0, 0, 0]])[torch.arange(n) % 4]


def both(*parts: Inputs) -> Inputs:
    """Return inputs that are a tuple of the given parts."""
    return lambda n: tuple(part(n) for part in parts)


def named(**parts: Inputs) -> Inputs:
    """Return inputs that are a mapping of the given parts."""
    return lambda n: {key: part(n) for key, part in parts.items()}


def square(width: int) -> Inputs:
    """Return inputs (n, n, width), with as many positions as examples."""
    return lambda n: normal(n, width)(n)


def padding_mask(n: int) -> Tensor:
    """Return a mask (n, 3) that hides the last positions of some examples."""
    return torch.arange(3) >= (torch.arange(n) % 3 + 1)[:, None]


def labels(classes: int, *positions: int) -> Callable[[int], Tensor]:
    """Return class labels (n, *positions)."""
    return lambda n: torch.randint(classes, (n, *positions), generator=generator(3))


def ignoring(classes: int, *positions: int) -> Callable[[int], Tensor]:
    """Return class labels (n, *positions) of which about a third, and all of the second example's, are ignored."""

    def make(n: int) -> Tensor:
        result = labels(classes, *positions)(n)
        result[torch.arange(result.numel()).reshape(result.shape) % 3 == 1] = -100
        result[1] = -100
        return result

    return make


def classes(name: str, build: Callable, inputs: Inputs, count: int = 3, *positions: int, **settings: Any) -> Case:
    """Return a case with class labels for each example or for each of its positions."""
    return Case(
        name=name,
        build=build,
        inputs=inputs,
        likelihood="classification",
        targets=labels(count, *positions),
        **settings,
    )


def values(name: str, build: Callable, inputs: Inputs, *shape: int, **settings: Any) -> Case:
    """Return a case with real targets (n, *shape)."""
    return Case(
        name=name, build=build, inputs=inputs, likelihood="regression", targets=normal(*shape, seed=4), **settings
    )


CASES = [
    # linear layers
    classes("mlp", net.mlp, normal(4)),
    values("mlp_regression", net.mlp_regression, normal(3), 2),
    values("deep_linear", net.deep_linear, normal(3), 2),
    values("scalar_output", net.scalar_output, normal(3), note="outputs (n,)"),
    classes("inplace_mlp", net.inplace_mlp, normal(4)),
    classes("train_mode", net.train_mode, normal(4), train=True, note="Dropout and BatchNorm, handed over in training"),
    classes("frozen_bias", net.frozen_bias, normal(4)),
    values("frozen_weight", net.frozen_weight, normal(3, 3), 3, 2),
    classes("unused_layer", net.unused_layer, normal(4)),
    values("bilinear", net.bilinear, both(normal(3), normal(3, seed=5)), 2),
    classes("lora_modules", net.lora_modules, normal(3, 4)),
    classes("lora_parameters", net.lora_parameters, normal(3, 4)),
    classes("matrix_product", net.matrix_product, normal(3, 4)),
    classes("borrowed_weight", net.borrowed_weight, normal(4)),
    classes("swiglu", net.swiglu, normal(3, 4)),
    classes("functional_head", net.functional_head, normal(4)),
    classes("learned_temperature", net.learned_temperature, normal(4)),
    Case(name="ignored_examples", build=net.mlp, inputs=normal(4), likelihood="classification", targets=ignoring(3)),
    # linear maps in other words
    classes("addmm", con.addmm, normal(3, 4)),
    classes("addmm_forms", con.addmm_forms, normal(4), note="the last is scaled: the generic rule"),
    classes("transposed_linear", con.transposed_linear, normal(3, 4)),
    classes("square_both_ways", con.square_both_ways, normal(4)),
    classes("bmm", con.bmm, normal(2, 6)),
    classes("baddbmm", con.baddbmm, normal(2, 6)),
    classes("left_bmm", con.left_bmm, normal(2, 6)),
    classes("batched_matmul", con.batched_matmul, normal(2, 6)),
    classes("stretched_matmul", con.stretched_matmul, normal(2, 4)),
    values("left_matmul", con.left_matmul, normal(3, 4), 2),
    classes("einsum_groups", con.einsum_groups, normal(2, 6)),
    classes("einsum_attention", con.einsum_attention, normal(3, 4)),
    classes("einsum_forms", con.einsum_forms, normal(3, 4)),
    classes("einsum_tied", con.einsum_tied, normal(3, 4)),
    # convolutions
    classes("conv1d", conv.conv1d, normal(2, 8)),
    classes("conv2d", conv.conv2d, normal(2, 5, 5)),
    classes("conv2d_same", conv.conv2d_same, normal(1, 4, 4)),
    classes("conv2d_circular", conv.conv2d_padded("circular"), normal(2, 4, 3), 2),
    classes("conv2d_reflect", conv.conv2d_padded("reflect"), normal(2, 4, 3), 2),
    classes("conv2d_replicate", conv.conv2d_padded("replicate"), normal(2, 4, 3), 2),
    classes("conv2d_groups", conv.conv2d_groups, normal(4, 3, 3)),
    classes("depthwise", conv.depthwise, normal(3, 4, 4)),
    classes("conv3d", conv.conv3d, normal(1, 3, 4, 3)),
    values("conv_no_bias", conv.conv_no_bias, normal(2, 4, 4), 2),
    values("conv_transpose1d", conv.conv_transpose1d, normal(2, 3), 6),
    classes("conv_transpose2d", conv.conv_transpose2d, normal(4, 2, 2)),
    values("conv_transpose3d", conv.conv_transpose3d, normal(2, 2, 3, 2), 2),
    classes("residual_cnn", conv.residual_cnn, normal(2, 4, 4)),
    classes("resnet", conv.resnet, normal(1, 4, 4)),
    values("unet", conv.unet, normal(1, 2, 4), 1, 2, 4),
    classes("segmentation", conv.segmentation, normal(2, 2, 2), 3, 2, 2, axis=1),
    classes("inverted_residual", conv.inverted_residual, normal(3, 3, 3)),
    classes("squeeze_excite", conv.squeeze_excite, normal(2, 3, 3)),
    # norms and elementwise parameters
    classes("layer_norm", net.layer_norm, normal(3, 4)),
    classes("rms_norm", net.rms_norm, normal(3, 4)),
    classes("group_norm", conv.image_norm(conv.group_norm), normal(2, 4, 4)),
    classes("instance_norm", conv.image_norm(conv.instance_norm), normal(2, 4, 4)),
    classes("batch_norm1d", net.batch_norm1d, normal(4)),
    classes("batch_norm2d", conv.image_norm(nn.BatchNorm2d), normal(2, 4, 4)),
    classes("layer_scale", net.layer_scale, normal(3, 4)),
    values("bare_nonlinear", net.bare_nonlinear, normal(3), 2),
    classes("weight_norm", net.weight_norm, normal(4)),
    classes("parametrised", net.parametrised, normal(4)),
    # shared and tied weights
    classes("called_twice", net.called_twice, normal(4)),
    classes("called_twice_unevenly", net.called_twice_unevenly, normal(3, 4)),
    classes("same_module_twice", net.same_module_twice, normal(4)),
    classes("tied_linears", net.tied_linears, normal(4)),
    values("tied_autoencoder", net.tied_autoencoder, normal(4), 4),
    classes("tied_gpt", seq.tied_gpt, tokens(4, 3), 4, 3),
    classes("tied_functional", seq.tied_functional, tokens(4, 3), 4, 3),
    classes("checkpoint_reentrant", net.checkpointed(True), normal(4)),
    classes("checkpoint", net.checkpointed(False), normal(4)),
    # layouts of the batch and of positions
    classes("several_inputs", net.several_inputs, both(normal(3), normal(4, 2, seed=5))),
    classes("mapping_input", net.mapping_input, named(tokens=tokens(5, 3), weights=normal(3))),
    classes("windows", net.windows, normal(4, 4)),
    classes("time_major_flat", net.time_major_flat, normal(3, 4)),
    classes("time_major", net.time_major, normal(3, 4)),
    values("positions_equal_batch", net.token_mean, square(3), 2),
    classes("time_major_equal_batch", net.time_major, square(4)),
    classes("time_major_flat_equal_batch", net.time_major_flat, square(4)),
    values("token_regression", net.token_regression, normal(3, 3), 3, 2),
    classes("experts", net.experts, normal(4), note="the last expert sees no example"),
    classes("experts_tokens", net.experts, normal(3, 4), note="each token takes its own expert"),
    classes("switch_masks", routed.switch_masks, normal(3, 4), note="one parameter holds all experts"),
    classes("top_two", routed.top_two, normal(3, 4), note="experts without tokens are not called"),
    classes("dead_rows", routed.dead_rows, normal(4, 4), note="some rows have no gradient"),
    classes("first_token", routed.first_token, normal(3, 4), note="most rows have no gradient"),
    classes("where_experts", routed.where_experts, normal(3, 4)),
    classes("sorted_experts", routed.sorted_experts, normal(4, 4), 3, 4),
    Case(
        name="routed_ignoring",
        build=routed.sorted_experts,
        inputs=normal(4, 4),
        likelihood="classification",
        targets=ignoring(3, 4),
    ),
    values("by_length", routed.by_length, both(normal(3, 3), padding_mask), 2),
    # embeddings
    classes("embedding_padding", seq.embedding_padding, padded),
    classes("embedding_sparse", seq.embedding_sparse, tokens(6, 3)),
    classes("repeated_tokens", seq.embedding_sparse, repeated),
    classes("gpt_positions", seq.gpt_positions, tokens(5, 3), 3, 3),
    classes("layered_positions", seq.layered_positions, tokens(5, 3), note="positions reach the output through layers"),
    values("embedding_rows", seq.embedding_rows, tokens(4, 3), 2, note="the table is also used elementwise"),
    classes("token_classifier", seq.token_classifier, tokens(5, 4), 3, 4),
    Case(
        name="ignored_labels",
        build=seq.token_classifier,
        inputs=tokens(5, 4),
        likelihood="classification",
        targets=ignoring(3, 4),
    ),
    Case(
        name="ignored_labels_causal",
        build=seq.gpt_positions,
        inputs=tokens(5, 3),
        likelihood="classification",
        targets=ignoring(3, 3),
    ),
    # attention and recurrence
    classes("vision_transformer", seq.vision_transformer, normal(1, 4, 4)),
    classes("self_attention", seq.self_attention(True), normal(3, 4)),
    classes("self_attention_time_major", seq.self_attention(False), normal(3, 4)),
    classes("self_attention_bias_kv", seq.self_attention(True, add_bias_kv=True), normal(3, 4)),
    classes("masked_attention", seq.masked_attention, both(normal(3, 4), padding_mask)),
    classes(
        "cross_attention_sizes", seq.cross_attention(kdim=3, vdim=2), both(normal(2, 4), normal(3, 3), normal(3, 2))
    ),
    classes("cross_attention", seq.cross_attention(), both(normal(2, 4), normal(3, 4, seed=5))),
    classes("cross_attention_three", seq.cross_attention(), both(*[normal(3, 4, seed=s) for s in (5, 6, 7)])),
    classes("encoder_layer", seq.encoder_layer(True), normal(3, 4)),
    classes("encoder_layer_time_major", seq.encoder_layer(False), normal(3, 4)),
    classes("decoder_layer", seq.decoder_layer, both(normal(2, 4), normal(3, 4, seed=5))),
    classes("encoder", seq.encoder, normal(3, 4)),
    classes("written_attention", seq.written_attention, normal(3, 4), 2, 3),
    classes("lstm", seq.lstm, normal(3, 3)),
    values("gru", seq.gru, normal(3, 2), 2),
    values("written_recurrence", seq.written_recurrence, normal(3, 3), 2),
]

BY_NAME = {case.name: case for case in CASES}
