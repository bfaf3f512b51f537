"""Names of columns and classes: kept with the posterior, and matched in every table and folder that is read with it."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy
import pytest
import torch

import peewit as pw

pytest.importorskip("typer", reason="no typer")

from commands import classifier, data, furnished, run, write_csv
from peewit.cli import tables
from peewit.cli.output import Problem
from peewit.posterior.schema import Schema

pytestmark = pytest.mark.filterwarnings("default:.*(not by name|not used):UserWarning")  # printed as notes

NAMES = ["low", "middle", "top"]
FIT = "fit -m NET:classifier -l classification -o made.safetensors -q --train"
POSTERIOR = "-m NET:classifier -p made.safetensors"
FEW = "--set evaluate.intervals=5"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from furnished(tmp_path, monkeypatch)


def table(name: str, head: str, count: int = 60, label: Sequence[str] = NAMES) -> None:
    """Columns a, b and class of `data`, in any order and with others beside them."""
    x, y = data()
    rows = []
    for (a, b), number in zip(x[:count].tolist(), y[:count].tolist(), strict=True):
        cells = {"a": a, "b": b, "class": label[number], "more": 7.0}
        rows.append([cells[each] for each in head.split(",")])
    write_csv(Path(name), head.split(","), rows)


def bare(name: str, source: str) -> None:
    """A table without its header."""
    Path(name).write_text("".join(Path(source).read_text().splitlines(keepends=True)[1:]))


def fitted() -> pw.Laplace:
    return pw.fit(classifier(), data(), "classification")


def probabilities(path: str = "p.csv") -> torch.Tensor:
    with open(path, newline="") as file:
        return torch.tensor([[float(row[f"p_{name}"]) for name in NAMES] for row in csv.DictReader(file)])


def test_the_file_holds_names(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    table("moved.csv", "class,b,a")
    assert run("fit -m NET:classifier -l classification --train moved.csv --target class --json", place) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["inputs"], told["targets"], told["classes"]) == (["b", "a"], ["class"], NAMES)
    schema = Schema(columns=("class", "b", "a"), targets=("class",), header=True, classes=tuple(NAMES))
    la = pw.load("posterior.safetensors", classifier())
    assert la.state.schema == schema and la.state.schema.inputs == ("b", "a")
    later = la.with_prior(2.0).update(data())
    later.save("later.safetensors")
    assert pw.load("later.safetensors", classifier()).state.schema == schema


def test_a_posterior_of_the_library_has_no_names(place: str, tmp_path: Path) -> None:
    fitted().save("made.safetensors")
    assert pw.load("made.safetensors", classifier()).state.schema is None
    table("inputs.csv", "a,b")
    assert run(f"predict {POSTERIOR} --data inputs.csv -o p.csv --classes low,middle,top -q", place) == 0
    torch.testing.assert_close(probabilities(), fitted().predict(data()[0]).probs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head", ["a,b", "b,a", "a,b,class", "class,b,a", "b,class,a"])
def test_columns_are_matched_by_name(head: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    table("new.csv", head)
    assert run(f"{FIT} named.csv", place) == 0
    assert run(f"predict {POSTERIOR} --data new.csv -o p.csv", place) == 0
    assert ("new.csv: the target column class is not used" in capsys.readouterr().err) == ("class" in head)
    wanted = fitted().predict(data()[0])
    torch.testing.assert_close(probabilities(), wanted.probs, rtol=1e-4, atol=1e-5)
    with open("p.csv", newline="") as file:
        assert [row["predicted"] for row in csv.DictReader(file)] == [NAMES[each] for each in wanted.argmax.tolist()]


@pytest.mark.parametrize("command", ["evaluate", "compare"])
def test_classes_keep_their_order_where_only_some_occur(
    command: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = data()
    kept = y > 0
    rows = [[NAMES[label], b, a] for (a, b), label in zip(x[kept].tolist(), y[kept].tolist(), strict=True)]
    write_csv(Path("upper.csv"), ["class", "b", "a"], rows)
    assert run(f"{FIT} named.csv", place) == 0
    probs = fitted().predict(x[kept]).probs.tolist()
    nll = sum(-math.log(row[label]) for row, label in zip(probs, y[kept].tolist(), strict=True)) / len(rows)
    capsys.readouterr()
    if command == "evaluate":
        ood = "--ood far=far.csv"
        table("far.csv", "b,a")
        assert run(f"evaluate {POSTERIOR} {FEW} --test upper.csv --validation upper.csv {ood} --json -q", place) == 0
        told = json.loads(capsys.readouterr().out)
        method = next(each for each in told["methods"] if "Laplace" in each["name"])
        assert told["classes"] == NAMES and method["metrics"]["nll"]["value"] == pytest.approx(nll, rel=1e-3)
    else:
        assert run("compare made.safetensors -m NET:classifier --test upper.csv --json", place) == 0
        found = json.loads(capsys.readouterr().out)["posteriors"][0]["metrics"]["nll"]["value"]
        assert found == pytest.approx(nll, rel=1e-3)


def test_several_targets_keep_their_order(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    x, _ = data()
    head, rows = ["a", "sum", "b", "less"], [[a, a + b, b, a - b] for a, b in x.tolist()]
    write_csv(Path("two.csv"), head, rows)
    write_csv(Path("turned.csv"), head[::-1], [row[::-1] for row in rows])
    fit = "fit -m NET:pair -l regression --train two.csv --target less --target sum -o r.safetensors -q"
    assert run(fit, place) == 0
    found = []
    for test in ("two.csv", "turned.csv", "turned.csv --target sum --target less"):
        capsys.readouterr()
        assert run(f"evaluate -m NET:pair -p r.safetensors {FEW} --test {test} --json -q", place) == 0
        found.append(json.loads(capsys.readouterr().out)["methods"][0]["metrics"]["rmse"]["value"])
    torch.manual_seed(0)
    net = torch.nn.Linear(2, 2)
    error = net(x).detach() - torch.stack([x[:, 0] - x[:, 1], x[:, 0] + x[:, 1]], 1)
    assert found == pytest.approx([float(error.square().mean().sqrt())] * 3, rel=1e-3)


LACKING = "has no column 'a', which the posterior was fitted with; did you mean 'A'? it has A, b, class"


@pytest.mark.parametrize(
    "given",
    [
        "predict POSTERIOR --data other.csv -o p.csv",
        "evaluate POSTERIOR --test other.csv",
        "evaluate POSTERIOR --test named.csv --validation other.csv",
        "evaluate POSTERIOR --test named.csv --ood odd=other.csv",
        "report POSTERIOR --test other.csv",
        "compare made.safetensors -m NET:classifier --test other.csv",
        "tune POSTERIOR --method validation --validation other.csv",
        "tune POSTERIOR --at linear_mode --train other.csv",
        "landscape POSTERIOR --train other.csv",
    ],
)
def test_every_command_matches_names(given: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.csv").write_text("A,b,class\n1,2,low\n")
    assert run(f"{FIT} named.csv", place) == 0
    capsys.readouterr()
    assert run(given.replace("POSTERIOR", POSTERIOR), place) == 2
    told = capsys.readouterr()
    assert LACKING in told.err and told.err.count("\n") == 1 and told.out == ""


@pytest.mark.parametrize(
    "text, extra, words",
    [
        ("a,b,more\n1,2,3\n", "", "has the column 'more', which the posterior was not fitted with; expected a, b."),
        ("b,class\n2,low\n", "", "has no column 'a'"),
        ("a;b\n1;2\n", "", "has semicolons between its cells; expected commas"),
        ("1,2\n3,4\n", "", "begins with 1, 2; the table of the fit had the header a, b, class. Add that header"),
        ("1,2,low\n3,4,top\n", "", "begins with 1, 2, low; the table of the fit had the header"),
        ("1,2,low,4\n", "--no-header", "has 4 columns; expected 2 inputs and 1 target, or the inputs alone"),
        ("a,b\n1,\n", "", "row 1, column 'b' holds ''; expected a number"),
        ("a,b\n1,2\n", "--classes top,middle,low", "fitted with low, middle, top. Leave --classes out"),
        ("a,b\n1,2\n", "--level 2", "level = 2.0 was given; expected a probability, 0 < level < 1"),
        ("a,b\n1,2\n", "--level 0", "0 < level < 1"),
        ("a,b\n1,2\n", "--set predict.level=1", "0 < level < 1"),
        ("a,b,class\n1,2,low\n", "--target a", "fitted with 'a' as an input"),
    ],
)
def test_inputs_that_do_not_match(
    text: str, extra: str, words: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("new.csv").write_text(text)
    assert run(f"{FIT} named.csv", place) == 0
    capsys.readouterr()
    assert run(f"predict {POSTERIOR} --data new.csv -o p.csv {extra}", place) == 2
    told = capsys.readouterr().err
    assert words in told and told.count("\n") == 1 and not Path("p.csv").exists()


@pytest.mark.parametrize(
    "train, text, words",
    [
        ("named.csv", "a,b,class\n1,2,low\n3,4,other\n", "has the class 'other'; expected one of low, middle, top"),
        ("named.csv", "a,b,class\n1,2,0\n3,4,1\n", "has the class '0'; expected one of low, middle, top"),
        ("named.csv", "a,b,class\n1,2,low\n3,4,\n", "row 2, column 'class' is empty; expected a class"),
        ("named.csv", "a,b,Class\n1,2,low\n", "has no column 'class', which the posterior was fitted with; did you"),
        ("named.csv", "a,b,class,more\n1,2,low,3\n", "has the column 'more'"),
        ("numbered.csv", "a,b,class\n1,2,low\n3,4,top\n5,6,middle\n", "fitted with numbered classes. Name all"),
        ("train.npz", "a,b,class\n1,2,low\n3,4,top\n5,6,middle\n", "fitted with numbered classes. Name all"),
    ],
)
def test_labels_that_do_not_match(
    train: str, text: str, words: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table("numbered.csv", "a,b,class", label="012")
    Path("new.csv").write_text(text)
    assert run(f"{FIT} {train}", place) == 0
    capsys.readouterr()
    assert run(f"evaluate {POSTERIOR} {FEW} --test new.csv", place) == 2
    told = capsys.readouterr().err
    assert words in told and told.count("\n") == 1


def test_an_empty_cell_is_no_class(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    for empty, others in ((2, NAMES), (3, "012")):
        rows = [[1.5, number, others[number % 3]] for number in range(6)]
        rows[empty - 1][2] = " "
        write_csv(Path("gap.csv"), ["a", "b", "class"], rows)
        assert run(f"{FIT} gap.csv", place) == 2
        assert f"row {empty}, column 'class' is empty; expected a class" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["all.csv", "inputs.csv"])
def test_tables_without_a_header_go_by_place(source: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    table("with.csv", "class,a,b")
    table("inputs_with.csv", "a,b")
    bare("all.csv", "with.csv")
    bare("inputs.csv", "inputs_with.csv")
    assert run(f"{FIT} all.csv --target 0", place) == 0
    assert pw.load("made.safetensors", classifier()).state.schema == Schema(
        columns=("0", "1", "2"), targets=("0",), classes=tuple(NAMES)
    )
    capsys.readouterr()
    assert run(f"predict {POSTERIOR} --data {source} -o p.csv", place) == 0
    assert ("the target column 0 is not used" in capsys.readouterr().err) == (source == "all.csv")
    wanted = fitted().predict(data()[0]).probs
    torch.testing.assert_close(probabilities(), wanted, rtol=1e-4, atol=1e-5)
    assert run(f"predict {POSTERIOR} --data inputs_with.csv -o q.csv", place) == 2
    assert "the table of the fit had none" in capsys.readouterr().err
    assert run(f"predict {POSTERIOR} --data inputs_with.csv --header -o q.csv", place) == 0
    assert "columns are read in the order 1, 2, not by name" in capsys.readouterr().err
    torch.testing.assert_close(probabilities("q.csv"), wanted, rtol=1e-4, atol=1e-5)
    Path("wide.csv").write_text("0.5,2.5,3,4\n")
    assert run(f"predict {POSTERIOR} --data wide.csv -o q.csv", place) == 2
    assert "has 4 columns; expected 2 inputs and 1 target, or the inputs alone" in capsys.readouterr().err
    assert run(f"evaluate {POSTERIOR} --test inputs.csv", place) == 2
    assert "has 2 columns; expected 2 inputs and 1 target, as" in capsys.readouterr().err


def test_no_header_takes_the_order_of_the_fit(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    table("with.csv", "class,a,b")
    bare("all.csv", "with.csv")
    assert run(f"{FIT} with.csv --target class", place) == 0
    capsys.readouterr()
    assert run(f"predict {POSTERIOR} --data all.csv --no-header -o p.csv", place) == 0
    assert "columns are read in the order class, a, b, not by name" in capsys.readouterr().err
    torch.testing.assert_close(probabilities(), fitted().predict(data()[0]).probs, rtol=1e-4, atol=1e-5)


def text(rows: Sequence[Sequence[object]]) -> str:
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


REAL = [[0.25 + i, 1.5 * i, -0.125 * i * i] for i in range(1, 13)]  # some are written without a fraction by %g
COUNTS = [[i * 7 % 5, i * 3 % 7, i % 2] for i in range(12)]
SPECTRA = [[math.sin(i * j + 1) for j in range(9)] for i in range(12)]
CLASSES = [[0.5 + i, 1.5 * i, "yes" if i % 3 else "no"] for i in range(1, 9)]


@pytest.mark.parametrize(
    "rows, header",
    [
        ([["a", "b", "c"], *REAL], True),
        ([["a", "2019", "2020"], *REAL], True),
        ([["1_1", "1_2", "2_1"], *REAL], True),  # numbers to Python alone
        ([["a", "2", "class"], *CLASSES], True),
        ([["", "a", "b"], *REAL], True),
        ([[2019, 2020, 2021], *REAL], None),
        ([[2019, 2023, 2024], *REAL], None),
        ([[0, 1, 2], *REAL], None),
        ([[0, 1, 2], *COUNTS], None),
        ([[2019, 2020, 2021], *COUNTS], None),
        ([[0.5, 1.0, 1.5], *REAL], None),
        ([[400.5, 403, 409, 410, 412.5, 417, 418, 430, 444], *SPECTRA], None),
        ([[2019, 2020, "class"], *CLASSES], None),
        ([["", 0, 1], *REAL], None),
        ([["NA", 0.5, 0.25], *REAL], None),
        (REAL, False),
        (COUNTS, False),
        (SPECTRA, False),
        (CLASSES, False),
        ([[0, 0, 0], *REAL], False),  # the start of a path: names would differ
        ([[1, 2, 3], [2, 3, 4], [1, 1, 5], [4, 2, 1]], False),
        ([[i, i + 0.5, i + 1.0] for i in range(5)], False),  # every row rises
        ([[f"{value:g}" for value in (1, 2)], ["0.5", "4"], ["3", "7"], ["0.25", "1"]], False),
        ([["1e3", "2.5"], ["7", "0.5"]], False),
        ([[5, 2, 3]], False),  # a row alone
    ],
)
def test_first_rows(rows: list[list[object]], header: bool | None, tmp_path: Path) -> None:
    """A header, an example, or neither for certain."""
    path = tmp_path / "table.csv"
    path.write_text(text(rows))
    if header is None:
        with pytest.raises(Problem, match="may be a header or an example; use --header or --no-header"):
            tables.read(path, None, True, Schema())
    else:
        assert tables.read(path, None, True, Schema()).header is header
    if len(rows) > 1 and len(set(rows[0])) == len(rows[0]):
        for said in (True, False):
            found = tables.read(path, said, True, Schema())
            assert found.header is said and len(found.rows) == len(rows) - said
            assert found.names == (tuple(map(str, rows[0])) if said else tuple(map(str, range(len(rows[0])))))


@pytest.mark.parametrize(
    "rows, header",
    [
        ([[2019, 2020], [0.5, 0.25]], True),
        ([[2020, 2019, "y"], [0.5, 0.25, 0.75]], True),
        ([[2020, 2021], [0.5, 0.25]], None),
        ([[0.5, 0.25], [0.5, 0.25]], None),
    ],
)
def test_known_names_tell_a_header_of_numbers(rows: list[list[object]], header: bool | None, tmp_path: Path) -> None:
    path, known = tmp_path / "table.csv", Schema(columns=("2019", "2020", "y"), targets=("y",), header=True)
    path.write_text(text(rows))
    if header is None:
        with pytest.raises(Problem, match="the table of the fit had the header 2019, 2020, y"):
            tables.read(path, None, False, known)
    else:
        assert tables.read(path, None, False, known).names == tuple(map(str, rows[0]))


def test_short_tables_are_no_headers_where_the_fit_had_none(tmp_path: Path) -> None:
    path, known = tmp_path / "table.csv", Schema(columns=("0", "1", "2"), targets=("2",))
    for rows, kept in (([[1, 2], [0.5, 0.25]], True), ([[1, 2], *([[0.5, 0.25]] * 20)], False)):
        path.write_text(text(rows))
        if kept:
            assert len(tables.read(path, None, False, known).rows) == 2
        else:
            with pytest.raises(Problem, match="may be a header"):
                tables.read(path, None, False, known)


def test_a_known_class_is_no_name(tmp_path: Path) -> None:
    path, rows = tmp_path / "table.csv", [[0.5, 0.25, "low"], [1.5, 2.5, "top"]]
    path.write_text(text(rows))
    known = Schema(columns=("0", "1", "2"), targets=("2",), classes=tuple(NAMES))
    assert len(tables.read(path, None, True, known).rows) == 2
    with pytest.raises(Problem, match="may be a header"):
        tables.read(path, None, True, Schema())


def test_a_header_of_numbers_is_no_example(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [[a, b, a + b] for a, b in data(20)[0].tolist()]
    write_csv(Path("years.csv"), ["2019", "2020", "2021"], rows)
    write_csv(Path("letters.csv"), ["a", "b", "c"], rows)
    common = "fit -m NET:regressor -l regression --noise 1 --json --train"
    assert run(f"{common} years.csv", place) == 2
    assert "begins with 2019, 2020, 2021" in capsys.readouterr().err
    found = []
    for given in ("letters.csv", "years.csv --header", "years.csv --set header=true"):
        assert run(f"{common} {given}", place) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert [each["examples"] for each in found] == [20] * 3
    assert [each["log_evidence"] for each in found] == [found[0]["log_evidence"]] * 3
    x = torch.tensor([row[:2] for row in rows])
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    wanted = pw.fit(net, (x, x.sum(1, keepdim=True)), pw.Gaussian(1.0)).log_evidence()
    assert found[0]["log_evidence"] == pytest.approx(float(wanted), rel=1e-4)


def test_names_of_classes_for_arrays(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Arrays have numbers; their names serve tables that come later."""
    assert run(f"{FIT} train.npz --classes low,middle,top", place) == 0
    assert run(f"predict {POSTERIOR} --data train.npz -o p.csv -q", place) == 0
    torch.testing.assert_close(probabilities(), fitted().predict(data()[0]).probs, rtol=1e-4, atol=1e-5)
    table("some.csv", "a,b,class", count=7)
    capsys.readouterr()
    assert run(f"evaluate {POSTERIOR} {FEW} --test some.csv --json -q", place) == 0
    assert json.loads(capsys.readouterr().out)["classes"] == NAMES


