"""Outputs: where an answer goes, on the screen and into files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.base.writing import STDOUT, check_writable, write_file, write_output

if TYPE_CHECKING:
    from perfmodel.prediction.answer import Prediction


@dataclass(frozen=True, slots=True)
class Outputs:
    """The files that were asked for. JSON on standard output silences the screen."""

    json_file: str | None = None
    trace_file: Path | None = None
    report_file: Path | None = None

    def check(self) -> None:
        """Raise unless every file can be written, before any work is done for it."""
        files = {"--trace-out": self.trace_file, "--report": self.report_file}
        if self.json_file not in (None, STDOUT):
            files["--json"] = Path(str(self.json_file))
        for option, path in files.items():
            if path is not None:
                check_writable(option, path)

    def write(self, prediction: Prediction) -> None:
        """Write *prediction* everywhere it was asked for."""
        if self.trace_file is not None:
            from perfmodel.reports.chrome_trace import write_trace

            write_trace(prediction, self.trace_file)
        if self.report_file is not None:
            from perfmodel.reports.page import build_page

            write_file(self.report_file, build_page(prediction))
        self._write_json(prediction)
        if self.json_file != STDOUT:
            from rich.console import Console

            from perfmodel.reports.console import WIDTH, print_prediction

            print_prediction(prediction, Console(width=WIDTH, highlight=False))
            self._name_files()

    def _write_json(self, prediction: Prediction) -> None:
        if self.json_file is None:
            return
        from perfmodel.reports.document import to_document, to_json

        write_output(self.json_file, to_json(to_document(prediction)))

    def _name_files(self) -> None:
        for path in (self.json_file, self.trace_file, self.report_file):
            if path is not None:
                print(f"Wrote {path}")
