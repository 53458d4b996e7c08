"""Errors of the shipped kernel models over the measured tables, as figures and numbers."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import yaml

from perfmodel.costs.gemm.table import load_gemm_table
from perfmodel.validation.kernels import validate_table

HERE = Path(__file__).parent
DATA = Path(os.environ.get("PERFMODEL_SHARED_DATA", HERE.parents[1].parent / "shared" / "data"))
# Geometric means of absolute errors that the paper and its predecessor report (PAPER 4.3, 2.6).
PAPER_GMAE = {"GEMM, roofline": 17.5, "GEMM, analytical": 16.1, "all kernels, at most": 10.0}


def main() -> None:
    tables = yaml.safe_load((HERE / "scenario.yaml").read_text())
    results: dict[str, dict] = {}
    boards = {}
    for kind, names in tables.items():
        for name in names:
            board = boards[name] = validate_table(kind, DATA / name)
            groups = {group: asdict(score) for group, score in board.groups.items()}
            results[name] = {"overall": asdict(board.overall), "groups": groups}
            print(
                name,
                f"{board.overall.mape_pct:.2f} % mean, {board.overall.median_pct:.2f} % median",
            )
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    draw_plane([name for name in tables["gemm"] if name.startswith("gemm/")], boards)
    draw_table(results)


def draw_plane(names: list[str], boards: dict) -> None:
    figure, axes = plt.subplots(1, len(names), figsize=(4 * len(names), 4.2), sharey=True)
    for axis, name in zip(axes, names, strict=True):
        error = {str(one.row): abs(one.error_pct) for one in boards[name].deviations}
        kernels = [
            kernel for kernel in load_gemm_table(DATA / name).kernels
            if kernel.group[0].startswith("trtllm")
        ]  # fmt: skip
        shape = np.array([(one.op.m, one.op.n, one.op.k) for one in kernels], dtype=float)
        m, n, k = shape.T
        work = 2 * m * n * k
        intensity = work / (2 * (m * n + n * k + m * k))
        image = axis.hexbin(
            work, intensity, C=[error[one.row] for one in kernels], xscale="log", yscale="log",
            gridsize=40, reduce_C_function=np.mean, vmin=0, vmax=15, cmap="viridis",
        )  # fmt: skip
        axis.set_title(Path(name).name.removesuffix(".csv.gz"))
        axis.set_xlabel("operations")
    axes[0].set_ylabel("operations per byte")
    figure.colorbar(image, ax=axes, label="mean absolute error, %", extend="max")
    figure.savefig(HERE / "gemm_plane.png", dpi=80, bbox_inches="tight")


def draw_table(results: dict) -> None:
    ours = {name.split("/")[-1].split(".")[0]: one["overall"] for name, one in results.items()}
    labels = [*PAPER_GMAE, *ours]
    values = [*PAPER_GMAE.values(), *(score["geomean_pct"] for score in ours.values())]
    colours = ["tab:grey"] * len(PAPER_GMAE) + ["tab:blue"] * len(ours)
    figure, axis = plt.subplots(figsize=(9, 6))
    axis.barh(range(len(labels)), values, color=colours)
    for place, value in enumerate(values):
        axis.text(value + 0.1, place, f"{value:.1f}", va="center")
    axis.set_yticks(range(len(labels)), labels)
    axis.invert_yaxis()
    axis.set_xlabel("geometric mean of absolute errors, %")
    axis.set_xlim(0, 20)
    axis.set_title("Kernel errors: the paper's (grey), ours on the fitted tables (blue)")
    figure.tight_layout()
    figure.savefig(HERE / "kernel_table.png", dpi=80)


if __name__ == "__main__":
    main()
