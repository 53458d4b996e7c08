"""What-ifs about where a job runs: another machine, or more ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfmodel.base.errors import ScenarioError
from perfmodel.graph.job import NO_GROUP, Group, JobGraph
from perfmodel.graph.ops import Communication, Fixed, HostSpan, HostWork, Op, Work
from perfmodel.whatif.job_draft import Ranks, change_ops, retime
from perfmodel.whatif.pinning import DEFAULT_STACK, PricingMachine, pin_job
from perfmodel.whatif.recosting import Effort, OnMachine, price_ns
from perfmodel.whatif.selection import Pattern, Selection, duration_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeMachine:
    """The job runs on the machine *topology* instead of *was*.

    With *was*, durations are scaled by the ratio of two predictions; without,
    they are predicted anew.
    """

    topology: str
    was: str | None = None
    hosts: int | None = None
    was_hosts: int | None = None
    stack: str = DEFAULT_STACK

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        how = (
            f"is predicted anew for {self.topology}"
            if self.was is None
            else f"is scaled by the ratio of predictions for {self.topology} and {self.was}"
        )
        return (
            (
                f"Work whose shape is known {how}; all other tasks, host time among them, keep "
                "their durations."
            ),
            "The software makes the same kernels and calls there.",
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        known = sum(_device_work(op) is not None for op in job.ops)
        share = f"The device work of {known} of {len(job.ops)} different tasks is known."
        sentences = (*self.assumptions, share)
        target = PricingMachine(self.topology, self.hosts, self.stack)
        if self.was is None:
            return pin_job(change_ops(job, Selection(), _release, assumptions=sentences), target)
        source = PricingMachine(self.was, self.was_hosts, self.stack)

        def scale(op: Op, ranks: Ranks) -> Op:
            work = _device_work(op)
            if work is None:
                return op
            effort = Effort(work, ranks)
            before_ns = price_ns(effort, source)
            ratio = price_ns(effort, target) / before_ns if before_ns else 1.0
            return retime(op, duration_of(op) * ratio)

        return change_ops(job, Selection(), scale, assumptions=sentences)


def _release(op: Op, ranks: Ranks) -> Op:
    """The work of a task instead of the duration it stated."""
    del ranks
    return _device_work(op) or op


def _device_work(op: Op) -> Work | None:
    """What a task does on the device, where that is known."""
    work = op.work if isinstance(op, Fixed) else op
    return None if isinstance(work, HostWork | HostSpan) else work


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRanks(OnMachine):
    """The job has *count* ranks: every rank is cloned, with its batch.

    Groups like *groups* (left out: those of all ranks) take the clones in; all
    other groups are cloned.
    """

    count: int
    groups: Pattern | None = None

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"{self.count} ranks do what the ranks of the job do, on batches of the same size "
                "and with the same delays; models that are split over all ranks are not cut finer."
            ),
            self.cost_sentence,
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        copies = self._copies(job)
        grown = [self._is_grown(job, group) for group in job.groups]
        if not any(grown):
            names = ", ".join(repr(group.name) for group in job.groups[:8]) or "none"
            raise ScenarioError(
                f"no group takes the new ranks in. Groups are {names}: say with `groups` which "
                "of them are data-parallel."
            )
        priced = change_ops(
            job,
            Selection(),
            lambda op, ranks: self._recost(op, ranks, job, copies),
            assumptions=self.assumptions,
        )
        return _clone_ranks(priced, copies, grown)

    def _copies(self, job: JobGraph) -> int:
        if self.count < job.rank_count or self.count % job.rank_count:
            raise ScenarioError(
                f"count: must be a multiple of the {job.rank_count} ranks that the job has, got "
                f"{self.count}. Ranks are cloned, not invented."
            )
        return self.count // job.rank_count

    def _is_grown(self, job: JobGraph, group: Group) -> bool:
        if self.groups is not None:
            return self.groups.matches(group.name)
        return len(set(group.ranks)) == job.rank_count

    def _recost(self, op: Op, ranks: Ranks, job: JobGraph, copies: int) -> Op:
        group = next((one for one in job.groups if one.ranks == ranks), None)
        if not ranks or group is None or not self._is_grown(job, group) or copies == 1:
            return op
        if not isinstance(op, Fixed) or not isinstance(op.work, Communication):
            return op
        if op.work.collective.byte_matrix is not None:
            raise ScenarioError(
                f"group {group.name!r}: an exchange with a byte matrix belongs to a model split "
                "over these ranks, and cannot take clones in. Name other `groups`."
            )
        after = _with_clones(ranks, copies, job.rank_count)
        ratio = self.time_ratio(Effort(op.work, ranks), Effort(op.work, after))
        return retime(op, op.duration_ns * ratio)


def _with_clones(ranks: Ranks, copies: int, rank_count: int) -> Ranks:
    return tuple(rank + copy * rank_count for copy in range(copies) for rank in ranks)


def _clone_ranks(job: JobGraph, copies: int, grown: list[bool]) -> JobGraph:
    """Every rank *copies* times; groups that are *grown* hold all clones of their members."""
    groups: list[Group] = []
    number = np.full((copies, len(job.groups) + 1), NO_GROUP, dtype=np.int32)
    for index, group in enumerate(job.groups):
        if grown[index]:
            number[:, index] = len(groups)
            groups.append(Group(group.name, _with_clones(group.ranks, copies, job.rank_count)))
            continue
        for copy in range(copies):
            number[copy, index] = len(groups)
            ranks = tuple(rank + copy * job.rank_count for rank in group.ranks)
            groups.append(Group(group.name if copy == 0 else f"{group.name} copy {copy}", ranks))
    return replace(
        job,
        groups=tuple(groups),
        rank_program=np.tile(job.rank_program, copies),
        # NO_GROUP is -1: the last column, which holds it.
        rank_group=np.concatenate([number[copy][job.rank_group] for copy in range(copies)]),
    )
