"""Networks as they were: everything that a question must leave alone."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from environment import DEVICE

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_state_dict_hooks",
)


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything of a network, and of the random generators, that a call could leave changed."""
    checkpoint = torch.utils.checkpoint
    return {
        "parameters": {name: p.detach().clone() for name, p in model.named_parameters()},
        "objects": [id(p) for p in model.parameters()] + [id(m) for m in model.modules()],
        "buffers": {name: b.clone() for name, b in model.named_buffers()},
        "buffer objects": {name: id(b) for name, b in model.named_buffers()},
        "gradients": {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()},
        "gradient objects": [id(p.grad) for p in model.parameters()],
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "training": [module.training for module in model.modules()],
        "hooks": [[list(getattr(module, hooks)) for hooks in HOOKS] for module in model.modules()],
        "tensor hooks": [list(p._backward_hooks or {}) for p in model.parameters()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "random": torch.get_rng_state(),
        "random cuda": torch.cuda.get_rng_state() if DEVICE.startswith("cuda") else None,
        "python": random.getstate(),
        "numpy": str(numpy.random.get_state()),
        "modes": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()),
        "checkpoint": (checkpoint.CheckpointFunction, checkpoint._checkpoint_without_reentrant_generator),
    }


def same(left: Any, right: Any) -> bool:
    """Equality in every bit."""
    if isinstance(left, Tensor):
        return isinstance(right, Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def changed(model: nn.Module, before: dict[str, Any]) -> list[str]:
    """What is no longer the same."""
    after = snapshot(model)
    return [key for key in before if not same(before[key], after[key])]
