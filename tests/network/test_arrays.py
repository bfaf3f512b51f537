"""Arrays, data frames, lists and datasets give what tensors give, and what holds no numbers is refused with advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import peewit as pw
from environment import DEVICE
from fitting import classes, normal, seeded

NAMES = ["a", "b", "c"]


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    """(N, 3) to (N, 1), always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(dtype)


X = normal(12, 3).float()
Y = normal(12, 1, seed=4).float()
MODEL = network()
WHOLE = torch.arange(36).reshape(12, 3)


def frame(module: str, x: Tensor = X, names: list[str] = NAMES) -> Any:
    """A table as a data frame."""
    library = pytest.importorskip(module)
    return library.DataFrame({name: column.numpy() for name, column in zip(names, x.T, strict=True)})


def column(module: str, y: Tensor = Y, name: str = "y") -> Any:
    """Targets as a column of a data frame."""
    library = pytest.importorskip(module)
    return library.Series(name, y[:, 0].numpy()) if module == "polars" else library.Series(y[:, 0].numpy(), name=name)


class Rows(Dataset[Any]):
    """Examples one by one, in numpy's dtype."""

    def __len__(self) -> int:
        """N."""
        return len(X)

    def __getitem__(self, place: int) -> Any:
        """A row and its target."""
        return X[place].double().numpy(), float(Y[place, 0])


