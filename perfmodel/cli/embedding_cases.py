"""`perfmodel calibrate embedding`: cases of measured lookups in, constants and errors out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.options import JsonFile

if TYPE_CHECKING:
    from perfmodel.calibration.embedding_fit import CaseError

STDOUT = "-"


def calibrate_embedding_command(
    cases: Annotated[Path, typer.Argument(metavar="CASES.yaml", help="A file of measured cases.")],
    data: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the files that cases name lie.")
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write the constants.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Fit embedding lookups and updates: a few constants a GPU generation.

    Every case is also predicted by constants that were fitted without it.
    """
    from datetime import UTC, datetime

    from perfmodel.calibration.embedding_cases import load_cases
    from perfmodel.calibration.embedding_file import format_errors, write_constants
    from perfmodel.calibration.embedding_fit import fit_embedding

    loaded = load_cases(cases, data=data)
    fit = fit_embedding(loaded.cases)
    if out is not None:
        command = f"perfmodel calibrate embedding {cases} --data {data}"
        day = datetime.now(UTC).date().isoformat()
        write_constants(fit, {**loaded.about, "date": day, "command": command}, out)
    if json_file is not None:
        _write_json(fit.errors, json_file)
    if json_file != STDOUT:
        print("\n".join(format_errors(fit.errors)))
        print(
            "Nothing written; --out FILE writes the constants." if out is None else f"Wrote {out}"
        )


def _write_json(errors: tuple[CaseError, ...], json_file: str) -> None:
    import json
    from dataclasses import asdict

    rows = [asdict(error) for error in errors]
    text = json.dumps({"schema_version": 1, "kind": "embedding", "rows": rows}) + "\n"
    if json_file == STDOUT:
        sys.stdout.write(text)
    else:
        Path(json_file).write_text(text, encoding="utf-8")
