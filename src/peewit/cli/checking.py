"""What the command line says about the network that it was given, and which networks it refuses."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..diagnostics.findings import Finding, problem
from ..diagnostics.forward import check_outputs
from ..laplace import Laplace
from ..network.scaling import Standardised
from .networks import is_made_anew
from .output import Problem, Voice
from .scaling import INPUTS

LONGEST = 200  # characters of what another library says
# What advice says to type in Python, and the same on the command line.
COMMANDS = (
    (r"(?:\bla\.)?\btune\(at='linear_mode', train=\.\.\.\)", "peewit tune --at linear_mode --train DATA"),
    (r"(?:\bla\.)?\btune\(train=\.\.\.\)", "peewit tune --train DATA"),
    (r"(?:\bla\.)?\btune\((?:'validation', )?validation=\.\.\.\)", "peewit tune --validation DATA"),
    (
        r"(?:\bla\.)?\btune\('validation', validation=\.\.\., train=\.\.\.\)",
        "peewit tune --validation DATA --train DATA",
    ),
    (r"la\.with_noise\(([^()]*)\)", r"peewit fit --noise \1"),
)


@dataclass(frozen=True)
class NetworkCheck:
    """Findings about a network; or why there are none of its data."""

    findings: tuple[Finding, ...]
    left_out: str = ""  # why the training data were not looked at

    def values(self) -> dict[str, Any]:
        """As JSON holds them."""
        found = [finding_values(finding) for finding in self.findings]
        return {"findings": found} | ({"not_diagnosed": self.left_out} if self.left_out else {})

    def lines(self) -> list[str]:
        """One line for each finding that is not fine, and one for all others together."""
        lines = [
            f"{finding.severity}, {finding.topic}: {finding.sentence}{what_to_do(finding)}"
            for finding in self.findings
            if finding.severity != "fine"
        ]
        if fine := [finding.topic for finding in self.findings if finding.severity == "fine"]:
            lines.append(f"fine: {', '.join(fine)}")
        return [*lines, f"not diagnosed: {self.left_out}"] if self.left_out else lines


def finding_values(finding: Finding) -> dict[str, Any]:
    """A finding as JSON holds it."""
    return {
        "topic": finding.topic,
        "severity": finding.severity,
        "sentence": finding.sentence,
        "advice": as_commands(finding.advice),
        "numbers": dict(finding.numbers),
    }


def what_to_do(finding: Finding) -> str:
    """The end of its line: advice, where there is some."""
    return f" What to do: {as_commands(finding.advice)}" if finding.advice else ""


def as_commands(advice: str) -> str:
    """Advice with commands in place of calls, where there are some."""
    for call, command in COMMANDS:
        advice = re.sub(call, command, advice)
    return advice


def check_network(
    la: Laplace, train: Any, settings: Mapping[str, Any], voice: Voice, weights: Sequence[Finding]
) -> NetworkCheck:
    """Findings on the weights, and `la.diagnose` of the training data; an error there loses no posterior."""
    if not settings.get("diagnose", True):
        return NetworkCheck(tuple(weights), "--no-diagnose was given")
    try:
        with voice.stage("the diagnosis", with_bar=False):
            memory = settings.get("fit.memory")
            return NetworkCheck((*weights, *la.diagnose(train, memory=memory, progress=voice.progress)))
    except Exception as error:
        return NetworkCheck(tuple(weights), " ".join(str(error).split())[:LONGEST] or type(error).__name__)


def refuse_misfit(
    model: nn.Module, data: Any, likelihood: Any, settings: Mapping[str, Any], name: str = "training"
) -> None:
    """Refuse a network that is worse than a constant on data, before work that takes long; --anyway goes on."""
    if settings.get("anyway", False) or not settings.get("diagnose", True):
        return
    if finding := find_misfit(model, data, likelihood, name):
        hint = scaling_hint(model, data)
        raise Problem(f"{finding.sentence} {finding.advice} {hint}To go on with this network, give --anyway.")


def find_misfit(model: nn.Module, data: Any, likelihood: Any, name: str) -> Finding | None:
    """Why a network is worse than a constant on the data that are called so; None where it is not, or is not known.

    A classifier whose decisions are better than a constant's is worse on its training data alone: on others it may only
    be too sure of itself, which a posterior mends.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the command itself warns
            finding = check_outputs(model, data, likelihood, f"on the {name} data")
    except Exception:  # the command itself will say what is wrong with the data
        return None
    if finding is None or finding.severity != "problem":
        return None
    decides = finding.numbers.get("accuracy", 0.0) > finding.numbers.get("constant_accuracy", 1.0)
    return None if decides and name != "training" else finding


def scaling_hint(model: nn.Module, data: Any) -> str:
    """What may be wrong with the scales of a table's columns."""
    if isinstance(model, Standardised):
        return (
            f"If its targets were not standardised in training, fit it with --set standardise={INPUTS}. "
            if len(model.target_means)
            else ""
        )
    x = data[0] if isinstance(data, tuple) else None
    table = isinstance(x, Tensor) and x.dim() == 2 and x.is_floating_point()
    return "If it was trained on standardised columns, fit it with --standardise. " if table else ""


def check_weights(settings: Mapping[str, Any], model: nn.Module) -> Sequence[Finding]:
    """Refuse random weights: none were given, and the network has others each time that it is made.

    With --anyway they are a finding.
    """
    if "checkpoint" in settings or not is_made_anew(settings, model):
        return ()
    finding = problem(
        "weights",
        f"No weights were given, and {settings['model']} makes a network with other weights each time: this one is "
        "untrained, and no command can use the posterior of it again.",
        "Give the trained weights, --checkpoint FILE.",
        {},
    )
    if settings.get("anyway", False):
        return (finding,)
    raise Problem(f"{finding.sentence} {finding.advice} To go on with this network, give --anyway.")
