"""`perfmodel measure`: which kernels and collectives to time for a job, and a script that does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from perfmodel import api
from perfmodel.base.options import Option
from perfmodel.cli.commands import command
from perfmodel.cli.options import Outputs, argument
from perfmodel.cli.predict import read_scenario
from perfmodel.prediction.scenario import JobScenario, Scenario

EPILOG = """\b
Examples:
  perfmodel measure llama3_8b --topology dgx_h100 --out timing
  torchrun --nproc-per-node 8 timing/measure.py
  perfmodel calibrate kernels timing/table.csv --out my_kernels.yaml
  perfmodel predict llama3_8b --topology dgx_h100 --calibration my_kernels.yaml
\b
`python timing/measure.py --dry-run` runs small tensors on a CPU, where there is no GPU.
"""


@command(epilog=EPILOG)
def measure(
    *,
    asked: Annotated[dict[str, Any], Scenario, JobScenario],
    model: Annotated[str | None, argument("WORKLOAD", "Model, as with --workload.")] = None,
    scenario_file: Annotated[
        str | None,
        Option(name="--scenario", metavar="FILE", help="Read the whole question from a file."),
    ] = None,
    out: Annotated[str, Option(metavar="FOLDER", help="Where to write the script and its list.")],
    files: Annotated[Outputs, "json_file"],
) -> None:
    """List the kernels on which the interval depends most, and write a script that times them."""
    from perfmodel.extensions.measurements.report import report_measuring

    if model is not None:
        asked["workload"] = model
    plan = api.measure(read_scenario(asked, scenario_file, ()), out)
    files.write(report_measuring(plan, Path(out)), plan.to_dict)
