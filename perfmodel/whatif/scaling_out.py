"""What-ifs about where a job runs: another machine, or more ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from perfmodel.base.errors import ScenarioError
from perfmodel.base.units import format_duration
from perfmodel.graph.job import NO_GROUP, Group, JobGraph
from perfmodel.graph.ops import (
    Communication,
    Fixed,
    HostPart,
    HostSpan,
    HostWork,
    Op,
    Work,
    duration_of,
)
from perfmodel.graph.program import PLAIN
from perfmodel.whatif.drafts import Ranks
from perfmodel.whatif.pinning import DEFAULT_STACK, PricingMachine, pin_job
from perfmodel.whatif.recosting import (
    OnMachine,
    Recosted,
    count_recosted,
    price_ns,
    retime,
)
from perfmodel.whatif.selection import LaneWord, Pattern, Selection, lane_mask
from perfmodel.whatif.transformation import Transformation, change_ops
from topologies import cpu_speed, load_topology


class Doubt(Enum):
    """Which end of the uncertainty is taken for work that is priced again."""

    FASTEST = "fastest"
    NONE = "none"
    SLOWEST = "slowest"


COUNTED_DOUBT = 1.15
ESTIMATED_DOUBT = 1.35
HOST_DOUBT = 1.25
UNKNOWN_HOST_DOUBT = 1.5
"""By how much a ratio between two machines may be off either way, for nine of ten tasks.

Kernels of a device that was not used for fitting are predicted 7 to 12 % off, and their ratio to a
known one is no better; estimated work is known from the kernel's time alone. Threads are compared
by clock and work per clock; hosts of the catalog differ by 1.7 times.
"""

DOUBT = (
    "The interval assumes that all ratios between the machines are off by up to "
    f"{COUNTED_DOUBT - 1:.0%} either way, "
    f"{ESTIMATED_DOUBT - 1:.0%} where the work was estimated from recorded times, and "
    f"{HOST_DOUBT - 1:.0%} for hosts ({UNKNOWN_HOST_DOUBT - 1:.0%} where their CPUs are not known)."
)


PAUSE_NS = 5_000_000
"""Host work that launches nothing for longer is a thread that sleeps, or waits for data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeMachine(Transformation):
    """The job runs on the machine *topology* instead of *was*.

    With *was*, durations are scaled by the ratio of two predictions; without it they are predicted
    again. Host times take *host* times as long: by default the ratio of the CPUs' speeds.
    """

    topology: str
    was: str | None = None
    hosts: int | None = None
    was_hosts: int | None = None
    stack: str = DEFAULT_STACK
    host: float | None = None
    doubt: Doubt = Doubt.NONE

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        if self.was is None:
            how = f"Known work is predicted again for {self.topology}"
            rest = "unknown device work keeps its time"
        else:
            how = f"Known work is scaled by the ratio of predictions for {self.topology} "
            how += f"and {self.was}"
            rest = "unknown device work by the mean ratio of the rest"
        ratio, doubt = self._host_ratio()
        why = ""
        if doubt == UNKNOWN_HOST_DOUBT:
            why = ", as the speed of the CPUs is not known for both"
        elif doubt == HOST_DOUBT:
            why = " ({} compared with {}, by clock and work per clock)".format(*self._cpus())
        return (
            f"{how}, {rest}; host times take {ratio:.3g} times as long{why}.",
            (
                f"Host threads that launch nothing for more than {format_duration(PAUSE_NS)} sleep "
                "or wait for data, which takes as long as before."
            ),
            (
                "The software runs the same kernels and calls there; number formats that a GPU "
                "cannot multiply run as wider ones, and collectives of a rank recorded alone "
                "involve all GPUs of a host."
            ),
        )

    def _cpus(self) -> list[str | None]:
        """The CPUs of the new machine and of the old one."""
        return [load_topology(name).host_cpu for name in (self.topology, self.was) if name]

    def _host_ratio(self) -> tuple[float, float]:
        """How many times as long host work takes, and how far off that may be."""
        if self.host is not None:
            return self.host, 1.0
        if self.was is None or self.was == self.topology:
            return 1.0, 1.0
        speed, was_speed = (cpu_speed(cpu) for cpu in self._cpus())
        if speed is None or was_speed is None:
            return 1.0, UNKNOWN_HOST_DOUBT
        return was_speed / speed, HOST_DOUBT

    @property
    def selection(self) -> Selection:
        """The tasks that are meant."""
        return Selection(None, LaneWord.DEVICE)

    def recosted(self, job: JobGraph) -> Recosted:
        """How much of the device time has known work."""
        return count_recosted(
            job,
            self.selection,
            lambda op: _device_work(op) is not None,
            what="the device time",
        )

    def doubted(self, doubt: Doubt) -> ChangeMachine:
        """The same with all ratios at one end of their uncertainty."""
        return replace(self, doubt=doubt)

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        target = PricingMachine(self.topology, self.hosts, self.stack)
        host_ratio, host_doubt = self._host_ratio()
        factor = host_ratio * self._at_end(host_doubt)
        # A pause may be work after all, so the fastest end assumes a faster host.
        factor_of_pauses = min(factor, 1.0) if self.doubt is Doubt.FASTEST else 1.0

        def scale_host(op: Op, _: Ranks) -> Op:
            by = factor_of_pauses if _is_pause(op) else factor
            return retime(op, duration_of(op) * by)

        has_hosts = any(lane_mask(program, LaneWord.HOST).any() for program in job.programs)
        if factor != 1.0 and has_hosts:
            job = change_ops(job, Selection(None, LaneWord.HOST), scale_host)
        if self.was is None:
            released = change_ops(
                job, Selection(), lambda op, _: _device_work(op) or op, assumptions=self.assumptions
            )
            return pin_job(released, target)
        return self._scale(job, target, PricingMachine(self.was, self.was_hosts, self.stack))

    def _scale(self, job: JobGraph, target: PricingMachine, source: PricingMachine) -> JobGraph:
        # Their quotient is the mean ratio, each task weighted by its duration.
        before_ns = after_ns = 0.0

        def scale(op: Op, ranks: Ranks) -> Op:
            nonlocal before_ns, after_ns
            work, duration_ns = _device_work(op), duration_of(op)
            if work is None:
                return op
            priced_ns = price_ns(work, ranks, source)
            ratio = price_ns(work, ranks, target) / priced_ns if priced_ns else 1.0
            before_ns += duration_ns
            after_ns += duration_ns * ratio
            return retime(op, duration_ns * ratio * self._doubt_of(op))

        scaled = change_ops(job, self.selection, scale, assumptions=self.assumptions)
        mean = after_ns / before_ns if before_ns else 1.0

        def scale_rest(op: Op, _: Ranks) -> Op:
            if _device_work(op) is not None:
                return op
            return retime(op, duration_of(op) * mean * self._doubt_of(op))

        return change_ops(scaled, self.selection, scale_rest)

    def _doubt_of(self, op: Op) -> float:
        is_counted = isinstance(op, Fixed) and op.work is not None and not op.is_estimated
        return self._at_end(COUNTED_DOUBT if is_counted else ESTIMATED_DOUBT)

    def _at_end(self, width: float) -> float:
        return {Doubt.FASTEST: 1 / width, Doubt.NONE: 1.0, Doubt.SLOWEST: width}[self.doubt]


