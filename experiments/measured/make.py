"""Cut the tables of this folder out of the larger ones that they are from.

python experiments/measured/make.py ../shared/data      # minutes; only when those tables change

Rows of large tables are taken at equal steps in their order, never by how well they are predicted.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import yaml

from experiments.figures import EXPERIMENTS, MEASURED
from experiments.fitting.interference import fit_interference
from experiments.fitting.interference_samples import KernelLoss
from perfmodel.extensions.measurements.calibration.embedding_cases import load_cases
from perfmodel.extensions.recordings.importing import import_job
from perfmodel.extensions.recordings.operators.calls import dtype_of
from perfmodel.extensions.recordings.storage import save_recorded_job
from perfmodel.extensions.recordings.trace_stats import stats_document
from traces.job_trace import load_job_trace

ROWS = 500
"""Of a table of kernels, about; a score of so many rows is within a tenth of that of all."""
KERNELS = {
    "gemm": "gemm/*.csv.gz", "attention": "attention/*.csv*", "experts": "moe/*.csv.gz",
    "memory": "memory/*.csv.gz", "norms": "norms/*.csv*",
}  # fmt: skip
UNREAD = ["causal_tflops", "tflops", "timestamp", "liger_version", "y_value_20", "y_value_80"]
PAPER = (
    "hw_params", "bandwidth_curve_params", "collectives_4xV100_digitized",
    "a2a_size_treatment_errors_4xV100", "a2a_general_samples_4xV100", "e2e_single_gpu_summary",
    "e2e_single_gpu_final_digitized", "overheads_final_figure_digitized",
    "multi_gpu_results_secondary_source", "microbench_samples_V100", "known_dlrm_tasks_4xA100",
)  # fmt: skip
EMBEDDINGS = (
    "index_reuse_histograms", "b200_dlrm_dcnv2", "b200_plans", "b200_traces", "criteo_zipf",
)  # fmt: skip
RECORDINGS = {
    "dlrm_one_sleep": "dlrm_torchrec_v100x4/s2_a2a_opt_2_runA",
    "dlrm_two_sleeps": "dlrm_torchrec_v100x4/n2_a2a_opt_2_runB",
    "dlrm_later": "dlrm_torchrec_v100x4/n3_a2a_opt_3",
    "dlrm_8_ranks": "dlrm_param_v100x8",
    "gpt_tensor_parallel": "gpt_tp2_v100x2",
}
SCALING = {"source": "Selene weak|MLPerf", "model": "GPT-"}
DCNV2 = {"source": "MLPerf", "model": "DCNv2"}
LAYOUT_SETS = {"vTrain": ["layers", "hidden", "n_gpus", "gbs"], "Ultra-Scale": ["model", "n_gpus"]}
EVERY_SET = {"vTrain": 4, "Ultra-Scale": 1}
MOST_GPUS_OF_SET = {"vTrain": 256, "Ultra-Scale": 32}
"""Sets of runs that differ in their layout: of many every fourth, and of large ones the smaller."""
FUSED = (
    "traces/nanogpt_h100x8/rank0.json.gz",
    "traces/single_rank/nanogpt_h100x8_rank0_after_hooks.json.gz",
)
FUSED_KINDS = {"poi": "pointwise", "per": "persistent_reduction", "red": "reduction"}
"""How names of Inductor's kernels begin, behind `triton_`."""
H100_BYTES_PER_US = 3.35e6
SHORT_MS, LONG_MS, BIG_SIDE = (0.4, 0.8), 12.8, 2048


def main(data: Path) -> None:
    """Write every table but those of core runs, which were cut by hand."""
    make_runs(data / "runs")
    make_layouts(data / "runs")
    make_kernels(data)
    make_fused(data)
    make_collectives(data / "collectives")
    make_studies(data)
    make_recordings(data / "traces")


def write(frame: pd.DataFrame, name: str) -> None:
    """The same rows give the same bytes."""
    path = MEASURED / name
    path.parent.mkdir(exist_ok=True)
    packed = {"method": "gzip", "mtime": 0} if path.suffix == ".gz" else None
    frame.to_csv(path, index=False, compression=packed, float_format="%.6g")