def test_folders_are_classes_by_name(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = pytest.importorskip("PIL.Image", reason="no Pillow")
    drawn = numpy.random.default_rng(0).integers(0, 256, (6, 4, 4, 3), dtype=numpy.uint8)

    def draw(folder: str, numbers: Sequence[int]) -> None:
        (tmp_path / folder).mkdir(parents=True)
        for number in numbers:
            images.fromarray(drawn[number]).save(tmp_path / folder / f"{number}.png")

    draw("train/cat", range(4)), draw("train/dog", (4, 5)), draw("dogs/dog", (4, 5)), draw("birds/bird", (1, 2))
    common = "-m NET:images -p made.safetensors"
    assert run("fit -m NET:images -l classification --train train -o made.safetensors -q", place) == 0
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 2))
    x = torch.from_numpy(drawn).permute(0, 3, 1, 2).float() / 255
    la = pw.fit(net, (x, torch.tensor([0, 0, 0, 0, 1, 1])), "classification")
    nll = sum(-math.log(row[1]) for row in la.predict(x[4:]).probs.tolist()) / 2
    capsys.readouterr()
    assert run(f"evaluate {common} {FEW} --test dogs --json -q", place) == 0
    told = json.loads(capsys.readouterr().out)
    method = next(each for each in told["methods"] if "Laplace" in each["name"])
    assert told["classes"] == ["cat", "dog"] and method["metrics"]["nll"]["value"] == pytest.approx(nll, rel=1e-3)
    assert run(f"evaluate {common} --test birds", place) == 2
    assert "a folder 'bird'; expected the classes cat, dog" in capsys.readouterr().err
    assert run(f"predict {common} --data birds -o p.csv -q", place) == 0
    assert Path("p.csv").read_text().splitlines()[0].endswith("p_cat,p_dog")
    la.save("made.safetensors")  # without names
    assert run(f"evaluate {common} --test train", place) == 2
    assert "has the classes cat, dog; the posterior was fitted with numbered classes" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [">f4", ">f8", "longdouble"])
def test_arrays_of_other_machines(kind: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = data()
    numpy.savez("other.npz", x=x.numpy().astype(kind), y=y.numpy().astype(">i8"))
    assert run(f"{FIT} other.npz --json", place) == 0
    found = json.loads(capsys.readouterr().out)["log_evidence"]
    assert found == pytest.approx(float(fitted().log_evidence()), rel=1e-4)


@pytest.mark.filterwarnings("default:Initializing zero-element tensors:UserWarning")  # torch's own
@pytest.mark.parametrize("likelihood", ["classification", "regression"])
def test_a_network_without_outputs_gets_one_line(
    likelihood: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("whole.csv").write_text("a,b,c\n1,2,0\n0.5,3,1\n")
    status = run(f"fit -m NET:hollow -l {likelihood} --train whole.csv -o made.safetensors", place)
    told = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("note: ")]
    assert status != 0 and len(told) == 1 and told[0].startswith("peewit: ") and not Path("made.safetensors").exists()
