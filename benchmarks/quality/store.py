"""One file per task and way, so that a later run adds ways and splits without measuring the rest again."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FORMAT = 1
DIGITS = 5
RESULTS = Path(__file__).resolve().parent / "results"
Content = dict[str, Any]


def short(name: str) -> str:
    """A name without spaces and commas, as files have it."""
    return name.replace(",", "").replace(" ", "-")


def path_of(folder: Path, task: str, way: str) -> Path:
    """The file of a way: FOLDER/task/way.json."""
    return folder / short(task) / f"{short(way)}.json"


def read(path: Path) -> Content:
    """What was measured; nothing where there is no such file."""
    if not path.exists():
        return {"format": FORMAT, "done": [], "cases": {}}
    content: Content = json.loads(path.read_text(encoding="utf-8"))
    if content.get("format") != FORMAT:
        raise SystemExit(f"{path} has format {content.get('format')}, expected {FORMAT}; remove it and measure again.")
    return content


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Other processes that write into the same folder wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def add(
    folder: Path, task: str, way: str, header: Mapping[str, Any], cases: Content, done: Collection[str] = ()
) -> None:
    """Put cases beside those in the file; a case that is already there is replaced, and the file is never half written.

    `done` names the splits, as "training/split", of which every case was measured.
    """
    path = path_of(folder, task, way)
    with locked(path):
        content = read(path)
        content |= {"task": task, "way": way, **header}
        content["done"] = sorted({*content["done"], *done}, key=natural)
        merged = {**content.pop("cases"), **rounded(cases)}
        beside = path.with_name(path.name + ".part")
        beside.write_text(written(content, merged), encoding="utf-8")
        os.replace(beside, path)


def natural(key: str) -> list[tuple[int, str]]:
    """Splits in the order of their numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in key.split("/")]


def written(header: Content, cases: Content) -> str:
    """A case to a line, so that a file is short and a change of it is readable."""
    start = json.dumps(header, indent=1).removesuffix("\n}")
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(cases[key])}" for key in sorted(cases, key=natural))
    return f'{start},\n "cases": {{\n{lines}\n }}\n}}\n'


def rounded(value: Any) -> Any:
    """Five digits."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def read_all(folder: Path) -> dict[tuple[str, str], Content]:
    """All files of a folder, by task and way."""
    contents = [read(path) for path in sorted(folder.glob("*/*.json"))]
    return {(content["task"], content["way"]): content for content in contents}


def merge(source: Path, target: Path) -> int:
    """Add the files of one folder to another, and return how many there were."""
    contents = read_all(source)
    for (task, way), content in contents.items():
        header = {key: value for key, value in content.items() if key not in ("cases", "done")}
        add(target, task, way, header, content["cases"], content["done"])
    return len(contents)