def _is_pause(op: Op) -> bool:
    work = op.work if isinstance(op, Fixed) else op
    is_between = isinstance(work, HostWork) and work.part is HostPart.BETWEEN_LAUNCHES
    return is_between and duration_of(op) > PAUSE_NS


def _device_work(op: Op) -> Work | None:
    """What a task does on the device, where that is known."""
    work = op.work if isinstance(op, Fixed) else op
    return None if isinstance(work, HostWork | HostSpan) else work


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRanks(OnMachine, Transformation):
    """The job has *count* ranks: every rank is cloned, with its batch.

    Groups like *groups* (by default those of all ranks) include the clones; all other groups are
    cloned. The present ranks are on *was_hosts*, or on as few hosts as they need.
    """

    count: int
    groups: Pattern | None = None
    was_hosts: int | None = None

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted."""
        return (
            (
                f"{self.count} ranks do what the ranks of the job do, on batches of the same size "
                "and with the same delays; models sharded over all ranks are not cut finer."
            ),
            self.cost_sentence,
        )

    def apply(self, job: JobGraph) -> JobGraph:
        """The changed job."""
        if self.count < job.rank_count or self.count % job.rank_count:
            raise ScenarioError(
                f"count: must be a multiple of the {job.rank_count} ranks that the job has, got "
                f"{self.count}. Ranks are cloned."
            )
        copies = self.count // job.rank_count
        grown = [self._is_grown(job, group) for group in job.groups]
        if not job.groups:
            raise ScenarioError(
                "the job has no collective of several ranks that more ranks could join. "
                "`data_parallel` makes many ranks of one."
            )
        if not any(grown):
            names = ", ".join(repr(group.name) for group in job.groups[:8])
            raise ScenarioError(
                f"no group includes the new ranks. Groups are {names}: name the data-parallel ones "
                "with `groups`."
            )
        priced = change_ops(
            job,
            Selection(),
            lambda op, ranks: self._recost(op, ranks, job, copies),
            assumptions=self.assumptions,
        )
        return _clone_ranks(priced, copies, grown)

    def recosted(self, job: JobGraph) -> Recosted:
        """How much of the time of the groups that grow is of collectives with known bytes."""
        known = estimated = total = 0
        for rank in range(job.rank_count):
            program = job.program_of(rank)
            for task in np.flatnonzero(program.slot != PLAIN).tolist():
                op, group = job.op_of(rank, task), job.group_of(rank, task)
                if group is None or not isinstance(op, Fixed) or not self._is_grown(job, group):
                    continue
                total += op.duration_ns
                if isinstance(op.work, Communication):
                    known += op.duration_ns
                    estimated += op.duration_ns * op.is_estimated
        return Recosted("the time of collectives that include more ranks", known, estimated, total)

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
                f"group {group.name!r}: an exchange with a byte matrix belongs to a model sharded "
                "over these ranks, and cannot include clones. Name other `groups`."
            )
        after = _with_clones(ranks, copies, job.rank_count)
        if self.machine is None:
            ratio = self.time_ratio(op.work, op.work, ranks, after)
        else:
            before_ns = price_ns(op.work, ranks, replace(self.machine, hosts=self.was_hosts))
            after_ns = price_ns(op.work, after, self.machine)
            ratio = after_ns / before_ns if before_ns > 0 else 1.0
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
