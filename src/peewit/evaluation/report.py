"""What `evaluate` returns."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..metrics import json
from ..metrics.results import Results
from ..report.page import write

FORMAT = 1  # of the JSON text


@dataclass(frozen=True, repr=False, kw_only=True)
class Report(Results):
    """All results of an evaluation: every method with its scores, the one asked about first.

    `pw.evaluate` returns it. `report["Laplace"]` is the scores of a method by its name.

    Attributes:
        title: Title of the report.
        task: "classification" or "regression".
        methods: Scores of every method, a tuple of `pw.metrics.MethodScores`.
        surest: Test inputs that the first method is surest of.
        least_sure: Test inputs that the first method is least sure of.
        classes: Names of the classes; None where none were given.
        coverage: For each weight, the approximation that it got; empty for a plain network.
        posterior: Groups, prior precisions, effective dimensions, variances by layer, the evidence and its trace; empty
            for a plain network.
        settings: What it takes to make the report again.
        versions: Versions of the software.
        notes: Sentences that a reader of the numbers should know.
        sure_wrong: Test inputs that the first method got wrong, the surest first; numbers by how many predicted
            standard deviations they are off.
        unknown_surest: For each set of unknown inputs, those that the first method is surest of.
        constant: Metrics of the best prediction that is the same for all inputs: the class frequencies, or the mean and
            deviation, of the test targets themselves.
        code: Python that makes the report again from the network and the data.

    Example:
        >>> report.task, report["Laplace"].metrics["accuracy"].value > 0.5
        ('classification', True)
        >>> report.to_html("report.html").name
        'report.html'
    """

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Write the report as JSON text; what is not finite is written as 'NaN', 'Infinity' or '-Infinity'.

        Args:
            path: A file for the text. None for the text alone.

        Returns:
            The text.

        Raises:
            FileNotFoundError: The folder of the file does not exist.
            IsADirectoryError: `path` is a folder.

        Example:
            >>> pw.Report.from_json(report.to_json()).title == report.title
            True
        """
        return json.write(json.to_text(self, FORMAT), path)

    def to_markdown(self, path: str | os.PathLike[str] | None = None) -> str:
        """Write the report as tables in Markdown.

        Args:
            path: A file for the text. None for the text alone.

        Returns:
            The text.

        Raises:
            FileNotFoundError: The folder of the file does not exist.
            IsADirectoryError: `path` is a folder.

        Example:
            >>> report.to_markdown().startswith(f"# {report.title}")
            True
        """
        from ..evaluation.markdown import page  # which needs this file

        return json.write(page(self), path)

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as one page with interactive figures, which needs no internet. It needs plotly.

        Args:
            path: The file, which ends in .html.

        Returns:
            The path of the file.

        Raises:
            MissingPackageError: plotly is not installed.
            FileNotFoundError: The folder of the file does not exist.
            IsADirectoryError: `path` is a folder.

        Example:
            >>> report.to_html("report.html").name
            'report.html'
        """
        return write(self, path)

    @classmethod
    def from_json(cls, path_or_text: str | os.PathLike[str]) -> Report:
        """Read the report that `to_json` wrote.

        Args:
            path_or_text: The file, or the text itself.

        Returns:
            The report.

        Raises:
            PeewitError: The text is not a report, or of another format.
            FileNotFoundError: There is no such file.

        Example:
            >>> text = report.to_json("report.json")
            >>> pw.Report.from_json("report.json").task
            'classification'
        """
        return json.from_text(cls, json.read(path_or_text), FORMAT)

    def __repr__(self) -> str:
        """One line: what was compared; `to_markdown` has the tables."""
        names = ", ".join(each.name for each in self.methods)
        return f"Report({self.title!r}, {self.task}: {names}; to_markdown(), to_json(path), to_html(path))"
