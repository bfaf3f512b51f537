"""The work of `peewit diagnose`: what may be wrong with a network, its prior or its likelihood."""

from __future__ import annotations

from .checking import as_commands, finding_values
from .datasets import load
from .networks import posterior
from .posteriors import wanted_by
from .runs import Run
from .settings import require_setting


def diagnose(run: Run) -> None:
    """Every finding on the training data, with what to do."""
    settings, voice = run.settings, run.voice
    la = posterior(settings)
    data = load(require_setting(settings, "train", "--train DATA"), wanted_by(settings, la))
    with voice.stage("the diagnosis", with_bar=False):
        diagnosis = la.diagnose(data.value, memory=settings.get("fit.memory"), progress=voice.progress)
    values = {"healthy": diagnosis.healthy, "findings": [finding_values(finding) for finding in diagnosis]}
    voice.answer(values, *as_commands(str(diagnosis)).splitlines())
