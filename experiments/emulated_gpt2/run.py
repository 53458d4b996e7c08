"""Emulated GPT-2 124M against the workload generator: python run.py PATH/nanoGPT/train.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from perfmodel import api
from perfmodel.graph.ops import MemoryBound, Op

HERE = Path(__file__).parent
PERFMODEL = [sys.executable, "-c", "from perfmodel.cli import main; main()"]
TOKENS, VOCAB = 200_000, 50_257
WAYS = {"eager": "--compile=False", "compiled": "--compile=True"}


def perfmodel(*words: str, folder: Path) -> str:
    root = str(HERE.parents[1])
    done = subprocess.run(
        [*PERFMODEL, *words], cwd=folder, env=os.environ | {"PYTHONPATH": root}, check=True,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return done.stdout


def predict(*words: str, folder: Path) -> dict[str, object]:
    answer = json.loads(
        perfmodel("predict", "--topology", "dgx_a100", *words, "--json", "-", folder=folder)
    )
    kinds = {entry["name"]: entry for entry in answer["critical_path"]["by_kind"]}
    memory = answer["memory_gib"]
    return {
        "iteration_time_ms": answer["iteration_time_ms"],
        "interval_ms": answer["interval_ms"],
        "memory_gib": None if memory is None else memory["peak"],
        "critical_path": kinds,
    }


def count_kernels(folder: Path) -> dict[str, dict[str, float]]:
    """Kernels of rank 0 by kind, and the bytes of those that are bound by memory."""
    job = api.load_job(folder)
    program = job.program_of(0)
    ops: Iterable[Op] = (job.ops[index] for index in program.op[program.is_on_device()])
    counts: dict[str, dict[str, float]] = {}
    for op in ops:
        is_bytes = isinstance(op, MemoryBound)
        is_fused = is_bytes and op.operator.startswith("fused_")
        kind = "fused" if is_fused else "memory-bound" if is_bytes else type(op).__name__
        entry = counts.setdefault(kind, {"kernels": 0, "gigabytes": 0.0})
        entry["kernels"] += 1
        if is_bytes:
            entry["gigabytes"] = round(
                entry["gigabytes"] + (op.read_bytes + op.write_bytes) / 1e9, 6
            )
    return counts


def main() -> None:
    script = Path(sys.argv[1]).resolve()
    results = {}
    with tempfile.TemporaryDirectory() as name:
        data, jobs = Path(name) / "data", Path(name)
        data.mkdir()
        tokens = np.random.default_rng(0).integers(0, VOCAB, TOKENS).astype(np.uint16)
        for part in ("train", "val"):
            tokens.tofile(data / f"{part}.bin")
        for way, option in WAYS.items():
            perfmodel(
                "emulate", "--ranks", "8", "--device", "a100_sxm_80gb", "--out", str(jobs / way),
                "--", script.name, f"--dataset={data}", "--eval_iters=1", option,
                folder=script.parent,
            )  # fmt: skip
            results[f"emulated, {way}"] = predict("--job", str(jobs / way), folder=HERE) | {
                "kernels": count_kernels(jobs / way)
            }
        workload = ("--workload", str(HERE / "scenario.yaml"))
        for stack in ("pytorch_fused", "torch_compile"):
            results[f"generator, {stack}"] = predict(*workload, "--stack", stack, folder=HERE)
    (HERE / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    for name, result in results.items():
        print(f"{name:28} {result['iteration_time_ms']:8.1f} ms")


if __name__ == "__main__":
    main()
