"""Posteriors in safetensors files: sums and numbers, never code, and never the network itself.

The header holds a format number, peewit's version, a checksum of everything, and one JSON text. Tensors are named by
the parameters they belong to. What is read is checked against the network before anything is made of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import typing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from . import curvature, jacobians, likelihoods, structures
from .arithmetic import Arithmetic, as_arithmetic
from .batches import device_of, unwrapped
from .codec import Decoder, Encoder, Unsaveable, short
from .core import Structure
from .curvature import Hessian, Kind, Totals
from .fitting import named
from .identity import Identity, digest, fingerprint, named_tensors
from .laplace import Laplace
from .layers.base import BatchAxis
from .likelihoods import Likelihood
from .linear.mode import LinearMode
from .measuring import decompose
from .memory import Budget, budget
from .modes import plainly
from .plan import Plan
from .priors import Prior
from .pushing import ROWS
from .schema import Schema
from .space import Space
from .structures.block import DenseSums
from .structures.factors import Factors, KronSums
from .whole import writable, writing

FORMAT = 5  # raised whenever an older peewit could misread a file

# Every class that a file may name. A class with a function inside it is noted by its name, and asked for by `load`.
LIKELIHOODS: tuple[type, ...] = (
    likelihoods.Categorical,
    likelihoods.Bernoulli,
    likelihoods.Gaussian,
    likelihoods.HeteroscedasticGaussian,
    likelihoods.Poisson,
)
STRUCTURES: tuple[type, ...] = (
    structures.Kron,
    structures.EKFAC,
    structures.Diag,
    structures.Block,
    structures.Full,
)
KINDS: tuple[type, ...] = (curvature.GGN, curvature.MonteCarlo, curvature.Empirical, curvature.Hessian)
PARTS: tuple[type, ...] = (
    Prior,
    Totals,
    Space,
    Plan,
    BatchAxis,
    KronSums,
    DenseSums,
    Factors,
    jacobians.Layout,
    likelihoods.Form,
    LinearMode,
    Schema,
)
PRIORS = ("scalar", "layerwise", "unitwise", "diagonal", "groups", "g_prior", "scale_invariant")
KNOWN = (*LIKELIHOODS, *STRUCTURES, *KINDS, *PARTS)
# What is written under its own name, and read by the annotation of the field.
PLAIN = ("prior", "totals", "asked", "plan", "reason", "rules", "seed", "mode")
MAYBE = ("linear", "schema")  # likewise, where there is one


def extras() -> tuple[str, ...]:
    """Plain numbers and texts that a posterior carries besides."""
    return tuple(name for name in ("temperature",) if name in Laplace.__dataclass_fields__)


def save(la: Laplace, path: str | os.PathLike[str]) -> None:
    """Write a posterior: to a temporary file first, which then takes the place of an earlier one."""
    target = writable(path, "posterior.safetensors")
    encoder = Encoder(KNOWN)
    try:
        made = {name: encoder.encode(getattr(la, name), name) for name in (*PLAIN, *extras(), "sums")}
        made |= {name: encoder.encode(getattr(la, name), name) for name in ("structure", "kind")}
        made |= {name: encoder.encode(getattr(la, name), name) for name in MAYBE if getattr(la, name) is not None}
    except Unsaveable as error:
        raise ValueError(f"This posterior cannot be saved: {error}, which files do not hold.") from None
    made["likelihood"] = likelihood_of(la, encoder)
    made["arithmetic"] = la.arithmetic
    made["used"] = list(la.space.names)
    made["network"] = network_of(la.model)
    made["fingerprint"] = fingerprint(la.model)
    tensors = {name: plain(tensor, name) for name, tensor in encoder.tensors.items()}
    write(target, tensors, header(json.dumps(made, allow_nan=False), tensors))


def likelihood_of(la: Laplace, encoder: Encoder) -> Any:
    """By value where files know it, else its name alone."""
    trial = Encoder(KNOWN)
    try:
        made = trial.encode(la.likelihood, "likelihood")
    except Unsaveable:
        return {"name": type(la.likelihood).__name__}
    encoder.tensors |= trial.tensors
    return made


def network_of(model: nn.Module) -> dict[str, list[Any]]:
    """Shapes and dtypes by name: for messages that say more than that a fingerprint differs."""
    return {name: [list(tensor.shape), str(tensor.dtype)] for name, tensor in named_tensors(model).items()}


def plain(tensor: Tensor, name: str) -> Tensor:
    """A tensor on the CPU in memory of its own, as the format wants it."""
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise ValueError(f"{name!r} holds NaN or Inf; such a posterior is not saved.")
    made = tensor.detach().cpu().contiguous()
    shared = made.data_ptr() == tensor.data_ptr()
    return made.clone() if shared and tensor.untyped_storage().nbytes() != tensor.nbytes else made


def header(text: str, tensors: dict[str, Tensor]) -> dict[str, str]:
    """All that stands beside the tensors."""
    from . import __version__

    made = {"format": str(FORMAT), "version": __version__, "peewit": text}
    return {**made, "checksum": checksum(made, tensors)}


def checksum(texts: dict[str, str], tensors: dict[str, Tensor]) -> str:
    """A hash of all texts and all tensors: bits that fell over are seen."""
    made = hashlib.sha256()
    for name in sorted(texts):
        made.update(f"{name} {len(texts[name])} {texts[name]} ".encode())
    for name in sorted(tensors):
        made.update(f"{name} {digest(tensors[name])} ".encode())
    return made.hexdigest()


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
    made = {}
    for name, tensor in tensors.items():
        made[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return made


@plainly
def load(
    path: str | os.PathLike[str],
    model: nn.Module,
    likelihood: str | Likelihood | None = None,
    *,
    memory: float | None = None,
) -> Laplace:
    """A saved posterior of this very network: other weights, a damaged file or a newer format is refused."""
    model = unwrapped(model)
    device = device_of(model)
    source = Path(os.fsdecode(path))
    if source.is_dir():
        raise IsADirectoryError(f"{source} is a folder; expected a file that Laplace.save wrote.")
    if not source.exists():
        raise FileNotFoundError(f"{source} does not exist.")
    if not source.is_file():  # reading a pipe would wait for ever
        raise ValueError(f"{source} is a device, a pipe or a socket; expected a file that Laplace.save wrote.")
    limit = budget(memory, device)
    given = None if likelihood is None else named(likelihood, likelihoods.NAMES, "likelihood", "energy")
    texts, tensors = read(source)
    try:
        content = parsed(texts["peewit"])
        compare(content, model)
        return assembled(content, model, tensors, device, given, limit)
    except Mismatch as error:
        raise ValueError(f"{source}: {error}") from None
    except (ValueError, RecursionError, OverflowError) as error:
        raise ValueError(f"{source} is damaged, or was not written by peewit: {error}.") from error


class Mismatch(ValueError):
    """A sound file that is not for this network or this peewit."""


def read(source: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Header and tensors of a file that is whole, in a format that is known."""
    try:
        with safe_open(source, framework="pt", device="cpu") as file:
            texts = dict(file.metadata() or {})
            refuse_formats(texts, source)
            # Copies: the file's own memory is not aligned, and may change under us.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except Mismatch as error:
        raise ValueError(str(error)) from None
    except (OSError, MemoryError):
        raise
    except Exception as error:  # safetensors, torch and pyo3 have their own
        raise ValueError(
            f"{source} cannot be read as a safetensors file ({short(str(error))}): it is damaged, cut short, or "
            "something else. Files are written by Laplace.save."
        ) from error
    claimed = texts.pop("checksum", "")
    if claimed != checksum(texts, tensors):
        raise ValueError(f"{source} is damaged: its checksum is not that of its content. Save it again.")
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{source} is damaged: {name!r} holds NaN or Inf.")
    return texts, tensors


