"""Emulating: run a few ranks, prove that the others do the same, and write one job.

The first, the last and a middle rank run side by side; with sub-groups, also the
first, last and middle of the groups of rank 0. Rank 0 may do more than the others, who
must do the same: scripts let it log. Otherwise, or if they talk to ranks that do not
run, every rank is run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from perfmodel.base.errors import EmulationError
from perfmodel.emulation.collating import Machine, are_alike, collate
from perfmodel.emulation.crews import CrewOutcome, CrewTask, Surroundings, run_crew
from perfmodel.emulation.orders import NEEDS_ALL_RANKS, CrewOrder
from perfmodel.emulation.rank_record import RankRecord, from_bytes
from perfmodel.emulation.request import (
    Emulation,
    check_platform,
    describe_commit,
    device_facts,
    load_gpu,
)
from perfmodel.emulation.telling import EmulatedJob, tell
from perfmodel.graph.audit import check_job
from perfmodel.graph.job import JobFacts
from perfmodel.graph.storage import check_job_place, save_job
from perfmodel.stacks.profiles import load_stack

EAGER_STACK = "pytorch_fused"
"""Eager code on a current host."""
COMPILED_STACK = "torch_compile"
MOST_SIDE_BY_SIDE = 16
"""Ranks that a crew runs at once, unless they must talk to each other."""

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")


class Place(Protocol):
    """Where crews run: an executor of `perfmodel.execution`."""

    def map(
        self,
        function: Callable[[Shared, Item], Result],
        shared: Shared,
        items: Sequence[Item],
    ) -> list[Result]:
        """`function(shared, item)` for all *items*, in their order."""
        ...


class ScriptFailedError(EmulationError):
    """A rank ended with an exit code; it is the script's own affair, and so is the code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def emulate(request: Emulation, out: Path, *, place: Place) -> EmulatedJob:
    """Run the script of *request* on *place* and write its job to the folder *out*."""
    check_platform()
    check_job_place(out, is_overwriting=request.is_overwriting)
    device = load_gpu(request.device)
    facts = device_facts(device)
    order = CrewOrder(
        words=request.words,
        ranks=(),
        world_size=request.ranks,
        ranks_per_host=request.host_size,
        device=facts,
        warmup=request.warmup,
        iterations=request.iterations,
        runs_on=request.runs_on,
        is_plain=request.is_plain,
        timeout_s=request.timeout_s,
        folder="",
    )
    surroundings = Surroundings(str(Path.cwd()), tuple(sorted(os.environ.items())))
    runner = _Runner(CrewTask(order, surroundings), request, place)
    records = runner.run()
    first = records[min(records)]
    stack = COMPILED_STACK if first.is_compiled else EAGER_STACK
    machine = Machine(
        major_capability=facts.capability[0],
        launch_latency_ns=round(load_stack(stack).host.launch_latency_ns),
    )
    told = tell(request, records, device=device, commit=describe_commit(request.script))
    job = collate(
        records,
        world_size=request.ranks,
        machine=machine,
        facts=JobFacts(
            name=told.name,
            source=told.source,
            assumptions=told.assumptions,
            stack=stack,
            peak_memory_bytes=_peaks(records, request.ranks),
        ),
    )
    check_job(job)
    save_job(job, out, is_overwriting=request.is_overwriting)
    return replace(told, job=job, folder=out, stack=stack)