FORMS: dict[str, Callable[[], Any]] = {
    "arrays": lambda: (X.numpy(), Y.numpy()),
    "float64": lambda: (X.double().numpy(), Y.double().numpy()),
    "tensors in float64": lambda: (X.double(), Y.double()),
    "targets (N,)": lambda: (X, Y[:, 0]),
    "an array beside a tensor": lambda: (X.numpy(), Y[:, 0]),
    "lists": lambda: (X.tolist(), Y.tolist()),
    "a list of targets": lambda: (X, Y[:, 0].tolist()),
    "pandas": lambda: (frame("pandas"), column("pandas")),
    "pandas, another index": lambda: (frame("pandas").set_index(numpy.arange(5, 17)), column("pandas")),
    "polars": lambda: (frame("polars"), column("polars")),
    "a frame of targets": lambda: (frame("pandas"), column("pandas").to_frame()),
    "read backwards": lambda: (X.numpy()[::-1][::-1], Y.numpy()),
    "columns first": lambda: (numpy.asfortranarray(X.numpy()), Y.numpy()),
    "another byte order": lambda: (X.numpy().astype(">f8"), Y.numpy()),
    "longer floats": lambda: (X.numpy().astype(numpy.longdouble), Y.numpy()),
    "objects": lambda: (X.numpy().astype(object), Y.numpy().astype(object)),
    "decimals": lambda: (numpy.vectorize(lambda v: Decimal(float(v)))(X.numpy()), Y.numpy()),
    "read-only": lambda: (numpy.broadcast_to(X.numpy(), X.shape), Y.numpy()),
    "a dataset": lambda: TensorDataset(X, Y),
    "a dataset of rows": Rows,
    "a loader": lambda: DataLoader(Rows(), batch_size=5),
    "batches of arrays": lambda: [(X.numpy()[:7], Y.numpy()[:7]), (X.numpy()[7:], Y.numpy()[7:])],
    "batches of lists": lambda: [(X.tolist()[:7], Y.tolist()[:7]), (X.tolist()[7:], Y.tolist()[7:])],
    "a mapping of arrays": lambda: [{"input": X.numpy(), "labels": Y.numpy()}],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_what_tensors_give(form: str) -> None:
    """Evidence, tuning and evaluation; the data are not changed."""
    data = FORMS[form]()
    expected, la = (pw.fit(MODEL, each, pw.Gaussian(0.5), structure="full") for each in ((X, Y), data))
    assert torch.allclose(la.log_evidence(), expected.log_evidence(), rtol=1e-6)
    assert la.N == 12
    found = pw.evaluate(la, data, intervals=0).methods[0].metrics["nll"].value
    assert found == pytest.approx(pw.evaluate(expected, (X, Y), intervals=0).methods[0].metrics["nll"].value, rel=1e-5)
    assert torch.equal(X, normal(12, 3).float())


QUESTIONS: dict[str, Callable[[], Any]] = {
    "an array": lambda: X.numpy(),
    "float64": lambda: X.double().numpy(),
    "a tensor in float64": lambda: X.double(),
    "a list": lambda: X.tolist(),
    "pandas": lambda: frame("pandas"),
    "polars": lambda: frame("polars"),
    "a loader with targets": lambda: DataLoader(TensorDataset(X, Y), batch_size=5),
    "a loader of rows": lambda: DataLoader(Rows(), batch_size=5),
    "a loader of inputs": lambda: DataLoader(X, batch_size=5),  # type: ignore[arg-type]  # a tensor is enough
    "a dataset": lambda: TensorDataset(X, Y),
    "a dataset of rows": Rows,
    "an iterator of arrays": lambda: iter([X.numpy()[:5], X.numpy()[5:]]),
}


@pytest.mark.parametrize("form", QUESTIONS)
def test_questions_in_every_form(form: str) -> None:
    """Predictions, the outputs' Gaussian and draws of outputs, by both methods."""
    la = pw.fit(MODEL, (X, Y), pw.Gaussian(0.5), structure="full")
    for ask in (
        lambda x: la.predict(x).variance,
        lambda x: la.predict(x, joint=True).covariance,
        lambda x: la.predict(x, method="sampled", generator=None).variance,
        lambda x: la.functional(x).cov,
        lambda x: la.functional(x, joint=True).cov,
        lambda x: la.functional_samples(x, 3, seeded(5)),
    ):
        torch.testing.assert_close(ask(QUESTIONS[form]()), ask(X), rtol=1e-4, atol=1e-6)
    predictor = la.predictor(X[:1])
    if not isinstance(QUESTIONS[form](), DataLoader | Dataset | Iterator):
        assert torch.equal(predictor(QUESTIONS[form]()).mean, predictor(X).mean)


@pytest.mark.parametrize("likelihood", ["classification", "count"])
def test_loaders_for_every_kind_of_belief(likelihood: Any) -> None:
    """Classes by a shared basis of the last layer, and mixtures; draws of weights are the same in every batch."""
    labels = torch.arange(12) % 3 if likelihood == "classification" else (torch.arange(12.0) % 3)[:, None].expand(12, 3)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    for options in ({"weights": "last_layer"}, {"structure": "diag"}):
        la = pw.fit(model, (X, labels), likelihood, **options)  # type: ignore[arg-type]  # of the table above
        for question in ({}, {"link": "mc"}, {"method": "sampled"}):
            whole, parts = (la.predict(x, **question) for x in (X, DataLoader(X, batch_size=5)))  # type: ignore[arg-type]
            torch.testing.assert_close(parts.epistemic, whole.epistemic, rtol=1e-4, atol=1e-6)
    drawn = la.predict(DataLoader(X.repeat(2, 1), batch_size=12), method="sampled", generator=seeded(3))  # type: ignore[arg-type]
    torch.testing.assert_close(drawn.output_mean[:12], drawn.output_mean[12:])


def test_progress_over_a_loader(bars: list[int]) -> None:
    """One bar for the batches."""
    la = pw.fit(MODEL, (X, Y), "regression")
    la.predict(DataLoader(X, batch_size=5), progress=True)  # type: ignore[arg-type]
    assert bars == [1, 0]


def test_whole_numbers_become_what_the_network_takes() -> None:
    """In tables they are floating point for a network of such; token numbers stay what they are."""
    for given in (WHOLE.numpy(), WHOLE.tolist(), WHOLE.numpy().astype("uint16")):
        la = pw.fit(MODEL, (given, Y), pw.Gaussian(1.0))
        assert torch.equal(la.log_evidence(), pw.fit(MODEL, (WHOLE.float(), Y), pw.Gaussian(1.0)).log_evidence())
        assert torch.equal(la.predict(given).mean, la.predict(WHOLE.float()).mean)
    tokens = nn.Sequential(nn.Embedding(36, 2), nn.Flatten(), nn.Linear(6, 1))
    la = pw.fit(tokens, (WHOLE.numpy(), Y), pw.Gaussian(1.0))
    assert torch.equal(la.predict(WHOLE.numpy()).mean, la.predict(WHOLE).mean)


def test_frames_of_several_dtypes() -> None:
    """Whole numbers, truth values and pandas' own dtypes stand beside fractions."""
    pandas = pytest.importorskip("pandas")
    table = frame("pandas").assign(a=[1, 2, 3] * 4, b=[True, False] * 6)
    numbers = torch.stack([torch.tensor([1.0, 2, 3] * 4), torch.tensor([1.0, 0] * 6), X[:, 2]], 1)
    expected = pw.fit(MODEL, (numbers, Y), "regression").log_evidence()
    for each in (table, table.assign(a=pandas.array([1, 2, 3] * 4, dtype="Int64"))):
        assert torch.equal(pw.fit(MODEL, (each, Y), "regression").log_evidence(), expected)


class ScalesInDouble(nn.Module):
    """A network that takes float64, and rounds only after it has taken a large offset away."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3) to (N, 1)."""
        if x.dtype != torch.float64:
            raise ValueError("float64 is needed")
        return self.body((x - 1e9).float())


def test_a_network_that_takes_float64_gets_it() -> None:
    """Numbers are rounded for a network that does not take them as they are, and for no other."""
    far = X.double() + 1e9
    la = pw.fit(ScalesInDouble(), (far.numpy(), Y.numpy()), "regression")
    expected = pw.fit(MODEL, ((far - 1e9).float(), Y), "regression")
    assert torch.allclose(la.log_evidence(), expected.log_evidence())
    assert torch.allclose(la.predict(far).mean, expected.predict((far - 1e9).float()).mean)
    wide = pw.fit(network(torch.float64), (X, Y), "regression")
    assert wide.predict(X).mean.dtype == torch.float64


@pytest.mark.parametrize("module", ["pandas", "polars"])
def test_columns_of_frames_go_by_name(module: str) -> None:
    """In another order, with others beside them, and after a file; a missing one is named."""
    la = pw.fit(MODEL, (frame(module), column(module)), "regression")
    turned = frame(module, X[:, [2, 0, 1]], ["c", "a", "b"])
    further = frame(module, torch.cat([Y, X], 1), ["y", *NAMES])
    expected = la.predict(X).mean
    for table in (turned, further, turned.to_numpy()[:, [1, 2, 0]]):
        assert torch.equal(la.predict(table).mean, expected)
    assert la.tune(validation=(turned, Y)).schema == la.schema
    assert pw.evaluate(la, (turned, Y), intervals=0).methods[0].metrics == (
        pw.evaluate(la, (X, Y), intervals=0).methods[0].metrics
    )
    with pytest.raises(pw.PeewitError, match=r"columns A, b, c; expected those of the fit, and a is missing"):
        la.predict(frame(module, X, ["A", "b", "c"]))


def test_columns_are_kept_in_files(tmp_path: Any) -> None:
    """The names of a fit to frames; other fits have none."""
    la = pw.fit(MODEL, (frame("pandas"), Y), "regression")
    la.save(tmp_path / "la.safetensors")
    assert pw.load(tmp_path / "la.safetensors", MODEL).schema == la.schema
    assert la.schema is not None and la.schema.inputs == ("a", "b", "c") and la.schema.targets == ("target",)
    assert pw.fit(MODEL, (X, Y), "regression").schema is None


def test_what_predictions_are_as_arrays_and_frames() -> None:
    """std, numpy and to_pandas have the numbers of the tensors."""
    pandas = pytest.importorskip("pandas")
    la = pw.fit(MODEL, (X, Y), pw.Gaussian(0.5))
    pred = la.predict(frame("pandas"))
    assert torch.equal(pred.std, (pred.epistemic + pred.aleatoric).sqrt())
    arrays, table = pred.numpy(), pred.to_pandas(index=[f"row {n}" for n in range(12)])
    assert list(arrays) == list(table.columns) == ["mean", "std", "lower", "upper", "epistemic", "aleatoric"]
    for name, array in arrays.items():
        assert isinstance(array, numpy.ndarray) and array.shape == (12, 1)
        numpy.testing.assert_array_equal(table[name], array[:, 0])
    numpy.testing.assert_array_equal(arrays["lower"], pred.interval()[0].numpy())  # of 90 %, as all defaults are
    numpy.testing.assert_allclose(arrays["upper"] - arrays["mean"], 1.6448536 * arrays["std"], rtol=1e-5)
    assert isinstance(table, pandas.DataFrame) and table.index[3] == "row 3"
    labels = pw.fit(nn.Linear(3, 3), (X, torch.arange(12) % 3), "classification").predict(X)
    assert list(labels.to_pandas().columns) == [
        "predicted", "probs_0", "probs_1", "probs_2", "entropy", "epistemic", "aleatoric"
    ]  # fmt: skip
    numpy.testing.assert_array_equal(labels.numpy()["predicted"], labels.argmax.numpy())
    pixels = pw.fit(nn.Conv2d(1, 2, 1), (X.reshape(3, 1, 4, 3), torch.zeros(3, 4, 3).long()), "classification")
    with pytest.raises(pw.PeewitError, match=r"predicted has shape \(3, 4, 3\): outputs have positions.*\.numpy\(\)"):
        pixels.predict(X.reshape(3, 1, 4, 3)).to_pandas()


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "words": (lambda: frame("pandas").assign(a="u"), r"not numbers: 'a' \(str|object\).*get_dummies"),
    "categories": (lambda: frame("pandas").astype({"a": "category"}), r"not numbers: 'a' \(categories\).*get_dummies"),
    "dates": (lambda: frame("pandas").assign(a=numpy.datetime64("2020-01-01")), r"'a' \(datetime64"),
    "missing": (lambda: frame("pandas").mask(X.numpy() > 1.5), r"'\w' has \d missing value.*frame\.fillna"),
    "missing, polars": (lambda: frame("polars").with_columns(a=None), r"'a' has 12 missing values.*fill"),
    "words, polars": (
        lambda: frame("polars").with_columns(a=pytest.importorskip("polars").lit("u")),
        r"'a' \(String\)",
    ),
    "masked": (lambda: numpy.ma.masked_greater(X.numpy(), 1.5), r"masked array with \d missing.*x\.filled\(\.\.\.\)"),
    "a lazy frame": (lambda: frame("polars").lazy(), r"x is a LazyFrame.*expected a frame, by \.collect\(\)"),
    "nothing among objects": (lambda: numpy.where(X > 1.5, None, X.numpy().astype(object)), r"x has \d missing value"),
    "words among objects": (lambda: numpy.where(X > 1.5, "u", X.numpy().astype(object)), "holds words, such as 'u'"),
    "lists among objects": (lambda: numpy.array([[[], 1, 2]] * 12, dtype=object), r"holds a list, \[\]"),
    "texts": (lambda: X.numpy().astype(str), "holds words"),
    "no columns": (lambda: frame("pandas")[[]], "frame without columns"),
    "no rows": (lambda: frame("pandas")[:0], "12|no examples|0 inputs"),
    "sparse": (lambda: pytest.importorskip("scipy.sparse").csr_matrix(X.numpy()), r"sparse csr_matrix.*x\.toarray\(\)"),
    "a shuffled frame": (lambda: frame("pandas").sample(frac=1, random_state=0), "same index in different orders.*loc"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_tables_that_hold_something_else(what: str) -> None:
    """Each is refused by a sentence that names the column and what to type; fits and questions alike."""
    make, words = REFUSED[what]
    with pytest.raises(pw.PeewitError, match=words):
        pw.fit(MODEL, (make(), column("pandas")), "regression")
    if what != "a shuffled frame":
        with pytest.raises(pw.PeewitError, match=words):
            pw.fit(MODEL, (X, Y), "regression").predict(make())


def test_lazy_targets_are_computed_first() -> None:
    with pytest.raises(pw.ArgumentTypeError, match=r"y is a LazyFrame.*\.collect\(\)"):
        pw.fit(MODEL, (X, frame("polars").lazy()), "regression")


@pytest.mark.parametrize("y", ["tensor", "numpy", "pandas", "list"])
def test_targets_in_the_place_of_the_likelihood(y: str) -> None:
    targets = {"tensor": Y, "numpy": Y.numpy(), "list": Y.tolist()}.get(y)
    targets = column("pandas") if targets is None else targets
    words = r"as likelihood; .*Inputs and targets go in together: pw\.fit\(model, \(x, y\), likelihood\)"
    with pytest.raises(pw.ArgumentTypeError, match=rf"fit\(\) was given a {type(targets).__name__} {words}"):
        pw.fit(MODEL, X, targets)
    with pytest.raises(pw.ArgumentTypeError, match=r"pw\.recommend\(model, \(x, y\), likelihood\)"):
        pw.recommend(MODEL, X, targets)
    with pytest.raises(pw.ArgumentTypeError, match=r"together: evaluate\(la_or_model, \(x, y\)\)"):
        pw.evaluate(MODEL, X, targets)


def test_a_prediction_is_not_one_array() -> None:
    """Of which numpy would make an object, without a word."""
    numbers = pw.fit(MODEL, (X, Y), "regression").predict(X)
    labels = pw.fit(nn.Linear(3, 3), (X, torch.arange(12) % 3), "classification").predict(X)
    for pred, name in ((numbers, "mean"), (labels, "probs")):
        for make in (numpy.asarray, numpy.array, lambda each: numpy.asarray(each, dtype=float)):
            with pytest.raises(pw.ArgumentTypeError, match=rf"pred\.numpy\(\)\['{name}'\], or the tensor pred\.{name}"):
                make(pred)


def test_batches_whose_outputs_differ_in_shape() -> None:
    """They do not go into one prediction."""
    model = nn.Conv1d(1, 1, 1)
    la = pw.fit(model, (X[:, None], X[:, None]), "regression")
    with pytest.raises(pw.PeewitError, match=r"shape \(1, 3\) in one batch and \(1, 2\) in another.*batch by batch"):
        la.predict(iter([X[:, None], X[:, None, :2]]))


class Texts(nn.Module):
    """(N, T) tokens to (N, 2), as transformers call it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 3), nn.Linear(3, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        known = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return self.head((self.table(input_ids) * known[..., None]).sum(1))


def test_lists_that_a_tokenizer_returns() -> None:
    """By name or in a mapping, as the tensors; texts of several lengths are refused with the line to type."""
    tokens = classes(7, 4, 5)
    mask = torch.ones_like(tokens)
    batch = {"input_ids": tokens, "attention_mask": mask}
    la = pw.fit(Texts().to(DEVICE), [{**batch, "labels": classes(2, 4)}], "classification")
    expected = la.predict(**batch).probs
    lists = {"input_ids": tokens.tolist(), "attention_mask": mask.tolist()}
    for pred in (la.predict(**lists), la.predict(lists), la.predict([batch])):
        torch.testing.assert_close(pred.probs, expected)
    with pytest.raises(ValueError, match=r"lengths \[2, 3\].*return_tensors='pt'"):
        la.predict(input_ids=[[1, 2], [1, 2, 3]])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"one list for each text.*return_tensors='pt'"):
        la.predict(input_ids=[1, 2])  # type: ignore[arg-type]


def test_lists_of_batches_without_a_loader() -> None:
    """Mappings in a list are batches, as in a fit; an empty list is refused."""
    tokens = classes(7, 6, 5)
    batches = [{"input_ids": tokens[:4], "labels": classes(2, 4)}, {"input_ids": tokens[4:], "labels": classes(2, 2)}]
    la = pw.fit(Texts().to(DEVICE), batches, "classification")
    pred, alone = la.predict(batches), la.predict(input_ids=tokens)
    torch.testing.assert_close(pred.probs, alone.probs)
    assert la.functional(batches).mean.shape == (6, 2)
    for nothing in ([], {}, ()):
        with pytest.raises(ValueError, match=r"x is an empty (list|dict|tuple); expected inputs"):
            la.predict(nothing)
