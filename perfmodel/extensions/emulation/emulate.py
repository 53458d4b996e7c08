"""Emulating: run a few ranks, prove that the others do the same, and write one job.

The first, the last and a middle rank run at the same time; with sub-groups, also the first, last
and middle of the groups of rank 0. All but rank 0 must do the same: scripts let rank 0 log. If
they do not, or if they communicate with ranks that do not run, every rank is run.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from perfmodel.base.errors import EmulationError
from perfmodel.extensions.emulation.communicators import build_job
from perfmodel.extensions.emulation.driver.launch import run_ranks
from perfmodel.extensions.emulation.rank_record import RankRecord, from_bytes
from perfmodel.extensions.emulation.request import (
    Emulation,
    check_platform,
    device_facts,
    load_gpu,
)
from perfmodel.extensions.emulation.summary import EmulatedJob, describe_job, describe_run
from perfmodel.extensions.emulation.windows import are_alike
from perfmodel.extensions.emulation.workers import (
    NEEDS_ALL_RANKS,
    WorkerOutcome,
    WorkerTask,
)
from perfmodel.graph.audit import check_job
from perfmodel.graph.storage import check_job_place, save_job
from perfmodel.stacks.profiles import load_stack

EAGER_STACK = "pytorch_fused"
"""Eager code on a current host."""
COMPILED_STACK = "torch_compile"
"""Joins kernels of eager code by their sizes, where the compiler could not run."""
MOST_AT_ONCE = 16
"""Ranks that a worker runs at once, unless they must communicate with each other."""


class WorkerRunner(Protocol):
    """Where workers run: an executor of `perfmodel.execution`."""

    def map(
        self,
        function: Callable[[WorkerTask, tuple[int, ...]], WorkerOutcome],
        shared: WorkerTask,
        items: Sequence[tuple[int, ...]],
    ) -> list[WorkerOutcome]:
        """`function(shared, item)` for all *items*, in their order."""
        ...


Start = Callable[[Sequence[tuple[int, ...]]], WorkerOutcome]
"""Runs workers, each with some of the ranks."""


class ScriptFailedError(EmulationError):
    """A rank of the script ended with an exit code, which becomes ours."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def emulate(request: Emulation, out: Path, *, place: WorkerRunner) -> EmulatedJob:
    """Run the script of *request* on *place* and write its job to the folder *out*."""
    check_platform()
    check_job_place(out, is_overwriting=request.is_overwriting)
    device = load_gpu(request.device)
    facts = device_facts(device)
    environment = tuple(sorted(os.environ.items()))
    with tempfile.TemporaryDirectory(prefix="perfmodel-code-") as code:
        task = WorkerTask(request, facts, str(Path.cwd()), environment, code)
        records = _run(request, partial(_start, place, task))
    stack = _stack_of(records[min(records)])
    job = build_job(
        records,
        world_size=request.ranks,
        latency_ns=round(load_stack(stack).host.launch_latency_ns),
        facts=describe_job(request, records, device=device, stack=stack),
    )
    check_job(job)
    save_job(job, out, is_overwriting=request.is_overwriting)
    return EmulatedJob(job, out, describe_run(records))


def _stack_of(record: RankRecord) -> str:
    """The stack that prices *record*: code that was compiled here is as it is."""
    is_guessed = bool(record.fallbacks) and not record.compiled_regions
    return COMPILED_STACK if is_guessed else EAGER_STACK


def _run(request: Emulation, start: Start) -> dict[int, RankRecord]:
    """Records of some ranks that prove the others equal, or of all."""
    count, host_size = request.ranks, request.host_size
    if request.all_ranks or count <= 3:
        return _run_all(request, start)
    # The middle rank is the first of its host, if there are several.
    middle = count // 2 // host_size * host_size or count // 2
    records: dict[int, RankRecord] = {}
    ranks: tuple[int, ...] = (0, middle, count - 1)
    while ranks:
        outcome = start([ranks])
        if _needs_all(outcome):
            _say("ranks need what others send them, so every rank is run.")
            return _read(request, start([tuple(range(count))]))
        records |= _read(request, outcome)
        if not _others_alike(records):
            break
        ranks = tuple(rank for rank in _group_probes(records[0]) if rank not in records)
    else:
        return records
    _say("ranks do not all do the same, so every rank is run.")
    return _run_all(request, start)


def _run_all(request: Emulation, start: Start) -> dict[int, RankRecord]:
    ranks = tuple(range(request.ranks))
    parts = [ranks[first : first + MOST_AT_ONCE] for first in range(0, len(ranks), MOST_AT_ONCE)]
    outcome = start(parts)
    if _needs_all(outcome) and len(parts) > 1:
        outcome = start([ranks])
    return _read(request, outcome)


def _start(
    place: WorkerRunner, task: WorkerTask, parts: Sequence[tuple[int, ...]]
) -> WorkerOutcome:
    """Run one worker for each of *parts*."""
    outcomes = place.map(run_ranks, task, list(parts))
    return WorkerOutcome(
        codes={rank: code for one in outcomes for rank, code in one.codes.items()},
        records={rank: found for one in outcomes for rank, found in one.records.items()},
        hangs=tuple(sentence for one in outcomes for sentence in one.hangs),
        faults={rank: fault for one in outcomes for rank, fault in one.faults.items()},
    )


def _read(request: Emulation, outcome: WorkerOutcome) -> dict[int, RankRecord]:
    if outcome.hangs:
        raise ScriptFailedError(" ".join(outcome.hangs), 1)
    # Ranks that were ended because another failed (by SIGKILL) come last.
    for rank, code in sorted(outcome.codes.items(), key=lambda entry: (entry[1] == -9, entry)):
        if code != 0:
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            why = f" ({outcome.faults[rank]:.400})" if rank in outcome.faults else ""
            raise ScriptFailedError(
                f"{request.script}: rank {rank} ended with {how}{why}; no job is written.",
                code if code > 0 else 128 - code,
            )
    records = {}
    for rank in sorted(outcome.codes):
        if rank not in outcome.records:
            raise ScriptFailedError(f"rank {rank} ended without a record (os._exit).", 1)
        record = records[rank] = from_bytes(outcome.records[rank])
        if len(record.boundaries) < 2:
            raise EmulationError(
                f"rank {rank}: the script ended after {record.step_count} optimizer steps, and no "
                f"iteration was recorded: {request.warmup} are warm-up. Let it run longer, or give "
                "a smaller --warmup. Steps are those of torch.optim optimizers."
            )
        if not record.calls:
            raise EmulationError(
                f"rank {rank}: an iteration must use a GPU, but all {record.step_count} steps of "
                "the script ran on the host. Scripts often need an option for it, such as --cuda."
            )
    return records


def _say(sentence: str) -> None:
    print(f"perfmodel: {sentence}", file=sys.stderr)


def _others_alike(records: Mapping[int, RankRecord]) -> bool:
    """Whether all ranks but rank 0 do the same."""
    return are_alike([record for rank, record in records.items() if rank != 0])


def _group_probes(record: RankRecord) -> list[int]:
    """The first, last and middle member of every smaller group that rank 0 is in."""
    probes = (
        group.ranks[place]
        for group in record.groups
        if record.rank in group.ranks
        for place in (0, len(group.ranks) // 2, -1)
    )
    return list(dict.fromkeys(probes))


def _needs_all(outcome: WorkerOutcome) -> bool:
    return NEEDS_ALL_RANKS in outcome.codes.values()