class _Runner:
    """Runs ranks until the job is known."""

    def __init__(self, task: CrewTask, request: Emulation, place: Place) -> None:
        self._task = task
        self._request = request
        self._place = place

    def run(self) -> dict[int, RankRecord]:
        """Records of some ranks that prove the others equal, or of all."""
        count = self._request.ranks
        everybody = tuple(range(count))
        if self._request.all_ranks or count <= 3:
            return self._run_all(everybody)
        probes = (0, _middle(count, self._request.host_size), count - 1)
        outcome = self._crew([probes])
        if _needs_all(outcome):
            self._say("ranks talk to each other point to point, so that every rank is run.")
            return self._together(everybody)
        records = self._read(outcome)
        more = tuple(rank for rank in _group_probes(records[0]) if rank not in records)
        if more and _others_alike(records):
            records |= self._read(self._crew([more]))
        if _others_alike(records):
            return records
        self._say("ranks do not all do the same, so that every rank is run.")
        return self._run_all(everybody)

    def _run_all(self, ranks: tuple[int, ...]) -> dict[int, RankRecord]:
        crews = [
            ranks[start : start + MOST_SIDE_BY_SIDE]
            for start in range(0, len(ranks), MOST_SIDE_BY_SIDE)
        ]
        outcome = self._crew(crews)
        if _needs_all(outcome) and len(crews) > 1:
            return self._together(ranks)
        return self._read(outcome)

    def _together(self, ranks: tuple[int, ...]) -> dict[int, RankRecord]:
        return self._read(self._crew([ranks]))

    def _crew(self, crews: Sequence[tuple[int, ...]]) -> CrewOutcome:
        outcomes = self._place.map(run_crew, self._task, list(crews))
        return CrewOutcome(
            codes={rank: code for one in outcomes for rank, code in one.codes.items()},
            records={rank: found for one in outcomes for rank, found in one.records.items()},
            hangs=tuple(sentence for one in outcomes for sentence in one.hangs),
        )

    def _read(self, outcome: CrewOutcome) -> dict[int, RankRecord]:
        if outcome.hangs:
            raise ScriptFailedError(" ".join(outcome.hangs), 1)
        for rank, code in sorted(outcome.codes.items(), key=_own_faults_first):
            if code != 0:
                raise ScriptFailedError(_failed(self._request, rank, code), _shell_code(code))
        records = {}
        for rank in sorted(outcome.codes):
            if rank not in outcome.records:
                raise ScriptFailedError(f"rank {rank} ended without a record (os._exit).", 1)
            records[rank] = from_bytes(outcome.records[rank])
            self._check_steady(records[rank])
        return records

    def _check_steady(self, record: RankRecord) -> None:
        if len(record.boundaries) < 2 + record.first_steady:
            warmup = self._request.warmup
            raise EmulationError(
                f"rank {record.rank}: the script ended after {record.step_count} optimizer steps, "
                f"and no steady iteration was seen: the first {warmup} are warm-up and one more "
                "is needed. Let it run longer, or give a smaller --warmup. Steps are those of "
                "torch.optim optimizers."
            )

    def _say(self, sentence: str) -> None:
        print(f"perfmodel: {sentence}", file=sys.stderr)


def _middle(count: int, ranks_per_host: int) -> int:
    """A rank between the first and the last: the first of its host, if there are several."""
    middle = count // 2
    hosts_before = middle // ranks_per_host
    return hosts_before * ranks_per_host or middle


def _others_alike(records: Mapping[int, RankRecord]) -> bool:
    """Whether all ranks but rank 0 do the same."""
    return are_alike([record for rank, record in records.items() if rank != 0])


def _group_probes(record: RankRecord) -> list[int]:
    """The first, last and middle member of every smaller group that rank 0 is in."""
    probes: dict[int, None] = {}
    for group in record.groups:
        if record.rank in group.ranks:
            for place in (0, len(group.ranks) // 2, -1):
                probes[group.ranks[place]] = None
    return list(probes)


def _needs_all(outcome: CrewOutcome) -> bool:
    return NEEDS_ALL_RANKS in outcome.codes.values()


def _own_faults_first(entry: tuple[int, int]) -> tuple[bool, int]:
    """Ranks that were ended because another failed (by SIGKILL) come last."""
    return entry[1] == -9, entry[0]


def _failed(request: Emulation, rank: int, code: int) -> str:
    how = f"exit code {code}" if code > 0 else f"signal {-code}"
    return f"{request.script}: rank {rank} ended with {how}; no job is written."


def _shell_code(code: int) -> int:
    return code if code > 0 else 128 - code


def _peaks(records: Mapping[int, RankRecord], world_size: int) -> tuple[int, ...]:
    """The peak of every rank; one that was not run takes the highest of those that were."""
    highest = max(record.peak_memory_bytes for record in records.values())
    return tuple(
        records[rank].peak_memory_bytes if rank in records else highest
        for rank in range(world_size)
    )
