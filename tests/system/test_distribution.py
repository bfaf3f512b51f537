"""What is handed out: the wheel and the source distribution, what they hold, and that they work alone.

The quick tests build a wheel from the files of the repository, without an index. The others take what `make dist` built
from the folder that PEEWIT_TEST_DIST names, and the slow ones install it into an empty environment: `make test-dist`.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import peewit as pw
from environment import ROOT

BUILT = os.environ.get("PEEWIT_TEST_DIST", "")
SCRIPT = ROOT / "tests" / "support" / "user_script.py"
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
PLACES = "import sys, peewit, peewit_command; print(peewit.__file__, peewit_command.__file__, *sys.path, sep='\\n')"
INSTALLED = "from importlib.metadata import files; print(*(each.as_posix() for each in files('peewit')), sep='\\n')"
# Mistakes that a type checker has to find in a user's script.
MISTAKES = """
import torch
import peewit as pw

def mistaken(model: torch.nn.Module) -> None:
    la: int = pw.fit(model, [], "classification")
    pw.fitt(model, [], "classification")
    pw.fit(model, [], "classification").tune("evidenc")
    pw.fit(model, 3, "classification")
    pw.fit(model, [], "classification").predict(torch.ones(1)).probbs
"""

needs_git = pytest.mark.skipif(
    not (ROOT / ".git").exists() or shutil.which("git") is None, reason="no git, or no checkout of its"
)
needs_built = pytest.mark.skipif(not BUILT, reason="set PEEWIT_TEST_DIST to the folder that make dist built")


def sources() -> set[str]:
    """The repository's files, also those that are still to be added to git."""
    asked = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split("\0")
    return {name for name in listed if name and (ROOT / name).is_file()}


def packaged() -> set[str]:
    """Those that a wheel has to hold, as it names them."""
    return {name.removeprefix("src/") for name in sources() if name.startswith("src/")}