def refuse_formats(texts: dict[str, str], source: Path) -> None:
    """Files of others, and of the future."""
    number = texts.get("format", "")
    ours = texts.keys() & {"peewit", "lapwing"}  # its name up to format 4
    if not ours or "checksum" not in texts or not number.isdecimal() or number == "0":
        raise Mismatch(f"{source} is a safetensors file without a posterior of peewit. Use Laplace.save to write one.")
    if len(number) <= 9 and int(number) < FORMAT:
        raise Mismatch(
            f"{source} has format {number}, from before peewit's first release, and this one reads format {FORMAT}. "
            "Fit again, or load it with the version that wrote it."
        )
    if len(number) > 9 or int(number) > FORMAT:
        from . import __version__

        raise Mismatch(
            f"{source} has format {short(number)} and was written by peewit {short(texts.get('version', '?'))}; this "
            f"is peewit {__version__}, which reads formats up to {FORMAT}. Use a newer peewit."
        )


def parsed(text: str) -> dict[str, Any]:
    """The JSON text with all that is expected in it."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"it holds {constant}")

    content = json.loads(text, parse_constant=refuse)
    others = {"sums", "structure", "kind", "likelihood", "arithmetic", "used", "network", "fingerprint"}
    names = {*PLAIN, *extras(), *others}
    if not isinstance(content, dict) or set(content) - {*MAYBE} != names:
        given = sorted(content) if isinstance(content, dict) else content
        raise ValueError(f"it holds {short(given)}; expected {sorted(names)}")
    return content


def compare(content: dict[str, Any], model: nn.Module) -> None:
    """Refuse a network with other names, shapes, dtypes, weights or buffers, and say which."""
    theirs, prints = content["network"], content["fingerprint"]
    if not isinstance(theirs, dict) or not isinstance(prints, dict) or set(theirs) != set(prints):
        raise ValueError("its fingerprint is not that of its network")
    ours = network_of(model)
    for missing, where in (
        ([name for name in theirs if name not in ours], "only the saved one has"),
        ([name for name in ours if name not in theirs], "only the given one has"),
    ):
        if missing:
            raise Mismatch(f"The network is not the one that was saved: {where} {several(missing)}.")
    changed = [name for name in ours if theirs[name] != ours[name]]
    if changed:
        name = changed[0]
        raise Mismatch(
            f"The network is not the one that was saved: {several(changed)} differ in shape or dtype; {name!r} had "
            f"{short(theirs[name])} and has {ours[name]}."
        )
    own = fingerprint(model)
    changed = [name for name in own if prints[name] != own[name]]
    if changed:
        raise Mismatch(
            f"The network has other weights or buffers than when it was saved: {several(changed)} differ. A posterior "
            "holds for the weights it was fitted with alone; load those first, or fit again."
        )


def several(names: list[str]) -> str:
    """The first few of many names."""
    shown = ", ".join(repr(name) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def assembled(
    content: dict[str, Any],
    model: nn.Module,
    tensors: dict[str, Tensor],
    device: torch.device,
    given: Likelihood | None,
    limit: Budget,
) -> Laplace:
    """Decode, check against the network, and decompose again: the same sums give the same posterior."""
    began = time.perf_counter()
    there = {name: value if value.dtype == torch.bool else value.to(device) for name, value in tensors.items()}
    decoder = Decoder(KNOWN, there)
    hints = typing.get_type_hints(Laplace)
    values = {name: decoder.decode(content[name], hints[name], name) for name in (*PLAIN, *extras())}
    structure: Structure = decoder.one_of(content["structure"], STRUCTURES, "structure")
    kind: Kind | Hessian = decoder.one_of(content["kind"], KINDS, "kind")
    sums = decoder.decode(content["sums"], typing.get_type_hints(type(structure).measure)["return"], "sums")
    family = chosen_likelihood(content["likelihood"], decoder, given, values["totals"])
    used = decoder.decode(content["used"], tuple[str, ...], "used")
    asked: Space = values["asked"]
    check_space(asked, model)
    structure.check(sums, asked)
    space = asked.only(used)
    if space.names != used or not used:
        raise ValueError(f"the used weights {short(used)} are not among {short(asked.names)}")
    arithmetic = as_arithmetic(decoder.decode(content["arithmetic"], str, "arithmetic"))
    check_values(values, kind, structure, space, model, arithmetic)
    values |= {name: decoder.decode(content[name], hints[name], name) for name in MAYBE if name in content}
    check_linear(values.get("linear"), values["mode"], space)
    made = decompose(structure, kind, sums, space)
    return Laplace(
        model=model,
        space=space,
        likelihood=family,
        structure=structure,
        kind=kind,
        curvature=made,
        budget=replace(limit, arithmetic=arithmetic),
        timings={"measure": 0.0, "decompose": time.perf_counter() - began},
        identity=Identity.of(model),
        sums=sums,
        **values,
    )


def check_linear(linear: LinearMode | None, mode: Tensor, space: Space) -> None:
    """Refuse a mode of the linear model that is not of these weights."""
    if linear is None:
        return
    shape, dtype = linear.displacement.shape, linear.displacement.dtype
    if shape != mode.shape or dtype != mode.dtype:
        raise ValueError(f"its linear mode is {dtype} of shape {tuple(shape)}; expected {mode.dtype} {len(mode)}")
    report = (linear.losses, linear.decrements, linear.gradients, linear.passes)
    if len({len(each) for each in report}) != 1 or not linear.losses:
        raise ValueError("its linear mode's report has columns of different lengths")
    if not linear.scale > 0 or not linear.temperature > 0:
        raise ValueError(f"its linear mode has scale {linear.scale} and temperature {linear.temperature}")
    check_prior(linear.prior, space)


def chosen_likelihood(saved: Any, decoder: Decoder, chosen: Likelihood | None, totals: Totals) -> Likelihood:
    """The saved one; where it could not be saved, the one that is given."""
    if isinstance(saved, dict) and set(saved) == {"name"}:
        if chosen is None:
            raise Mismatch(
                f"The likelihood was {short(saved['name'])}, which a file cannot hold; give it again: "
                "load(path, model, likelihood=...)."
            )
        if type(chosen).__name__ != saved["name"]:
            raise Mismatch(
                f"likelihood is a {type(chosen).__name__}; the posterior was fitted with {short(saved['name'])}."
            )
        return chosen if totals.form is None else chosen.bound(totals.form)
    made: Likelihood = decoder.one_of(saved, LIKELIHOODS, "likelihood")
    if chosen is not None and not alike(chosen, made):
        raise Mismatch(
            f"likelihood={short(chosen)} was given; the posterior was fitted with {short(made)}, and the file holds "
            "it. Leave likelihood= out, or fit again."
        )
    return made


def alike(first: Any, second: Any) -> bool:
    """Whether two values would be written in the same way."""
    made = []
    for value in (first, second):
        encoder = Encoder(KNOWN)
        try:
            text = encoder.encode(value, "value")
        except Unsaveable:
            return False
        made.append((text, {name: digest(tensor) for name, tensor in encoder.tensors.items()}))
    return made[0] == made[1]


def check_space(asked: Space, model: nn.Module) -> None:
    """Refuse weights that the network does not have."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    ordered = tuple(name for name in shapes if name in set(asked.names))
    if not asked.names or asked.names != ordered or len(asked.shapes) != len(ordered):
        raise ValueError(f"its weights {short(asked.names)} are not those of the network")
    for name, shape in zip(asked.names, asked.shapes, strict=True):
        if shapes[name] != shape:
            raise ValueError(f"{name!r} has shape {tuple(shape)}; the network's has {tuple(shapes[name])}")
    mask = asked.mask
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (asked.total,) or not bool(mask.any())):
        raise ValueError(f"its mask has shape {tuple(mask.shape)}; expected ({asked.total},) booleans")


