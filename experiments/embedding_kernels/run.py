"""Embedding kernels: predicted beside measured on V100 and A100.

python experiments/embedding_kernels/run.py      # needs ../shared/data
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from embeddings.distribution import ReuseHistogram, histogram_from_bins
from embeddings.lookup import Lookup
from embeddings.table import EmbeddingTable
from perfmodel.costs.embedding import EmbeddingModel
from perfmodel.costs.stack_files import load_stack
from perfmodel.graph.ops import EmbeddingOp, Pass
from topologies import load_device
from traces.kineto import load_kineto
from traces.trace import Category

HERE = Path(__file__).parent
CRITEO_ROWS = (
    39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208,
    11938, 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36,
)  # fmt: skip
TRACE = "traces/single_rank/hta_trace_diff__control__control.json.gz"
PAPER_US = {
    ("DLRM_default", "forward"): 603.0,
    ("DLRM_default", "backward"): 1040.0,
    ("DLRM_MLPerf", "forward"): 312.0,
    ("skewed, 197 tables", "forward"): 1257.0,
    ("skewed, 197 tables", "backward"): 2137.0,
}
"""What the paper's heuristic gives, as far as it is stated."""


def main() -> None:
    """Write results.json and the picture, and print the table."""
    shared = Path(os.environ.get("PERFMODEL_SHARED_DATA", HERE.parents[2] / "shared" / "data"))
    rows = []
    for case, device, lookup, measured in _cases(shared):
        for direction in Pass:
            predicted = _time_us(lookup, direction, device)
            wanted = measured[direction.value]
            rows.append(
                {
                    "case": case,
                    "device": device,
                    "direction": direction.value,
                    "measured_us": wanted,
                    "predicted_us": round(predicted, 1),
                    "error_pct": round(100 * (predicted / wanted - 1), 1),
                    "paper_heuristic_us": PAPER_US.get((case, direction.value)),
                }
            )
    (HERE / "results.json").write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        print(*row.values(), sep=" | ")
    _draw(rows)


def _cases(shared: Path) -> list[tuple[str, str, Lookup, dict[str, float]]]:
    default = tuple(EmbeddingTable(f"t{place}", 10**6, 64, 100.0) for place in range(8))
    mlperf = tuple(EmbeddingTable(f"t{rows}", rows, 128) for rows in CRITEO_ROWS)
    draws = 3.29e6 / 197
    histogram = _histogram(shared)
    as_batch = _skewed(draws, histogram.scaled(draws))
    # 65,536 samples were counted, 512 are in a batch.
    as_set = _skewed(draws, histogram.scaled(draws * 128))
    main_lookup = tuple(
        EmbeddingTable(f"t{place}", 744 + (place < 69), 71 + (place < 58), 15.8e6 / 122 / 8192)
        for place in range(122)
    )
    skewed = {"forward": 389.0, "backward": 2904.0}
    v100, a100, old = "v100_sxm2_16gb", "a100_sxm_40gb", "table_batched"
    default_us = {"forward": 519.0, "backward": 1275.0}
    mlperf_us = {"forward": 51.4, "backward": 110.7}
    recorded = Lookup(main_lookup, 8192, "rowwise_adagrad")
    return [
        ("DLRM_default", v100, Lookup(default, 2048, kernel=old), default_us),
        ("DLRM_MLPerf", v100, Lookup(mlperf, 2048, kernel=old), mlperf_us),
        ("skewed, 197 tables", v100, Lookup(as_batch, 512, kernel=old), skewed),
        ("skewed, histogram as of the whole set", v100, Lookup(as_set, 512, kernel=old), skewed),
        ("recorded job, 122 tables", a100, recorded, _recorded(shared / TRACE)),
    ]


def _skewed(draws: float, histogram: ReuseHistogram) -> tuple[EmbeddingTable, ...]:
    return tuple(
        EmbeddingTable(f"t{place}", 10**7, 64, draws / 512, distribution=histogram)
        for place in range(197)
    )


def _histogram(shared: Path) -> ReuseHistogram:
    with (shared / "embeddings" / "index_reuse_histograms.csv").open() as file:
        row = next(csv.DictReader(file))
    return histogram_from_bins(
        tuple(float(row[key]) for key in row if key.startswith("uniq_rows_frac")),
        tuple(float(row[key]) for key in row if key.startswith("lookup_frac")),
        draws=float(row["n_indices"]),
        reuse=float(row["avg_reuse"]),
    )


def _recorded(path: Path) -> dict[str, float]:
    """Forward kernel, and all kernels from linearising the indices to the last update."""
    trace = load_kineto(path)
    columns = trace.columns.take(trace.columns.is_in(Category.KERNEL))
    names = [trace.names[number] for number in columns.name.tolist()]
    forward: list[int] = []
    backward: list[int] = []
    stream, total, is_open = -1, 0, False
    for row, name in enumerate(names):
        duration = int(columns.duration_ns[row])
        if "codegen_forward_unweighted_kernel" in name:
            forward.append(duration)
        if "linearize_index_kernel" in name and duration > 100_000:
            stream, total, is_open = int(columns.stream[row]), 0, True
        if is_open and int(columns.stream[row]) == stream:
            total += duration
            if "unweighted_kernel_warp_per_row" in name:
                backward.append(total)
                is_open = False
    return {
        "forward": round(sum(forward) / len(forward) / 1e3, 1),
        "backward": round(sum(backward) / len(backward) / 1e3, 1),
    }


def _time_us(lookup: Lookup, direction: Pass, device: str) -> float:
    op = EmbeddingOp(lookup, direction)
    priced = EmbeddingModel().price([op], load_device(device), load_stack("pytorch_eager"))
    return float(priced.duration_ns[0]) / 1e3


def _draw(rows: list[dict[str, Any]]) -> None:
    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    places = range(len(rows))
    errors = [row["error_pct"] for row in rows]
    axis.barh([place - 0.2 for place in places], errors, 0.4, label="perfmodel")
    paper = [(place, row) for place, row in enumerate(rows) if row["paper_heuristic_us"]]
    axis.barh(
        [place + 0.2 for place, _ in paper],
        [100 * (row["paper_heuristic_us"] / row["measured_us"] - 1) for _, row in paper],
        0.4,
        label="the paper's heuristic",
    )  # fmt: skip
    axis.set_yticks(
        list(places), [f"{row['case']}, {row['direction']}" for row in rows], fontsize=8
    )
    axis.invert_yaxis()
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_xscale("symlog", linthresh=20)
    axis.set_xlabel("error of kernel time, %")
    axis.legend(fontsize=8)
    figure.savefig(HERE / "errors.png", dpi=110, metadata={"Software": ""})


if __name__ == "__main__":
    main()