def make_runs(folder: Path) -> None:
    """Runs at several scales, in the columns of the core tables."""
    for core, large, name, chosen in (
        ("core_transformer.csv", "transformer.csv.gz", "runs_scaling.csv", SCALING),
        ("core_dlrm.csv", "dlrm.csv", "runs_dcnv2.csv", DCNV2),
    ):
        table = pd.read_csv(folder / large, dtype=str)
        kept = pd.read_csv(MEASURED / core, nrows=0).columns
        rows = table[table["source"].str.contains(chosen["source"])]
        rows = rows[rows["model"].str.contains(chosen["model"])]
        write(rows.reindex(columns=kept), name)


def make_layouts(folder: Path) -> None:
    """Whole sets of runs that differ in layout alone, in the columns of the core table."""
    table = pd.read_csv(folder / "transformer.csv.gz", dtype=str)
    kept = pd.read_csv(MEASURED / "core_transformer.csv", nrows=0).columns
    parts = []
    for source, same in LAYOUT_SETS.items():
        rows = table[table["source"].str.contains(source)]
        rows = rows[rows["n_gpus"].astype(int) <= MOST_GPUS_OF_SET[source]]
        number = rows.groupby(same, sort=True).ngroup()
        is_several = rows["n_nodes"].astype(float) > 1
        parts.append(rows[(number % EVERY_SET[source] == 0) | is_several])
    write(pd.concat(parts).reindex(columns=kept).dropna(axis=1, how="all"), "runs_layouts.csv.gz")


