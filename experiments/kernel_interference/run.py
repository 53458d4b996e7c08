"""How much overlapping kernels and collectives slow each other down, from recorded jobs.

python experiments/kernel_interference/run.py [--quick] [--out FOLDER]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.figures import (
    BLACK,
    BLUE,
    ORANGE,
    Wishes,
    legend_below,
    new_figure,
    read_measured,
    read_wishes,
)
from experiments.fitting.interference import (
    Cell,
    FittedLoss,
    fit_losses,
    slowdown_of,
)
from experiments.fitting.interference_samples import KernelLoss
from perfmodel.costs.interference import Phase


def main() -> None:
    """Fit losses to recorded kernels, leave generations out, draw."""
    wishes = read_wishes(__file__, __doc__)
    phases = {phase.word: phase for phase in Phase}
    losses = [
        KernelLoss(
            device=row["device"],
            family=row["family"],
            phase=phases[row["phase"]],
            kernel=row["kernel"],
            loss_ratio=float(row["loss_ratio"]),
            covered_ns=float(row["covered_ns"]),
            calls=int(row["calls"]),
        )
        for row in read_measured("kernels/beside_collectives.csv")
    ]
    fitted = fit_losses(losses)
    lines = kernel_lines(fitted)
    wishes.write_results(
        {
            "kernels": lines,
            "left_out": [left_out(losses, fitted, device) for device in sorted(fitted)],
            "transfers": wishes.scenario()["recorded_transfers"],
        }
    )
    draw(wishes, lines)


def kernel_lines(fitted: dict[str, dict[Cell, FittedLoss]]) -> list[dict[str, Any]]:
    """One line a generation, family and phase that was seen."""
    return [
        {
            "generation": architecture,
            "family": family,
            "phase": phase.word,
            "kernels": cell.seen.kernels,
            "measured": slowdown_of(cell.seen.mean_ratio),
            "low": slowdown_of(cell.seen.low_ratio),
            "high": slowdown_of(cell.seen.high_ratio),
            "used": cell.slowdown,
        }
        for architecture, cells in sorted(fitted.items())
        for (family, phase), cell in cells.items()
        if cell.seen is not None
    ]


def left_out(
    losses: list[KernelLoss], fitted: dict[str, dict[Cell, FittedLoss]], device: str
) -> dict[str, Any]:
    """Time lost on *device*: recorded, with constants fitted to it, and to the others."""
    mine = [loss for loss in losses if loss.device == device]
    others = fit_losses([loss for loss in losses if loss.device != device])
    # Any of the others represents an unknown one: the mean over them.
    strange = {
        cell: float(np.mean([of_device[cell].loss_ratio for of_device in others.values()]))
        for cell in next(iter(others.values()))
    }
    weights = np.array([loss.covered_ns for loss in mine])

    def share(ratios: list[float]) -> float:
        return float(np.average(ratios, weights=weights))

    own = fitted[device]
    return {
        "generation": device,
        "covered_ms": weights.sum() / 1e6,
        "lost_share": share([loss.loss_ratio for loss in mine]),
        "with_its_constants": share([own[loss.family, loss.phase].loss_ratio for loss in mine]),
        "with_those_of_others": share([strange[loss.family, loss.phase] for loss in mine]),
    }


def draw(wishes: Wishes, lines: list[dict[str, Any]]) -> None:
    """What was measured with its spread, and what is used."""
    figure, axes = new_figure(height=0.15 * len(lines) + 0.8)
    names = [
        f"{one['generation']}, {one['family']} beside {one['phase']} ({one['kernels']})"
        for one in lines
    ]
    places = np.arange(len(lines))
    low, middle, high, used = (
        np.array([one[key] for one in lines]) for key in ("low", "measured", "high", "used")
    )
    axes.errorbar(middle, places, xerr=[middle - low, high - middle], fmt="o", color=BLACK,
                  elinewidth=0.8, label="measured, 90 % of means")  # fmt: skip
    axes.plot(used, places, "D", color=ORANGE, label="used")
    axes.axvline(1, color=BLUE, linewidth=0.8)
    axes.set_yticks(places, names, fontsize=5.5)
    axes.invert_yaxis()
    axes.set_xlabel("times as long as alone")
    legend_below(figure, axes)
    wishes.save(figure, "slowdowns.png")


if __name__ == "__main__":
    main()
