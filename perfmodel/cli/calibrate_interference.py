"""`perfmodel calibrate interference`: constants from recorded jobs, shown and written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LICENCE = "figures of the recordings under their own licences; this file Apache-2.0"


def calibrate_interference_command(
    traces: Annotated[
        list[Path],
        typer.Argument(metavar="TRACES...", help="Kineto traces: files, or folders of jobs."),
    ],
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="GPU of traces that name none: mi300x.")
    ] = None,
    licence: Annotated[
        str, typer.Option(metavar="TEXT", help="Licence of the recorded figures.")
    ] = LICENCE,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write the constants.")
    ] = None,
) -> None:
    """Fit how much kernels slow down beside collectives, from recorded jobs."""
    from datetime import UTC, datetime

    from perfmodel.calibration.interference import about_traces, fit_interference, to_text
    from perfmodel.calibration.interference_fit import slowdown_of

    fitted = fit_interference(traces, device=device)
    print(f"{'generation':<12}{'family':<11}{'phase':<9}{'kernels':>7}  measured (90 %)       used")
    for architecture, cells in sorted(fitted.of_architecture.items()):
        for (family, phase), cell in cells.items():
            seen, words = cell.seen, "assumed"
            if seen is not None:
                low, high = slowdown_of(seen.low_ratio), slowdown_of(seen.high_ratio)
                words = f"{slowdown_of(seen.mean_ratio):.3f} ({low:.3f} to {high:.3f})"
            count = 0 if seen is None else seen.kernels
            print(
                f"{architecture:<12}{family:<11}{phase.word:<9}{count:>7}  {words:<24}"
                f"{cell.slowdown:.3f}"
            )
    if out is not None:
        named = f" --device {device}" if device else ""
        command = f"perfmodel calibrate interference {' '.join(map(str, traces))}{named}"
        day = datetime.now(UTC).date()
        about = about_traces(fitted, command=command, licence=licence, day=day)
        out.write_text(to_text(fitted, about=about), encoding="utf-8")
        print(f"Wrote {out}")
