"""Telling: what an emulated job says about itself, in sentences for people."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfmodel.emulation.collating import are_alike
from perfmodel.emulation.rank_record import RankRecord
from perfmodel.emulation.request import Emulation
from perfmodel.emulation.windows import Windows
from perfmodel.graph.job import JobGraph
from topologies import Device

GIB = 2**30


@dataclass(frozen=True, slots=True, eq=False)
class EmulatedJob:
    """A job that was written, and the sentences that go with it."""

    name: str
    source: str
    assumptions: tuple[str, ...]
    notices: tuple[str, ...]
    peak_memory_bytes: int
    job: JobGraph | None = None
    folder: Path = Path()
    stack: str = ""


def tell(
    request: Emulation, records: Mapping[int, RankRecord], *, device: Device, commit: str
) -> EmulatedJob:
    """The sentences about *records*, which lack the job itself."""
    first = records[min(records)]
    peak = max(records.values(), key=lambda record: record.peak_memory_bytes)
    command = shlex.join(request.words)
    at_commit = f" (commit {commit})" if commit else ""
    source = (
        f"emulated: {command}{at_commit}, torch {first.torch_version}, {request.ranks} ranks on "
        f"virtual {device.name}; {_proof(request, records)}"
    )
    memory = (
        f"At most {peak.peak_memory_bytes / GIB:.2f} GiB are allocated, by rank {peak.rank} at "
        f"{peak.peak_place}."
    )
    assumptions = [memory, *_values(records), *_iterations(first), *_notes(records)]
    assumptions.append(
        "Host times are those of the stack, never of the emulator; input batches are ready when "
        "they are asked for."
    )
    notices = []
    if first.was_stopped:
        notices.append(
            f"the script was stopped at its first device call after {first.step_count} optimizer "
            "steps; --run-on lets it finish."
        )
    later_s = [seconds for record in records.values() for seconds in record.step_cpu_s[1:]]
    if later_s:
        notices.append(
            "an iteration after the first took at most "
            f"{max(later_s):.2f} s of processor time a rank."
        )
    return EmulatedJob(
        name=Path(request.script).stem,
        source=source,
        assumptions=tuple(assumptions),
        notices=tuple(notices),
        peak_memory_bytes=peak.peak_memory_bytes,
    )


def _proof(request: Emulation, records: Mapping[int, RankRecord]) -> str:
    if len(records) == request.ranks:
        return "every rank was run"
    ranks = ", ".join(map(str, sorted(records)))
    if are_alike(list(records.values())):
        return f"ranks {ranks} were run and do the same, so that all are taken to"
    return f"ranks {ranks} were run; all but rank 0 do the same, so that all others are taken to"


def _values(records: Mapping[int, RankRecord]) -> list[str]:
    counts: Counter[str] = Counter()
    for record in records.values():
        counts.update(record.stand_ins)
    if not counts:
        return []
    listed = ", ".join(f"{what} ({count} times)" for what, count in sorted(counts.items()))
    return [f"Stand-ins were given for what only a real device computes: {listed}."]


def _iterations(record: RankRecord) -> list[str]:
    windows = Windows(record)
    sentences = []
    if record.is_compiled:
        sentences.append(
            "The script compiles its model; it was recorded as eager code, and the stack "
            "torch_compile joins its kernels when the job is priced."
        )
    if windows.distinct_count > 1:
        sentences.append(
            f"{windows.steady_count} steady iterations were recorded and {windows.distinct_count} "
            "kinds of them found; the most frequent one is written."
        )
    elif windows.steady_count > 1:
        sentences.append(f"{windows.steady_count} steady iterations were recorded, all alike.")
    return sentences


def _notes(records: Mapping[int, RankRecord]) -> list[str]:
    return list(dict.fromkeys(note for record in records.values() for note in record.notes))
