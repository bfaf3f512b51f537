"""Posteriors written to safetensors files: whole, or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..messages.errors import NotFiniteError, PeewitError
from ..network.identity import fingerprint
from ..posterior.state import PosteriorState
from ..runtime.version import __version__
from .atomic import writable, writing
from .codec import Encoder, Unsaveable
from .format import FORMAT, KNOWN, MAYBE, MEASURED, PLAIN, TRACE, checksum, shapes_of
from .saved_trace import SavedTrace


def save(la: PosteriorState, path: str | os.PathLike[str]) -> None:
    """Write a posterior: to a temporary file first, which then takes the place of an earlier one."""
    target = writable(path, "posterior.safetensors")
    encoder = Encoder(KNOWN)
    try:
        content = {name: encoder.encode(field_of(la, name), name) for name in (*PLAIN, "sums")}
        content |= {name: encoder.encode(getattr(la, name), name) for name in ("structure", "curvature_kind")}
        content |= {name: encoder.encode(getattr(la, name), name) for name in MAYBE if getattr(la, name) is not None}
        if la.trace is not None:
            content[TRACE] = encoder.encode(SavedTrace.of(la.trace), TRACE)
    except Unsaveable as error:
        raise PeewitError(f"This posterior cannot be saved: {error}, which files do not hold.") from None
    content["likelihood"] = likelihood_of(la, encoder)
    content["arithmetic"] = la.arithmetic
    content["used"] = list(la.space.names)
    content["network"] = shapes_of(la.model)
    content["fingerprint"] = fingerprint(la.model)
    tensors = {name: plain(tensor, name) for name, tensor in encoder.tensors.items()}
    write(target, tensors, header(json.dumps(content, allow_nan=False), tensors))


def field_of(la: PosteriorState, name: str) -> Any:
    """A field of the posterior, or of what was measured."""
    return getattr(la.measurement if name in (*MEASURED, "sums") else la, name)


def likelihood_of(la: PosteriorState, encoder: Encoder) -> Any:
    """By value where files know it, else its name alone."""
    trial = Encoder(KNOWN)
    try:
        encoded = trial.encode(la.likelihood, "likelihood")
    except Unsaveable:
        return {"name": type(la.likelihood).__name__}
    encoder.tensors |= trial.tensors
    return encoded


def plain(tensor: Tensor, name: str) -> Tensor:
    """A tensor on the CPU in memory of its own, as the format wants it."""
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise NotFiniteError(f"{name!r} holds NaN or Inf; such a posterior is not saved.")
    on_cpu = tensor.detach().cpu().contiguous()
    shared = on_cpu.data_ptr() == tensor.data_ptr()
    return on_cpu.clone() if shared and tensor.untyped_storage().nbytes() != tensor.nbytes else on_cpu


def header(text: str, tensors: dict[str, Tensor]) -> dict[str, str]:
    """All that stands beside the tensors."""
    texts = {"format": str(FORMAT), "version": __version__, "peewit": text}
    return {**texts, "checksum": checksum(texts, tensors)}


def write(target: Path, tensors: dict[str, Tensor], texts: dict[str, str]) -> None:
    """All or nothing: whatever happens, an earlier file stays until the new one is whole and on the disk."""
    with writing(target) as temporary:
        with open(temporary, "xb") as file:
            mode = os.fstat(file.fileno()).st_mode  # as any new file here has it: safetensors' own is narrower
        save_file(distinct(tensors), temporary, texts)
        os.chmod(temporary, mode & 0o777)


def distinct(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The format refuses two names for one memory: the second gets a copy."""
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        separate[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return separate
