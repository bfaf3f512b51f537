"""The command as a process: help without torch, completion and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from environment import ROOT

pytest.importorskip("typer", reason="no typer")

from commands import furnished
from peewit import likelihoods
from peewit.cli import commands, main
from peewit.cli import options as named
from peewit.curvature import kinds, structures
from peewit.evaluation.attacks import ATTACKS
from peewit.evaluation.corruptions import CORRUPTIONS


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from furnished(tmp_path, monkeypatch)


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    names = [command.__name__ for command, _ in commands.ALL]
    for name in (*names, "--install-completion"):
        assert name in shown
    assert "Exit status: 0" in " ".join(shown.split())
    for name in names:
        assert main([name, "--help"]) == 0
        assert f"peewit {name} " in capsys.readouterr().out.split("Examples")[1]


def environment(**extra: str) -> dict[str, str]:
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **extra}


def interruptible() -> None:
    """As in a terminal: jobs in the background start with Ctrl-C ignored, and so does all that they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def process(*given: str, cwd: Path, **extra: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "peewit.cli", *given]
    return subprocess.Popen(
        command, cwd=cwd, env=environment(**extra), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=interruptible,
    )  # fmt: skip


def test_the_library_does_not_load_what_commands_and_figures_need(tmp_path: Path) -> None:
    heavy = "{'typer', 'plotly', 'kaleido', 'optuna', 'sklearn', 'torchmetrics', 'PIL'}"
    code = f"import sys, peewit; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), cwd=tmp_path
    )
    assert found.stdout == "[]\n", found.stderr


@pytest.mark.parametrize(
    "given", ["--help", "--version", "fit --help", "evaluate --help", "", "fitt", "fit -c gone.toml"]
)
def test_help_does_not_wait_for_torch(given: str, tmp_path: Path) -> None:
    """Nor do refusals of commands and settings: torch is imported when a command begins its work."""
    code = (
        "import sys; from peewit_command import main; main()\n"
        "print(sorted({'torch', 'numpy', 'safetensors', 'plotly'} & set(sys.modules)), file=sys.stderr)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, *given.split()], capture_output=True, text=True, env=environment(), cwd=tmp_path
    )
    assert found.stderr.endswith("[]\n"), found.stderr


def test_importing_the_library_does_not_import_torch(tmp_path: Path) -> None:
    """Its names do when they are asked for; the function `fit` is itself whatever was imported before."""
    code = (
        "import sys, peewit as pw; assert 'torch' not in sys.modules and dir(pw) == sorted(pw.__all__)\n"
        "import peewit.recommendation, peewit.figures\n"
        "from peewit import Kron, fit, load\n"
        "assert callable(pw.fit) and pw.fit is fit and pw.load is load and pw.Kron is Kron and 'torch' in sys.modules"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), cwd=tmp_path
    )
    assert found.returncode == 0, found.stderr


def test_the_folder_of_data_is_an_attribute(tmp_path: Path) -> None:
    """It is loaded when it is asked for, and shows its names alone."""
    code = (
        "import sys, peewit as pw; assert 'peewit.data' not in sys.modules and 'data' in dir(pw)\n"
        "assert dir(pw.data) == ['FASHION_MNIST_CLASSES', 'fashion_mnist'] and callable(pw.data.fashion_mnist)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), cwd=tmp_path
    )
    assert found.returncode == 0, found.stderr


def test_names_in_help_are_those_of_the_library() -> None:
    """They are written twice, since help does not load the library."""
    assert tuple(likelihoods.NAMES) == named.LIKELIHOODS
    assert tuple(structures.NAMES) == named.STRUCTURES and tuple(kinds.NAMES) == named.CURVATURES
    assert tuple(CORRUPTIONS) == named.SHIFTS and tuple(ATTACKS) == named.ATTACKS


def test_a_shell_completes_commands(tmp_path: Path) -> None:
    started = process(cwd=tmp_path, _PEEWIT_COMPLETE="complete_bash", COMP_WORDS="peewit pre", COMP_CWORD="1")
    assert started.communicate(timeout=60)[0].split() == ["predict"]


SLOW = """
import time
from {module} import *

def forever():
    x, y = data()
    yield x, y
    open("started", "w").close()
    time.sleep(60)
"""


def test_ctrl_c_while_the_library_is_imported(tmp_path: Path) -> None:
    code = "import sys; from peewit_command import main; print(flush=True); sys.exit(main())"
    started = subprocess.Popen(
        [sys.executable, "-c", code, "predict", "--data", "x.npz", "--json"], cwd=tmp_path, env=environment(),
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert started.stdout is not None and started.stdout.read(1) == "\n"
        time.sleep(0.5)  # in the midst of torch, which takes a second or more
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=60)
    finally:
        started.kill()
    assert (started.returncode, out, err) == (130, "", "Interrupted; nothing was written.\n")


def test_the_command_starts_where_it_is_said_to() -> None:
    import peewit_command

    page = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'peewit = "peewit_command:main"' in page
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["peewit", "--version"])
        before = signal.getsignal(signal.SIGINT)
        assert peewit_command.main() == 0 and signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_during_a_fit(place: str, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW.format(module=place))
    before = {each.name for each in tmp_path.iterdir()}
    given = f"fit -m {place}:classifier -l classification --train slow:forever -o made.safetensors"
    started = process(*given.split(), cwd=tmp_path)
    try:
        for _ in range(600):
            if (tmp_path / "started").exists():
                break
            time.sleep(0.1)
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=60)
    finally:
        started.kill()
        started.communicate()
    assert started.returncode == 130
    assert out == "" and err == "Interrupted; nothing was written.\n"
    assert {each.name for each in tmp_path.iterdir()} - before <= {"started", "__pycache__"}
