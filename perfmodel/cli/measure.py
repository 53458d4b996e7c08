"""`perfmodel calibrate measure`: take measurements here and write the machine down."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class DeviceChoice(Enum):
    """What can be measured."""

    CPU = "cpu"
    CUDA = "cuda"


def measure_command(
    device: Annotated[DeviceChoice, typer.Option(help="What to measure on this machine.")],
    out: Annotated[
        Path, typer.Option(metavar="FILE.yaml", help="Topology to write; the device goes beside.")
    ],
    ranks: Annotated[
        int, typer.Option(metavar="N", min=1, help="Ranks of the collectives; 1 measures none.")
    ] = 2,
    samples: Annotated[
        int, typer.Option(metavar="N", min=3, help="Samples of every kernel and collective.")
    ] = 9,
) -> None:
    """Measure kernels and collectives of this machine and write files that predict accepts."""
    from perfmodel.calibration.measure import MeasureRequest, measure_machine

    request = MeasureRequest(device.value, out, ranks, samples)
    found = measure_machine(request, on_phase=lambda phase: print(f"{phase} ..."))
    for family, error in found.errors.items():
        print(
            f"{family:<12} {error.count:>3} measured   median error {error.median_pct:5.1f} %   "
            f"bias {error.bias_pct:+6.1f} %"
        )
    print(
        f"others had the core {100 * found.lost_ratio:.0f} % of the time; samples spread over "
        f"{100 * found.spread_ratio:.0f} %"
    )
    print(f"Wrote {found.topology} and {found.device}")
    hosts = f" --hosts {ranks}" if device is DeviceChoice.CPU and ranks > 1 else ""
    print(f"perfmodel predict --topology {found.topology} --stack {found.stack}{hosts}")
