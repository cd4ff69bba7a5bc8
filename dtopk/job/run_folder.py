"""The folder of a run: its files by name, and the rule that a folder serves one run."""

import csv
import io
import json
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtopk.atomic import write_text

_PLACEHOLDER = re.compile(r"\{[^{}/]*\}")


def name_run_folder(template: str) -> Path:
    """Put the time of now in the place of '{time}'.

    Raises
    ------
    ValueError
        If there is another name in braces.
    """
    unknown = set(_PLACEHOLDER.findall(template)) - {"{time}"}
    if unknown:
        raise ValueError(
            f"output.run_dir must have no placeholder but '{{time}}', got {min(unknown)!r} in "
            f"{template!r}."
        )
    return Path(template.replace("{time}", time.strftime("%Y%m%d-%H%M%S")))


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """Where one run puts its files."""

    path: Path
    """The folder."""

    @property
    def job(self) -> Path:
        """The job as resolved, a job file."""
        return self.path / "job.toml"

    @property
    def model(self) -> Path:
        """The model."""
        return self.path / "model.npz"

    @property
    def dual(self) -> Path:
        """The dual variables, a folder."""
        return self.path / "dual"

    @property
    def history(self) -> Path:
        """Objectives, gap and speed, a line an epoch."""
        return self.path / "history.csv"

    @property
    def result(self) -> Path:
        """Certificate, accuracy, sizes and times."""
        return self.path / "result.json"

    @property
    def convergence(self) -> Path:
        """Figure of the convergence."""
        return self.path / "convergence.png"

    @property
    def topk_accuracy(self) -> Path:
        """Figure of the accuracy."""
        return self.path / "topk_accuracy.png"

    def check_unused(self) -> None:
        """Refuse a folder that has anything in it.

        Raises
        ------
        ValueError
            If the path is taken by a file, or by a folder that is not empty.
        """
        if self.path.exists() and not (self.path.is_dir() and not any(self.path.iterdir())):
            raise ValueError(
                f"run folder must be new or empty, got {str(self.path)!r}, which is in use. "
                "Choose another one with --run-dir, or output.run_dir of the job."
            )

    def claim(self, job_toml: str) -> None:
        """Make the folder this run's by writing the job into it.

        Raises
        ------
        ValueError
            If it is in use.
        """
        self.check_unused()
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            # Mode x: of two runs that found the folder empty, one gets it.
            with self.job.open("x", encoding="utf-8") as file:
                file.write(job_toml)
        except FileExistsError:
            self.check_unused()
            raise
        except OSError:
            self.job.unlink(missing_ok=True)
            raise

    def release(self) -> None:
        """Empty the folder of a run that came to nothing, so that it can be used again."""
        shutil.rmtree(self.path, ignore_errors=True)

    def has_dual_values(self) -> bool:
        """Whether any chunk of the dual variables has been written."""
        return any((self.dual / "c").rglob("*"))

    def list_written(self) -> tuple[Path, ...]:
        """List the files and folders that are there, in the order they are of use."""
        known = (
            self.model, self.dual, self.job, self.result, self.history,
            self.convergence, self.topk_accuracy,
        )  # fmt: skip
        return tuple(path for path in known if path.exists())

    def write_history(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a line an epoch.

        Parameters
        ----------
        rows : sequence of mappings, all with the same keys
        """
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.history, text.getvalue())

    def write_result(self, fields: Mapping[str, Any]) -> None:
        """Write the result, or write it anew."""
        write_text(self.result, json.dumps(fields, indent=2) + "\n")
