"""Posteriors read from safetensors files and checked against the network before anything is made of them."""

from __future__ import annotations

import json
import os
import time
import typing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from .. import likelihoods
from ..curvature.contracts import Structure
from ..curvature.kinds import CurvatureKind, Hessian
from ..curvature.totals import Totals
from ..likelihoods import Likelihood
from ..messages.errors import MismatchError, NotFiniteError, PeewitError
from ..messages.names import first_names, resolve_name
from ..network.identity import Identity, digest, fingerprint
from ..network.modules import device_of, unwrap
from ..network.scaling import Standardised
from ..network.values import own_copy
from ..posterior.measure import decompose
from ..posterior.measurement import Measurement
from ..posterior.schema import Schema
from ..posterior.state import PosteriorState
from ..runtime.arithmetic import as_arithmetic
from ..runtime.memory import Budget, budget
from ..runtime.progress import Progress
from ..runtime.version import __version__
from ..weights.space import Space
from .checks import check_linear, check_space, check_values
from .codec import Decoder, Encoder, Unsaveable, short
from .format import FORMAT, KINDS, KNOWN, LIKELIHOODS, MAYBE, MEASURED, PLAIN, STRUCTURES, TRACE, checksum, shapes_of
from .saved_trace import SavedTrace


def load(
    path: str | os.PathLike[str],
    model: nn.Module,
    likelihood: str | Likelihood | None,
    memory: float | None,
    progress: bool,
) -> PosteriorState:
    """A saved posterior of this very network."""
    model = unwrap(model)
    device = device_of(model)
    source = Path(os.fsdecode(path))
    if source.is_dir():
        raise IsADirectoryError(f"{source} is a folder; expected a file that Laplace.save wrote.")
    if not source.exists():
        raise FileNotFoundError(f"{source} does not exist.")
    if not source.is_file():  # reading a pipe would wait for ever
        raise PeewitError(f"{source} is a device, a pipe or a socket; expected a file that Laplace.save wrote.")
    limit = budget(memory, device)
    family = None if likelihood is None else resolve_name(likelihood, likelihoods.NAMES, "likelihood", Likelihood)
    texts, tensors = read(source)
    try:
        content = parse(texts["peewit"])
        model = with_scaling(content, model)
        compare(content, model)
        with Progress(progress).working("decomposition"):
            return assemble(content, model, tensors, device, family, limit)
    except MismatchError as error:
        raise MismatchError(f"{source}: {error}") from None
    except (ValueError, RecursionError, OverflowError) as error:
        raise PeewitError(f"{source} is damaged, or was not written by peewit: {error}.") from error


