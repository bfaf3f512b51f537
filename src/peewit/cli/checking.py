"""What the command line says about the network that it was given, and which networks it refuses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..diagnostics.findings import Finding, problem
from ..laplace import Laplace
from .networks import is_made_anew
from .output import Problem, Voice

LONGEST = 200  # characters of what another library says
OF_NETWORK = ("weights", "fit")  # findings on the network itself, which no prior and no noise mends
# What advice says to type in Python, and the same on the command line.
COMMANDS = (
    (r"la\.tune\(at='linear_mode', train=\.\.\.\)", "peewit fit --at linear_mode --tune"),
    (r"la\.tune\('validation', validation=\.\.\.\)", "peewit tune --validation DATA"),
    (r"la\.tune\('validation', validation=\.\.\., train=\.\.\.\)", "peewit tune --validation DATA --train DATA"),
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
        """One line for each finding with something to do, and one for all others together."""
        lines = [
            f"{finding.severity}, {finding.topic}: {finding.sentence} What to do: {as_commands(finding.advice)}"
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


def as_commands(advice: str) -> str:
    """Advice with commands in place of calls, where there are some."""
    for call, command in COMMANDS:
        advice = re.sub(call, command, advice)
    return advice


def check_network(
    la: Laplace, train: Any, settings: Mapping[str, Any], voice: Voice, weights: Sequence[Finding]
) -> NetworkCheck:
    """Findings on the weights, and `la.diagnose` of the training data; an error there loses no posterior.

    A network that is worse than a constant is refused.
    """
    if not settings.get("diagnose", True):
        return NetworkCheck(tuple(weights), "--no-diagnose was given")
    findings, left_out = [*weights], ""
    try:
        with voice.stage("the diagnosis", with_bar=False):
            memory = settings.get("fit.memory")
            findings += la.diagnose(train, memory=memory, progress=voice.progress)
    except Exception as error:
        left_out = " ".join(str(error).split())[:LONGEST] or type(error).__name__
    refuse_problems(findings, settings)
    return NetworkCheck(tuple(findings), left_out)


def refuse_problems(findings: Sequence[Finding], settings: Mapping[str, Any]) -> None:
    """Refuse random weights and a network that is worse than a constant, unless --anyway was given."""
    problems = [finding for finding in findings if finding.severity == "problem" and finding.topic in OF_NETWORK]
    if not problems or settings.get("anyway", False):
        return
    scaled = "standardise" in settings or problems[0].topic != "fit"
    hint = "" if scaled else "If it was trained on standardised columns, give --standardise. "
    raise Problem(
        f"{problems[0].sentence} {as_commands(problems[0].advice)} {hint}To go on with this network, give --anyway."
    )


def check_weights(settings: Mapping[str, Any], model: nn.Module) -> Sequence[Finding]:
    """Refuse random weights: none were given, and the network has others each time that it is made.

    With --anyway they are a finding.
    """
    if "weights" in settings or not is_made_anew(settings, model):
        return ()
    findings = (
        problem(
            "weights",
            f"No weights were given, and {settings['model']} makes a network with other weights each time: this one "
            "is untrained, and no command can use the posterior of it again.",
            "Give the trained weights, --weights FILE.",
            {},
        ),
    )
    refuse_problems(findings, settings)
    return findings
