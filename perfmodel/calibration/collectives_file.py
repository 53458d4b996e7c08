"""Writing a fitted calibration of collectives as a file that can be loaded and read."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from collectives.calibration import SCHEMA_VERSION, Calibration
from collectives.calibration_file import to_document, to_numbers

_HEADING = """\
# Fitted constants of collectives. Times in nanoseconds, ratios of the datasheet's bandwidth.
# Made by the command below; do not edit by hand.
"""


def write_calibration(calibration: Calibration, path: Path, *, about: Mapping[str, str]) -> None:
    """Write *calibration* to *path*; *about* says source, hardware, software, licence, command."""
    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, **about}
    document |= to_document(calibration.hosts, calibration.fabrics)
    document["software_constants"] = to_numbers(calibration.software)
    document["uncertainty"] = dict(calibration.uncertainty)
    document["measured"] = [
        [span.topology, span.kind.value, span.hosts, span.ranks, span.low_bytes, span.high_bytes]
        for span in calibration.spans
    ]
    text = yaml.safe_dump(document, sort_keys=False, width=100, default_flow_style=None)
    path.write_text(_HEADING + text, encoding="utf-8")


def about_shipped(*, command: str, day: datetime.date) -> dict[str, str]:
    """Where the constants that ship with the package come from."""
    return {
        "source": (
            "ai-dynamo/aiconfigurator 095f58a; VIA-Research/vTrain f8dda84; medians of public "
            "nccl-tests logs: argonne-lcf/alcf-nccl-tests, xxrjun/nccl-tests-cluster, "
            "boeschf/nccl-benchmark-on-alps-2025, aws-samples/awsome-distributed-training, "
            "NVIDIA/dgxc-benchmarking, microsoft/superbenchmark, NVIDIA/nccl issue threads"
        ),
        "hardware": (
            "dgx_a100, dgx_h100, l40s_pcie, dgx1_v100, alps_gh200, polaris, aws_p4d, aws_p5"
        ),
        "software": "NCCL 2.23, 2.27.3, 2.29.2 and releases not stated",
        "date": day.isoformat(),
        "licence": "Apache-2.0 (aiconfigurator), MIT (vTrain), figures from public logs",
        "command": command,
    }
