"""The examples run in a few steps each, and what they print means what it says."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.nn import functional as F

from environment import ROOT

EXAMPLES = ROOT / "examples"


def example(name: str) -> ModuleType:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore:Covariances of .* outputs per example are estimated")
def test_segmentation_leaves_ignored_pixels_out(capsys: pytest.CaptureFixture[str]) -> None:
    module = example("segmentation")
    la, seen = module.main(steps=40, images=32)
    assert seen["accuracy"] > 0.9
    assert seen["outlines"] > seen["labelled"]  # nobody labelled an outline
    assert "(8, 3, 16, 16)" in capsys.readouterr().out
    torch.manual_seed(0)
    x, y = module.scenes(32)
    assert 0 < int((y == module.IGNORED).sum()) < y.numel()
    with torch.no_grad():
        expected = F.cross_entropy(la.model.eval()(x), y, ignore_index=module.IGNORED, reduction="sum")
    assert float(la.state.totals.energy) == pytest.approx(expected.item(), rel=1e-4)


def test_tokens_share_a_weight_and_leave_ignored_labels_out(capsys: pytest.CaptureFixture[str]) -> None:
    module = example("tokens")
    la, seen = module.main(epochs=80)
    assert la.model.head.weight is la.model.tokens.weight
    assert seen["accuracy"] > 0.5  # chance is 1 in 12
    assert seen["strange"] > seen["usual"]
    assert "embedding + linear" in capsys.readouterr().out
    torch.manual_seed(0)
    x, y = module.counting(300, [1, 2, 3])
    assert bool((y[:, 0] == -100).all()) and not bool((y[:, 1:] == -100).any())
    with torch.no_grad():
        expected = F.cross_entropy(la.model.eval()(x).flatten(0, 1), y.flatten(), reduction="sum")
    assert float(la.state.totals.energy) == pytest.approx(expected.item(), rel=1e-4)


def test_tagging_knows_which_words_it_never_saw(capsys: pytest.CaptureFixture[str]) -> None:
    _, seen = example("tagging").main(steps=100)
    assert seen["accuracy"] > 0.7  # three in five by always saying no
    assert seen["strange"] > 1.3 * seen["usual"]
    assert seen["nll"] < seen["plain nll"]
    assert "sport" in capsys.readouterr().out


def test_heteroscedastic_tells_noise_from_not_knowing(capsys: pytest.CaptureFixture[str]) -> None:
    _, seen = example("heteroscedastic").main(steps=300)
    left, _, right, _ = seen["noise"].tolist()
    assert left < 0.25 < right  # .1 and .5
    assert seen["unknown"][3] > 3 * seen["unknown"][:3].max()  # away from the data
    assert 0.8 < seen["covered"] < 0.99
    assert "90 % of new points" in capsys.readouterr().out


def test_counts_know_less_away_from_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    module = example("counts")
    _, seen = module.main(steps=300)
    known = torch.tensor([[-1.0], [0.0], [1.0]])
    torch.testing.assert_close(seen["mean"][:3], module.rate(known)[:, 0], rtol=0.35, atol=0.0)
    relative = seen["unknown"] / seen["mean"]
    assert relative[3] > 3 * relative[:3].max()
    assert seen["covered"] > 0.85
    assert "90 % of new counts" in capsys.readouterr().out


def test_the_report_on_a_regression_tells_the_gap_from_the_data(tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="no plotly")
    report = example("report_regression").main(tmp_path / "page.html", steps=300)
    assert [each.name for each in report.methods] == ["Laplace", "Plain network"]
    found = report.methods[0].detection
    assert found["the gap"]["epistemic_variance"].auroc.value > 0.9
    assert found["beyond the data"]["epistemic_variance"].auroc.value > 0.9
    assert "A curve with a gap" in (tmp_path / "page.html").read_text(encoding="utf-8")


HUGGINGFACE = EXAMPLES / "huggingface"
Script = Callable[[str], ModuleType]


@pytest.fixture
def huggingface(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """Scripts as modules that find their common parts; nothing is asked of a network."""
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(HUGGINGFACE))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield importlib.import_module
    for path in HUGGINGFACE.glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_reviews_are_classified(huggingface: Script, capsys: pytest.CaptureFixture[str]) -> None:
    la, seen = huggingface("classify").main()
    assert sum(weight.numel() for weight in la.model.parameters()) == la.D
    assert seen["accuracy"] > 0.8  # one label in ten is wrong
    assert seen["strange"] > 1.2 * seen["usual"]
    assert "new reviews are classified right" in capsys.readouterr().out


def test_words_are_tagged_and_padding_is_not(huggingface: Script, capsys: pytest.CaptureFixture[str]) -> None:
    module = huggingface("tag_tokens")
    _, seen = module.main()
    texts = [text for text, _ in huggingface("reviews").reviews(200)]
    assert seen["labels"] == sum(tag != -100 for text in texts for tag in module.tags(text))
    assert seen["accuracy"] > 0.95
    assert "the plot is really dull: other thing other opinion opinion" in capsys.readouterr().out


def test_the_next_token_is_scored_as_the_model_does(huggingface: Script, capsys: pytest.CaptureFixture[str]) -> None:
    la, seen = huggingface("next_tokens").main()
    assert la.likelihood.shift is True
    assert seen["energy"] == pytest.approx(seen["own loss"], rel=1e-4)
    assert seen["strange"] > 1.2 * seen["usual"]
    assert "shifted labels: True" in capsys.readouterr().out


def test_scores_have_intervals(huggingface: Script, capsys: pytest.CaptureFixture[str]) -> None:
    _, seen = huggingface("regress").main()
    assert 0.82 < seen["covered"] < 0.97
    assert seen["low"] < 1.5 < seen["high"]  # what the review says
    assert "90 % intervals hold" in capsys.readouterr().out


def test_a_trainer_brings_its_loaders(huggingface: Script, capsys: pytest.CaptureFixture[str]) -> None:
    la, scores = huggingface("trainer").main()
    assert la.N == 240
    assert scores["Laplace"] < scores["Plain network"] + 0.01
    assert "NLL" in capsys.readouterr().out


def test_adapters_are_uncertain(huggingface: Script, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("peft")
    la, seen = huggingface("lora").main()
    assert sum(weight.numel() for name, weight in la.model.named_parameters() if "lora_" in name) == la.D
    assert seen["strange"] > 1.2 * seen["usual"]
    assert "KiB" in capsys.readouterr().out


def test_rewards_order_texts(huggingface: Script, capsys: pytest.CaptureFixture[str]) -> None:
    _, seen = huggingface("rewards").main()
    assert seen["first"] > seen["second"] and seen["better"] > 0.9
    assert "is preferred to the second" in capsys.readouterr().out
