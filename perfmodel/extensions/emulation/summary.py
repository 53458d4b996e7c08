"""Summary: what an emulated job says about itself, in sentences."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfmodel.extensions.emulation.batches import count_batch, describe_batch
from perfmodel.extensions.emulation.rank_record import CallType, IterationRecord, RankRecord
from perfmodel.extensions.emulation.request import Emulation, describe_commit
from perfmodel.extensions.emulation.windows import MOST_APART, Windows, are_equal
from perfmodel.graph.job import JobFacts, JobGraph
from topologies import Device

GIB = 2**30
SHARE_ASIDE = 0.25
"""Kernels without gradients that are named if left out, over those of the iteration: a forward pass
has a third of them."""


@dataclass(frozen=True, slots=True, eq=False)
class EmulatedJob:
    """A job that was written to *folder*, and sentences about the run of its script."""

    job: JobGraph
    folder: Path
    notices: tuple[str, ...]


def describe_job(
    request: Emulation, records: Mapping[int, RankRecord], *, device: Device, stack: str
) -> JobFacts:
    """What the job of *records* says about itself."""
    first = records[min(records)]
    peak = max(records.values(), key=lambda record: record.peak_memory_bytes)
    commit = describe_commit(request.script)
    at_commit = f" (commit {commit})" if commit else ""
    batch = count_batch(request, records)
    notes = (note for record in records.values() for note in record.notes)
    return JobFacts(
        name=Path(request.script).stem,
        source=(
            f"emulated: {shlex.join(request.words)}{at_commit}, torch {first.torch_version}, "
            f"{_release(request)}{request.ranks} ranks on virtual {device.name}; "
            f"{_proof(request, records)}"
        ),
        assumptions=(
            (
                f"At most {peak.peak_memory_bytes / GIB:.2f} GiB are allocated, by rank "
                f"{peak.rank} at {peak.peak_place}."
            ),
            describe_batch(request, batch),
            *_placeholders(records),
            *_iterations(first),
            *dict.fromkeys(notes),
            (
                "Host times are those of the stack, not of the emulator; input batches are ready "
                "when the script needs them."
            ),
        ),
        stack=stack,
        samples=batch.samples,
        tokens=batch.tokens,
        is_emulated=True,
        # A rank that was not run gets the highest peak of those that were.
        peak_memory_bytes=tuple(
            records.get(rank, peak).peak_memory_bytes for rank in range(request.ranks)
        ),
    )


def _release(request: Emulation) -> str:
    if request.torch_release is None:
        return ""
    return f"kernels as torch {request.torch_release} chooses them, "


def describe_run(records: Mapping[int, RankRecord]) -> tuple[str, ...]:
    """How the script ended, and how long its iterations took."""
    first, notices = records[min(records)], []
    if first.was_stopped:
        notices.append(
            f"the script was stopped at its first device call after {first.step_count} optimizer "
            "steps; --run-on lets it finish."
        )
    compile_s = sum(record.compile_cpu_s for record in records.values())
    if compile_s:
        notices.append(
            f"the compiler took {compile_s:.1f} s of processor time, in all ranks together."
        )
    later_s = [seconds for record in records.values() for seconds in record.step_cpu_s[1:]]
    if later_s:
        notices.append(
            f"iterations after the first took at most {max(later_s):.2f} s of processor time "
            "per rank."
        )
    return tuple(notices)


def _proof(request: Emulation, records: Mapping[int, RankRecord]) -> str:
    if len(records) == request.ranks:
        return "every rank was run"
    ranks = ", ".join(map(str, sorted(records)))
    if are_equal(list(records.values())):
        return f"ranks {ranks} were run and do the same; the others are assumed to as well"
    if not are_equal([record for rank, record in records.items() if rank != 0]):
        return (
            f"ranks {ranks} were run; all do the same but for the pieces of parameters that they "
            f"hold ({MOST_APART:.0%} of the memory-bound bytes at most), as the others are assumed "
            "to"
        )
    return f"ranks {ranks} were run; all but rank 0 do the same, as the others are assumed to"


def _placeholders(records: Mapping[int, RankRecord]) -> list[str]:
    counts: Counter[str] = Counter()
    for record in records.values():
        counts.update(record.placeholders)
    if not counts:
        return []
    listed = ", ".join(f"{what} ({count} times)" for what, count in sorted(counts.items()))
    return [f"Placeholder values were used where the script read device results: {listed}."]


def _iterations(record: RankRecord) -> list[str]:
    windows = Windows(record)
    sentences = []
    if record.compiled_regions:
        sentences.append(
            f"Compiled code is that of torch {record.torch_version}: its compiler ran for the "
            f"virtual GPUs (regions: {record.compiled_regions}), and every kernel it made is "
            "priced by the bytes it touches."
        )
    if record.fallbacks and not record.compiled_regions:
        sentences.append(
            "No region of the script could be compiled; it was recorded as eager code, and the "
            "stack torch_compile fuses its kernels when the job is priced."
        )
    sentences += [
        f"The compiled region at {place} runs as eager code, because it could not be compiled: "
        f"{why}."
        for place, why in record.fallbacks.items()
    ]
    sentences += _contents(record.iterations[windows.chosen])
    sentences += _left_out(record, windows)
    if windows.distinct_count > 1:
        sentences.append(
            f"{windows.steady_count} steady iterations of {windows.distinct_count} kinds were "
            "recorded; the most frequent kind is written."
        )
    elif windows.steady_count > 1:
        sentences.append(f"{windows.steady_count} steady iterations were recorded, all equal.")
    return sentences


def _left_out(record: RankRecord, windows: Windows) -> list[str]:
    """What the script does less often than the iteration that is written."""
    kernels = sum(call[0] == CallType.KERNEL for call in windows.all[windows.chosen])
    aside = record.iterations[windows.chosen].kernels_aside
    if record.most_aside - aside > SHARE_ASIDE * kernels:
        return [
            (
                f"The script launches up to {record.most_aside:,} kernels without gradients before "
                f"a step, such as a rollout or an evaluation, and {aside:,} in the iteration that "
                "is written: the others are left out. --steps-per-iteration states the steps of "
                "a whole period."
            )
        ]
    if record.was_stopped:
        return [
            (
                "What the script does less often than once per iteration, such as evaluations and "
                f"checkpoints, is left out: it was stopped after {record.step_count} iterations."
            )
        ]
    return []


def _contents(iteration: IterationRecord) -> list[str]:
    """What *iteration* has beside one step of each optimizer, or lacks."""
    sentences = []
    if iteration.steps > 1:
        sentences.append(
            f"The iteration that is written has {iteration.steps} optimizer steps; its time, "
            "samples and tokens are those of all of them."
        )
    if iteration.idle_optimizers:
        sentences.append(
            "Not all optimizers make a step in the iteration that is written (without a step: "
            f"{iteration.idle_optimizers}); --warmup and --iterations choose another one."
        )
    if iteration.evaluations:
        sentences.append(
            "The iteration that is written includes evaluations of the model (number: "
            f"{iteration.evaluations}); --warmup and --iterations choose another one."
        )
    return sentences
