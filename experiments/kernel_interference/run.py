"""What kernels lose beside collectives, and collectives beside kernels, from recorded jobs."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import yaml

from perfmodel.calibration.interference.command import fit_interference
from perfmodel.calibration.interference.fit import fit_losses, slowdown_of
from perfmodel.recordings.collective_calls import find_collective_calls
from perfmodel.recordings.matching import match_collectives, transfer_ns
from perfmodel.recordings.rank_view import view_rank
from traces.job_trace import load_job_traces

HERE = Path(__file__).parent
DATA = Path(os.environ.get("PERFMODEL_SHARED_DATA", HERE.parents[1].parent / "shared" / "data"))


def main() -> None:
    scenario = yaml.safe_load((HERE / "scenario.yaml").read_text())
    paths = [DATA / "traces" / name for name in scenario["traces"]]
    fitted = fit_interference(paths, device=scenario["unnamed_device"])
    results = {
        "kernels": list(kernel_lines(fitted)),
        "left_out": left_out_lines(fitted.losses),
        "collectives": {
            name: transfer_lines(DATA / "traces" / name) for name in scenario["transfers"]
        },
    }
    for part in results["kernels"] + results["left_out"]:
        print(part)
    for name, lines in results["collectives"].items():
        print(name, *lines, sep="\n  ")
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")


def kernel_lines(fitted):
    """One line a generation, family and phase that was seen."""
    for architecture, cells in sorted(fitted.of_architecture.items()):
        for (family, phase), cell in cells.items():
            if cell.seen is not None:
                seen = cell.seen
                yield {
                    "generation": architecture,
                    "family": family,
                    "phase": phase.word,
                    "kernels": seen.kernels,
                    "measured": round(slowdown_of(seen.mean_ratio), 3),
                    "low": round(slowdown_of(seen.low_ratio), 3),
                    "high": round(slowdown_of(seen.high_ratio), 3),
                    "used": round(cell.slowdown, 3),
                }


def left_out_lines(losses):
    """Time lost in each generation: recorded, with constants fitted to it, and to the others."""
    own, lines = fit_losses(losses), []
    for device in sorted({loss.device for loss in losses}):
        mine = [loss for loss in losses if loss.device == device]
        others = fit_losses([loss for loss in losses if loss.device != device])
        # Any of the others stands for a stranger: the mean over them.
        strange = {
            cell: float(np.mean([of_device[cell].loss_ratio for of_device in others.values()]))
            for cell in next(iter(others.values()))
        }
        covered = sum(loss.covered_ns for loss in mine)

        def total(ratio_of, mine=mine, covered=covered):
            return round(sum(loss.covered_ns * ratio_of(loss) for loss in mine) / covered, 4)

        lines.append(
            {
                "generation": device,
                "covered_ms": round(covered / 1e6, 2),
                "lost_share": total(lambda loss: loss.loss_ratio),
                "with_its_constants": total(
                    lambda loss, device=device: own[device][loss.family, loss.phase].loss_ratio
                ),
                "with_those_of_others": total(
                    lambda loss, strange=strange: strange[loss.family, loss.phase]
                ),
            }
        )
    return lines


def transfer_lines(path):
    """Transfers of one size by the share of them that kernels ran beside, mean over members."""
    found = defaultdict(list)
    for job in load_job_traces(path):
        views = [view_rank(trace) for trace in job.ranks]
        for group in match_collectives([find_collective_calls(view) for view in views]):
            for number in range(group.count):
                call = group.calls[0][number]
                lengths = transfer_ns(views, group, number)
                shares = [
                    kernel_share(views[rank], group.calls[member][number].task, lengths[member])
                    for member, rank in enumerate(group.members)
                ]
                size = None if call.collective is None else call.collective.size_bytes
                key = (call.kind.value if call.kind else "unknown", size)
                found[key].append((float(np.mean(shares)), max(lengths) / 1e3))
    lines = []
    for (kind, size), pairs in sorted(found.items(), key=str):
        shares, times = np.array(pairs).T
        lines.append(
            {
                "kind": kind,
                "size_bytes": size,
                "transfers": len(pairs),
                "covered_share": [round(float(v), 2) for v in np.quantile(shares, [0, 0.5, 1])],
                "time_us": [round(float(v), 1) for v in np.quantile(times, [0, 0.5, 1])],
            }
        )
    return lines


def kernel_share(view, task, length_ns):
    """Share of the last *length_ns* of the collective *task* with a kernel beside it."""
    device = view.device
    end = int(device.end_ns[task])
    chosen = ~device.is_collective & ~device.is_copy
    reached, covered = end - length_ns, 0
    for start, stop in sorted(
        zip(device.start_ns[chosen].tolist(), device.end_ns[chosen].tolist(), strict=True)
    ):
        covered += max(min(stop, end) - max(start, reached), 0)
        reached = max(reached, min(stop, end))
    return covered / max(length_ns, 1)


if __name__ == "__main__":
    main()