def check_values(
    values: dict[str, Any],
    kind: Kind | Hessian,
    structure: Structure,
    space: Space,
    model: nn.Module,
    arithmetic: Arithmetic,
) -> None:
    """Refuse numbers that do not fit each other."""
    usual = type(kind)()
    if (kind.name, kind.degree) != (usual.name, usual.degree):
        raise ValueError(f"its curvature is {short(kind)}")
    if isinstance(kind, Hessian) and not isinstance(structure, structures.Full):
        raise ValueError(f"a Hessian with structure {type(structure).__name__}")
    if space.mask is not None and not getattr(structure, "masks", False):
        raise ValueError(f"a mask with structure {type(structure).__name__}")
    expected = space.vector(model)
    mode, dtype = values["mode"], torch.promote_types(expected.dtype, arithmetic.dtype)
    if mode.shape != expected.shape or mode.dtype != dtype:
        raise ValueError(f"its mode is {mode.dtype} of shape {tuple(mode.shape)}; expected {dtype} {len(expected)}")
    if not torch.equal(mode, expected.detach().to(mode)):
        raise ValueError("its mode is not the network's weights")
    totals: Totals = values["totals"]
    if totals.examples < 1 or totals.scalars < 0 or totals.form is None:
        raise ValueError(f"it counts {totals.examples} examples and {totals.scalars} scalars")
    if totals.form.axis is not None and not 0 <= totals.form.axis < len(totals.form.shape):
        raise ValueError(f"its outputs have axis {totals.form.axis} of {len(totals.form.shape)}")
    if not values.get("temperature", 1.0) > 0:
        raise ValueError(f"its temperature is {values['temperature']}")
    plan: Plan = values["plan"]
    folds = {axis.fold for axis in plan.axes.values() if axis is not None}
    wrong = any(cost < 1 for cost, _ in plan.costs.values()) or not set(plan.push.values()) <= {*range(ROWS + 1)}
    if not folds <= {"none", "major", "minor", "whole", "owned"} or wrong:
        known = f"{short(plan.axes)}, {short(plan.costs)}, {short(plan.push)}"
        raise ValueError(f"it knows impossible things of the network ({known})")
    if set(values["rules"]) != set(values["asked"].names):
        raise ValueError("its rules are not those of its weights")
    sets = values["prior"].sets
    if not all(sets) or not {name for own in sets for name in own} <= dict(model.named_parameters()).keys():
        raise ValueError(f"its prior has sets of weights, {short(sets)}, that the network does not have")
    check_prior(values["prior"], space)


def check_prior(prior: Prior, space: Space) -> None:
    """Refuse a prior that is not of these weights."""
    if prior.kind not in PRIORS or not prior.precision.is_floating_point() or not bool((prior.precision > 0).all()):
        raise ValueError(f"its prior is {short(prior.kind)} with precisions {short(prior.precision)}")
    prior.count(space)