def held(wheel: Path) -> set[str]:
    """What a wheel holds besides its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return BytesParser().parsebytes(archive.read(name))


def version_in(page: str, pattern: str) -> str:
    found = re.search(pattern, (ROOT / page).read_text(encoding="utf-8"), re.M)
    assert found is not None, f"{page} names no version"
    return found[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the files as they are now, built from a copy: builds leave files behind, which later ones take in."""
    pytest.importorskip("setuptools", minversion="77")
    place, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheel")
    for name in sources():
        if name.startswith("src/") or "/" not in name:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
    built = subprocess.run([sys.executable, "-c", BUILD, out], cwd=place, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (made,) = out.glob("*.whl")
    return made


@needs_git
def test_a_wheel_holds_the_sources_and_nothing_else(wheel: Path) -> None:
    names = held(wheel)
    assert names == packaged()
    assert {".py", ".typed", ".gz", ".html", ".css", ".js"} <= {Path(name).suffix for name in names}
    assert "peewit/py.typed" in names


@needs_git
def test_a_wheel_says_what_it_is(wheel: Path) -> None:
    said = metadata(wheel)
    assert (said["Name"], said["Version"]) == ("peewit", pw.__version__)
    assert (said["License-Expression"], said["Requires-Python"]) == ("MIT", ">=3.10")
    assert said["Description-Content-Type"] == "text/markdown" and "# Peewit" in said.get_payload()
    urls = dict(each.split(", ") for each in said.get_all("Project-URL", []))
    assert set(urls) == {"Homepage", "Documentation", "Changelog", "Issues", "Source"}
    assert all(url.startswith("https://") for url in urls.values())
    with zipfile.ZipFile(wheel) as archive:
        info = wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"
        for licence in said.get_all("License-File", []):
            assert "MIT License" in archive.read(f"{info}/licenses/{licence}").decode()
        assert "peewit = peewit_command:main" in archive.read(f"{info}/entry_points.txt").decode()
    assert len(said.get_all("License-File", [])) == 3  # ours, that of the images, and plotly.js's


def test_one_version_everywhere() -> None:
    """In the package, its metadata, the citation, and the newest section of the changelog."""
    places = {
        "pyproject.toml": r'^version = "(.+)"$',
        "CITATION.cff": r'^version: "?([^"\n]+)"?$',
        "CHANGELOG.md": r"^## \[(?:Unreleased\]: )?([0-9][^\] \n]*)",
    }
    found = {page: version_in(page, pattern) for page, pattern in places.items()}
    assert set(found.values()) == {pw.__version__}, found


@pytest.mark.skipif(not (ROOT / ".github").exists(), reason="distributions leave out what begins with a dot")
def test_citation_and_forms_can_be_read() -> None:
    yaml = pytest.importorskip("yaml")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0" and cited["license"] == "MIT" and cited["authors"]
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert {form.stem for form in forms} == {"bug", "config", "feature"}
    for form in forms:
        read = yaml.safe_load(form.read_text(encoding="utf-8"))
        if form.stem != "config":
            assert read["name"] and read["description"]
            fields = [each for each in read["body"] if each["type"] != "markdown"]
            assert len({each["id"] for each in fields}) == len(fields) > 0
            assert all(each["attributes"]["label"] for each in fields)


@pytest.mark.filterwarnings("ignore:The geometric mean of the precisions:peewit.TuningWarning")
def test_the_user_script_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert capsys.readouterr().out.endswith(f"peewit {pw.__version__}\n")


# What `make dist` built


def only(pattern: str) -> Path:
    """The one file in the folder of what was built."""
    found = sorted(Path(BUILT).resolve().glob(pattern))
    assert len(found) == 1, f"{len(found)} files {pattern} in {BUILT}; expected one. make dist"
    return found[0]


@needs_built
@needs_git
def test_built_distributions_hold_the_repository() -> None:
    """The wheel the package; the source distribution all but what begins with a dot."""
    assert held(only("*.whl")) == packaged()
    source = only("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {each.name.partition("/")[2] for each in archive.getmembers() if each.isfile()}
    made = {name for name in names if name in ("PKG-INFO", "setup.cfg") or ".egg-info/" in name}
    assert names - made == {name for name in sources() if not name.startswith(".")}


class Environment:
    """A virtual environment with what is installed into it, and nothing of the repository within its reach."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.holds = ""
        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        self.variables = {name: value for name, value in os.environ.items() if name not in hidden}
        subprocess.run([sys.executable, "-m", "venv", folder / "env"], env=self.variables, check=True)

    @property
    def python(self) -> Path:
        return self.folder / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"

    def run(self, *command: str | Path, cwd: Path | None = None) -> str:
        """The output of a command of the environment."""
        asked = [self.python.with_name(str(command[0])), *command[1:]]
        place = cwd or self.folder
        done = subprocess.run(asked, cwd=place, env=self.variables, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def install(self, distribution: str) -> None:
        """Put a distribution in place of the one that is there; the environment keeps what that one required."""
        if distribution == self.holds:
            return
        pip = ("python", "-m", "pip")
        if self.holds:
            self.run(*pip, "uninstall", "-qq", "-y", "peewit", "plotly", "kaleido")
        options = ("-qq", "--disable-pip-version-check", "--no-compile", "-c", ROOT / "constraints.txt")
        self.run(*pip, "install", *options, distribution)
        self.run(*pip, "check")
        self.holds = distribution
        for place in self.run("python", "-c", PLACES).split("\n"):
            assert ROOT not in (Path(place), *Path(place).parents), f"{place} is in the repository"


@pytest.fixture(scope="module")
def environment() -> Iterator[Environment]:
    """Removed at the end: it holds a gigabyte, of torch mostly."""
    with TemporaryDirectory(prefix="peewit-dist-") as folder:
        yield Environment(Path(folder).resolve())


@needs_built
@pytest.mark.slow
def test_the_wheel_works_alone(environment: Environment, tmp_path: Path) -> None:
    """Without the extra for figures the demo has its table, names what is missing, and writes nothing."""
    environment.install(str(only("*.whl")))
    assert environment.run("peewit", "--version") == f"peewit {pw.__version__}\n"
    shown = " ".join(environment.run("peewit", "demo", "--quick", cwd=tmp_path).split())
    assert "No report will be written. Figures need plotly, which is not installed: pip install plotly" in shown
    assert "Peewit, tune(validation=...)" in shown and "The quick form" in shown
    assert list(tmp_path.iterdir()) == []


@needs_built
@pytest.mark.slow
def test_the_source_distribution_works_alone(environment: Environment, tmp_path: Path) -> None:
    """It installs what the wheel holds. With the extra for figures the demo ends with a page."""
    environment.install(f"{only('*.tar.gz')}[figures]")
    names = environment.run("python", "-c", INSTALLED).splitlines()
    ours = {name for name in names if name.startswith(("peewit/", "peewit_command/")) and not name.endswith(".pyc")}
    assert ours == held(only("*.whl"))
    assert environment.run("peewit", "--version") == f"peewit {pw.__version__}\n"
    environment.run("peewit", "demo", "--quick", cwd=tmp_path)
    (page,) = tmp_path.iterdir()
    assert page.name == "peewit-demo.html" and "What does it not know" in page.read_text(encoding="utf-8")


def types(environment: Environment, script: Path) -> tuple[int, str]:
    """What mypy says of a script, with nothing of this repository's settings, about the packages that are installed."""
    options = ("--strict", "--config-file=", "--no-pretty", f"--cache-dir={environment.folder / 'types'}")
    asked = [sys.executable, "-m", "mypy", *options, "--python-executable", environment.python, script.name]
    done = subprocess.run(asked, cwd=script.parent, env=environment.variables, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@needs_built
@pytest.mark.slow
def test_a_user_script_has_types(environment: Environment, tmp_path: Path) -> None:
    """It runs beside the wheel, and mypy finds nothing in it; in one with mistakes it finds these."""
    pytest.importorskip("mypy")
    environment.install(str(only("*.whl")))
    script = tmp_path / SCRIPT.name
    shutil.copy(SCRIPT, script)
    assert f"peewit {pw.__version__}" in environment.run("python", script, cwd=tmp_path)
    status, said = types(environment, script)
    assert status == 0, said
    mistaken = tmp_path / "mistaken.py"
    mistaken.write_text(MISTAKES)
    status, said = types(environment, mistaken)
    found = re.findall(r"^mistaken\.py:(\d+): error: .*\[([a-z-]+)\]$", said, re.M)
    expected = {"6": "assignment", "7": "attr-defined", "8": "arg-type", "9": "arg-type", "10": "attr-defined"}
    assert (status, dict(found)) == (1, expected), said