def make_kernels(data: Path) -> None:
    """Some rows of every table of kernels, and all that tell short from long products."""
    long = []
    for kind, pattern in KERNELS.items():
        for path in sorted(data.glob(pattern)):
            name = path.name.removesuffix(".gz").removesuffix(".csv")
            table = pd.read_csv(path)
            step = max(1, round(len(table) / ROWS))
            kept = table.iloc[step // 2 :: step].drop(columns=UNREAD, errors="ignore")
            write(kept, f"kernels/{kind}_{name.removeprefix('fp32_')}.csv.gz")
            if kind == "gemm" and not name.startswith("fp8"):
                sides = table[["m", "n", "k"]]
                big = table[(sides >= BIG_SIDE).all(axis=1) & (sides % 64 == 0).all(axis=1)]
                times = big["latency_ms"]
                chosen = big[times.between(*SHORT_MS, inclusive="left") | (times >= LONG_MS)]
                long.append(chosen[["collector", "latency_ms", "tflops"]].assign(device=name))
    write(pd.concat(long), "kernels/long_products.csv.gz")


def make_fused(folder: Path) -> None:
    """Kernels that Inductor made, as recorded in training: medians by kernel and bytes.

    A recording gives every tensor of a launch, not how much of it is touched. Where that would be
    faster than the memory, only parts are; lookups touch rows. Both are left out, and so is the
    softmax that its exponentials limit.
    """
    rows: dict[tuple[str, str, int], list[float]] = {}
    for name in FUSED:
        for kernel, size_bytes, time_us in _fused_launches(folder / name):
            kind = FUSED_KINDS.get(kernel.split("_")[1])
            is_slower = 0 < size_bytes < time_us * H100_BYTES_PER_US
            if kind and is_slower and not re.search("embedding|softmax_online", kernel):
                rows.setdefault((name.split("/")[-1], kind, size_bytes), []).append(time_us)
    lines = [
        (kind, "NVIDIA H100 80GB HBM3", size_bytes, round(median(times) / 1e3, 6), source)
        for (source, kind, size_bytes), times in sorted(rows.items())
    ]
    columns = ["fused_kind", "device", "size_bytes", "latency_ms", "recording"]
    write(pd.DataFrame(lines, columns=columns), "kernels/fused_h100.csv")


def _fused_launches(path: Path) -> Iterator[tuple[str, int, float]]:
    """Kernel, bytes of all its tensors and time of every launch whose shapes are certain."""
    with gzip.open(path) as stream:
        entries = json.load(stream)["traceEvents"]
    named = [one for one in entries if str(one.get("name", "")).startswith("triton_")]
    sizes: dict[str, set[int]] = {}
    for one in named:
        if one.get("cat") == "cpu_op":
            sizes.setdefault(one["name"], set()).add(_tensor_bytes(one["args"]))
    for one in named:
        known = sizes.get(one["name"], set())
        if one.get("cat") == "kernel" and len(known) == 1:
            yield one["name"], min(known), float(one["dur"])


def _tensor_bytes(words: Mapping[str, Any]) -> int:
    total = 0
    names = ("Input Dims", "Input Strides", "Input type")
    for lengths, steps, kind in zip(*(words[name] for name in names), strict=True):
        dtype = dtype_of(kind)
        if dtype is not None:
            moved = (length for length, step in zip(lengths, steps, strict=True) if step)
            total += prod(moved) * dtype.size_bytes
    return int(total)


def make_collectives(folder: Path) -> None:
    """Medians of what was measured alike."""
    tables = [pd.read_csv(path) for path in sorted(folder.rglob("*.csv"))]
    rows = pd.concat(tables, ignore_index=True)
    # One table has every whole mebibyte; the others double.
    powers = rows["size_bytes"].astype("int64").map(lambda size: size & (size - 1) == 0)
    rows = rows[powers | (rows["hosts"] > 1)]
    keys = ["topology", "hosts", "nranks", "collective", "size_bytes", "dtype", "nccl_version"]
    write(rows.groupby(keys, dropna=False, as_index=False)["time_us"].median(), "collectives.csv")


def make_studies(data: Path) -> None:
    """Figures of the paper and its predecessor, of embeddings, and of overlapping kernels."""
    for folder, names in (("paper", PAPER), ("embeddings", EMBEDDINGS)):
        (MEASURED / folder).mkdir(exist_ok=True)
        for name in names:
            shutil.copyfile(data / folder / f"{name}.csv", MEASURED / folder / f"{name}.csv")
            (MEASURED / folder / f"{name}.csv").chmod(0o644)
    tree = pd.read_csv(data / "paper" / "device_time_breakdown_V100.csv")
    columns = ["trace", "iters_in_trace", "depth", "path", "time_us", "count"]
    write(tree[tree["depth"] <= 2][columns], "paper/device_time_V100.csv")
    kernels = pd.read_csv(data / "paper" / "kernel_instances_V100_traces.csv")
    summed = kernels.groupby(["trace", "kernel"], as_index=False).agg(
        calls=("time_us", "size"), total_us=("time_us", "sum")
    )
    write(summed, "paper/kernels_V100.csv")
    cases, _ = load_cases(EXPERIMENTS / "embedding_kernels" / "cases.yaml", data=data)
    times = [(one.name, part, ns / 1e3) for one in cases for part, ns in one.measured_ns.items()]
    write(pd.DataFrame(times, columns=["case", "part", "measured_us"]), "embeddings/kernels.csv")
    asked = yaml.safe_load((EXPERIMENTS / "kernel_interference" / "scenario.yaml").read_text())
    paths = [data / "traces" / name for name in asked["traces"]]
    losses = fit_interference(paths, device=asked["unnamed_device"]).losses
    # Shapes of one kernel lose alike; which kernel it is does not matter beyond that.
    codes = {name: code for code, name in enumerate(dict.fromkeys(one.kernel for one in losses))}
    lines = [
        (one.device, one.family, one.phase.word, codes[one.kernel], *_numbers(one))
        for one in losses
    ]
    names = ["device", "family", "phase", "kernel", "loss_ratio", "covered_ns", "calls"]
    write(pd.DataFrame(lines, columns=names), "kernels/beside_collectives.csv")


def _numbers(loss: KernelLoss) -> tuple[float, float, int]:
    return loss.loss_ratio, loss.covered_ns, loss.calls


def make_recordings(folder: Path) -> None:
    """Recorded jobs as `import` writes them, and what their streams did."""
    streams = {}
    for name, source in RECORDINGS.items():
        recording = load_job_trace(folder / source)
        place = MEASURED / "recordings" / name
        shutil.rmtree(place, ignore_errors=True)
        with tempfile.TemporaryDirectory() as draft:
            save_recorded_job(import_job(recording), Path(draft) / name)
            shutil.copytree(Path(draft) / name, place)
        streams[name] = stats_document(recording)["streams"]
    path = MEASURED / "recordings" / "streams.json"
    path.write_text(json.dumps(streams) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