def read(source: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Header and tensors of a file that is whole, in a format that is known."""
    try:
        with safe_open(source, framework="pt", device="cpu") as file:
            texts = dict(file.metadata() or {})
            refuse_formats(texts, source)
            # Copies: the file's own memory is not aligned, and may change under us.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (MismatchError, OSError, MemoryError):
        raise
    except Exception as error:  # safetensors, torch and pyo3 have their own
        raise PeewitError(
            f"{source} cannot be read as a safetensors file ({short(str(error))}): it is damaged, cut short, or "
            "something else. Files are written by Laplace.save."
        ) from error
    claimed = texts.pop("checksum", "")
    if claimed != checksum(texts, tensors):
        raise PeewitError(f"{source} is damaged: its checksum is not that of its content. Save it again.")
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise NotFiniteError(f"{source} is damaged: {name!r} holds NaN or Inf.")
    return texts, tensors


def refuse_formats(texts: dict[str, str], source: Path) -> None:
    """Files of others, and of the future."""
    number = texts.get("format", "")
    own_names = texts.keys() & {"peewit", "lapwing"}  # its name up to format 4
    if not own_names or "checksum" not in texts or not number.isdecimal() or number == "0":
        raise MismatchError(
            f"{source} is a safetensors file without a posterior of peewit. Use Laplace.save to write one."
        )
    if len(number) <= 9 and int(number) < FORMAT:
        raise MismatchError(
            f"{source} has format {number}, from before peewit's first release, and this one reads format {FORMAT}. "
            "Fit again, or load it with the version that wrote it."
        )
    if len(number) > 9 or int(number) > FORMAT:
        raise MismatchError(
            f"{source} has format {short(number)} and was written by peewit {short(texts.get('version', '?'))}; this "
            f"is peewit {__version__}, which reads formats up to {FORMAT}. Use a newer peewit."
        )


def parse(text: str) -> dict[str, Any]:
    """The JSON text with all that is expected in it."""

    def refuse(constant: str) -> Any:
        raise PeewitError(f"it holds {constant}")

    content = json.loads(text, parse_constant=refuse)
    others = {"sums", "structure", "curvature_kind", "likelihood", "arithmetic", "used", "network", "fingerprint"}
    names = {*PLAIN, *others}
    if not isinstance(content, dict) or set(content) - {*MAYBE, TRACE} != names:
        content_names = sorted(content) if isinstance(content, dict) else content
        raise PeewitError(f"it holds {short(content_names)}; expected {sorted(names)}")
    return content


def with_scaling(content: dict[str, Any], model: nn.Module) -> nn.Module:
    """The network with the scaling inside that it was fitted with, where there was one."""
    schema: Schema | None = Decoder(KNOWN, {}).decode(content.get("schema"), Schema | None, "schema")
    if schema is None or schema.scaling is None or isinstance(model, Standardised):
        return model
    return Standardised(model, schema.scaling)


def compare(content: dict[str, Any], model: nn.Module) -> None:
    """Refuse a network with other names, shapes, dtypes, weights or buffers, and say which."""
    saved, prints = content["network"], content["fingerprint"]
    if not isinstance(saved, dict) or not isinstance(prints, dict) or set(saved) != set(prints):
        raise PeewitError("its fingerprint is not that of its network")
    current = shapes_of(model)
    for missing, where in (
        ([name for name in saved if name not in current], "only the saved one has"),
        ([name for name in current if name not in saved], "only the given one has"),
    ):
        if missing:
            raise MismatchError(
                f"The network is not the one that was saved: {where} {first_names([*map(repr, missing)])}."
            )
    changed = [name for name in current if saved[name] != current[name]]
    if changed:
        name = changed[0]
        raise MismatchError(
            f"The network is not the one that was saved: {first_names([*map(repr, changed)])} differ in shape or "
            f"dtype; {name!r} had {short(saved[name])} and has {current[name]}."
        )
    prints_of_network = fingerprint(model)
    changed = [name for name in prints_of_network if prints[name] != prints_of_network[name]]
    if changed:
        raise MismatchError(
            "The network has other weights or buffers than when it was saved: "
            f"{first_names([*map(repr, changed)])} differ. A posterior holds only for the weights it was fitted with; "
            "load those first, or fit again."
        )


def assemble(
    content: dict[str, Any],
    model: nn.Module,
    tensors: dict[str, Tensor],
    device: torch.device,
    chosen: Likelihood | None,
    limit: Budget,
) -> PosteriorState:
    """Decode, check against the network, and decompose again: the same sums give the same posterior."""
    began = time.perf_counter()
    on_device = {name: value if value.dtype == torch.bool else value.to(device) for name, value in tensors.items()}
    decoder = Decoder(KNOWN, on_device)
    hints = typing.get_type_hints(PosteriorState) | typing.get_type_hints(Measurement)
    values = {name: decoder.decode(content[name], hints[name], name) for name in PLAIN}
    structure: Structure = decoder.one_of(content["structure"], STRUCTURES, "structure")
    kind: CurvatureKind | Hessian = decoder.one_of(content["curvature_kind"], KINDS, "curvature_kind")
    sums = decoder.decode(content["sums"], typing.get_type_hints(type(structure).measure)["return"], "sums")
    family = own_copy(choose_likelihood(content["likelihood"], decoder, chosen, values["totals"]))
    used = decoder.decode(content["used"], tuple[str, ...], "used")
    selected: Space = values["asked"]
    check_space(selected, model)
    structure.check(sums, selected)
    space = selected.only(used)
    if space.names != used or not used:
        raise PeewitError(f"the used weights {short(used)} are not among {short(selected.names)}")
    arithmetic = as_arithmetic(decoder.decode(content["arithmetic"], str, "arithmetic"))
    check_values(values, kind, structure, space, model, arithmetic)
    values |= {name: decoder.decode(content[name], hints[name], name) for name in MAYBE if name in content}
    check_linear(values.get("linear_mode"), values["weights"], space)
    if TRACE in content:
        saved: SavedTrace = decoder.decode(content[TRACE], SavedTrace, TRACE)
        values[TRACE] = saved.restore(values["prior"].names(space))
    curvature = decompose(structure, kind, sums, space)
    return PosteriorState(
        model=model,
        space=space,
        likelihood=family,
        structure=structure,
        curvature_kind=kind,
        curvature=curvature,
        budget=replace(limit, arithmetic=arithmetic),
        identity=Identity.of(model),
        measurement=Measurement(
            sums=sums,
            timings={"measure": 0.0, "decompose": time.perf_counter() - began},
            **{name: values.pop(name) for name in MEASURED},
        ),
        **values,
    )


def choose_likelihood(saved: Any, decoder: Decoder, chosen: Likelihood | None, totals: Totals) -> Likelihood:
    """The saved one; where it could not be saved, the one that is given."""
    if isinstance(saved, dict) and set(saved) == {"name"}:
        if chosen is None:
            raise MismatchError(
                f"The likelihood was {short(saved['name'])}, which a file cannot hold; give it again: "
                "load(path, model, likelihood=...)."
            )
        if type(chosen).__name__ != saved["name"]:
            raise MismatchError(
                f"likelihood is a {type(chosen).__name__}; the posterior was fitted with {short(saved['name'])}."
            )
        return chosen if totals.form is None else chosen.bind(totals.form)
    likelihood: Likelihood = decoder.one_of(saved, LIKELIHOODS, "likelihood")
    if chosen is not None and not alike(chosen, likelihood):
        raise MismatchError(
            f"likelihood={short(chosen)} was given; the posterior was fitted with {short(likelihood)}, and the file "
            "holds it. Leave likelihood= out, or fit again."
        )
    return likelihood


def alike(first: Any, second: Any) -> bool:
    """Whether two values would be written in the same way."""
    encodings = []
    for value in (first, second):
        encoder = Encoder(KNOWN)
        try:
            text = encoder.encode(value, "value")
        except Unsaveable:
            return False
        encodings.append((text, {name: digest(tensor) for name, tensor in encoder.tensors.items()}))
    return encodings[0] == encodings[1]
