"""Folders of images: one folder per class, or images alone where no classes are needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from .output import Problem

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def folder(
    path: Path, size: tuple[int, int] | None, classes: Sequence[str] | None, labels: bool
) -> tuple[Tensor, Tensor | None, tuple[str, ...] | None]:
    """(N, channels, height, width) in 0 to 1, the classes (N,) by folder, and their names."""
    inner = sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    files_by_class = {inner_folder.name: images_in(inner_folder) for inner_folder in inner}
    files_by_class = {name: files for name, files in files_by_class.items() if files}
    if not files_by_class:
        if labels:
            raise Problem(f"{path} has no folders with images in them; expected one folder per class.")
        return pictures(images_in(path), path, size), None, None
    names = tuple(classes) if classes is not None else tuple(files_by_class)
    if labels and (unknown := sorted(set(files_by_class) - set(names))):
        raise Problem(f"{path} has a folder {unknown[0]!r}; expected the classes {', '.join(names)}.")
    files = [file for paths in files_by_class.values() for file in paths]
    x = pictures(files, path, size)
    if not labels:
        return x, None, None
    y = [names.index(name) for name, paths in files_by_class.items() for _ in paths]
    return x, torch.tensor(y, dtype=torch.int64), names


def images_in(path: Path) -> list[Path]:
    """Images in a folder, in the order of their names."""
    return sorted(entry for entry in path.iterdir() if entry.suffix.lower() in ENDINGS and entry.is_file())


def pictures(files: Sequence[Path], where: Path, size: tuple[int, int] | None) -> Tensor:
    """All images in one tensor: grey where all are grey, else with three colours."""
    try:
        from PIL import Image
    except ImportError as error:
        raise Problem("Folders of images need Pillow: pip install pillow.") from error
    if not files:
        raise Problem(f"{where} has no images; expected files that end in {', '.join(ENDINGS)}.")
    opened: list[Any] = []
    for file in files:
        try:
            with Image.open(file) as image:
                plain = image.convert("L" if image.mode in ("1", "L", "I;16", "LA") else "RGB")
        except Exception as error:  # Pillow's plugins have many kinds
            raise Problem(f"{file} cannot be read as an image: {error}") from error
        opened.append(plain if size is None else plain.resize((size[1], size[0]), Image.Resampling.BILINEAR))
    first = opened[0].size
    for file, image in zip(files, opened, strict=True):
        if image.size != first:
            raise Problem(
                f"{file} has {image.size[0]} x {image.size[1]} pixels and {files[0]} has {first[0]} x {first[1]}; "
                "give --size HEIGHT WIDTH to bring all to one size."
            )
    mode = "L" if all(image.mode == "L" for image in opened) else "RGB"
    stacked = numpy.stack([numpy.asarray(image.convert(mode)) for image in opened])
    x = torch.from_numpy(stacked).float() / 255
    return x[:, None] if mode == "L" else x.permute(0, 3, 1, 2).contiguous()
