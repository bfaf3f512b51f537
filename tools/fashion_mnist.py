"""Make the cut of Fashion-MNIST that the package ships.

    python tools/fashion_mnist.py --data FOLDER

FOLDER has the four gzipped IDX files of https://github.com/zalandoresearch/fashion-mnist, under their own names. The
first images of every class are taken in the order of those files, so the same file comes out every time.
"""

from __future__ import annotations

import argparse
import gzip
import struct
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

TARGET = Path(__file__).resolve().parent.parent / "src" / "peewit" / "data" / "fashion_mnist.safetensors.gz"
CLASSES = 10
PER_CLASS = {"train": 600, "t10k": 300}
NAMES = {"train": "train", "t10k": "test"}
LIMIT = 5_000_000


def read_idx(path: Path) -> Tensor:
    """The uint8 array of a gzipped IDX file."""
    content = gzip.decompress(path.read_bytes())
    axes = content[3]
    shape = struct.unpack(f">{axes}I", content[4 : 4 + 4 * axes])
    return torch.frombuffer(bytearray(content[4 + 4 * axes :]), dtype=torch.uint8).reshape(shape)


def cut(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """The first images (n, 28, 28) of every class and their labels (n,), in the order of the file."""
    images = read_idx(next(iter(sorted(folder.glob(f"{part}-images*-idx3-ubyte.gz")))))
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz")[: len(images)]
    rank = torch.stack([(labels == k).cumsum(0) for k in range(CLASSES)], 1)[torch.arange(len(labels)), labels.long()]
    kept = rank <= PER_CLASS[part]
    return images[kept].contiguous(), labels[kept].contiguous()


def main() -> None:
    """Read, cut, compress, and print how large the file is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the four files")
    parser.add_argument("--out", type=Path, default=TARGET, help="the file to write")
    arguments = parser.parse_args()
    tensors = {}
    for part, name in NAMES.items():
        tensors[f"{name}_images"], tensors[f"{name}_labels"] = cut(arguments.data, part)
    # mtime: without it the file would differ with every run.
    content = gzip.compress(save(tensors), compresslevel=9, mtime=0)
    if len(content) > LIMIT:
        raise SystemExit(f"{len(content):,} bytes; expected at most {LIMIT:,}. Take fewer images per class.")
    arguments.out.write_bytes(content)
    print(f"{arguments.out}: {len(content):,} bytes,", ", ".join(f"{k} {tuple(v.shape)}" for k, v in tensors.items()))


if __name__ == "__main__":
    main()
