"""Primitives about where a job runs: another machine, or more ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

import numpy as np

from perfmodel.base.errors import ScenarioError
from perfmodel.extensions.whatif.drafts import Ranks, change_ops
from perfmodel.extensions.whatif.patterns import LabelPattern
from perfmodel.extensions.whatif.pinning import pin_job
from perfmodel.extensions.whatif.recosting import (
    Recosted,
    count_recosted,
    price_ns,
    retime,
    time_ratio,
)
from perfmodel.extensions.whatif.selection import LaneWord, Selection, lane_mask
from perfmodel.graph.job import NO_GROUP, Group, JobFacts, JobGraph
from perfmodel.graph.ops import (
    Attention,
    Communication,
    Convolution,
    Fixed,
    Gemm,
    HostPart,
    HostSpan,
    HostWork,
    Op,
    Work,
    duration_of,
    work_of,
)
from perfmodel.prediction.saved_jobs import PricingMachine
from topologies import cpu_speed, load_topology


class Doubt(Enum):
    """Which end of the uncertainty is used for repriced work."""

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

_OF_LIBRARY = 0.25
"""How much of a product's deviation from its price, as a power, belongs to the vendor's library and
stays behind: from two forward passes recorded on H100 and on MI300X, where it was chosen."""

DOUBT = (
    "The interval assumes that all ratios between the machines are off by up to "
    f"{COUNTED_DOUBT - 1:.0%} either way, "
    f"{ESTIMATED_DOUBT - 1:.0%} where the work was estimated from recorded times, and "
    f"{HOST_DOUBT - 1:.0%} for hosts ({UNKNOWN_HOST_DOUBT - 1:.0%} where their CPUs are not known)."
)


PAUSE_NS = 5_000_000
"""Host work that launches nothing for longer is a thread that sleeps, or waits for data."""


def host_times(topology: str, was: str | None, host: float | None) -> tuple[float, float, str]:
    """How many times as long host work takes, how far off that may be, and both as text."""
    ratio, doubt, why = (1.0 if host is None else host), 1.0, ""
    if host is None and was is not None and was != topology:
        cpus = [load_topology(name).host_cpu for name in (topology, was)]
        speed, was_speed = (cpu_speed(cpu) for cpu in cpus)
        if speed is None or was_speed is None:
            doubt = UNKNOWN_HOST_DOUBT
            why = ", as the speed of the CPUs is not known for both"
        else:
            ratio, doubt = was_speed / speed, HOST_DOUBT
            why = " ({} compared with {}, by clock and work per clock)".format(*cpus)
    return ratio, doubt, f"{ratio:.3g} times as long{why}"


def rehost(
    job: JobGraph,
    selection: Selection,
    *,
    machine: PricingMachine,
    was: str | None = None,
    was_hosts: int | None = None,
    host: float | None = None,
    doubt: str = Doubt.NONE.value,
) -> JobGraph:
    """The job runs on the machine instead of *was*, by the ratio of two predictions.

    Without *was* known work is predicted again. Host work takes *host* times as long: by default
    the ratio of the CPUs' speeds. *doubt* takes one end of the uncertainty of all ratios.
    """
    job = _with_host_times(job, host_times(machine.topology, was, host), Doubt(doubt))
    if was is None:
        return pin_job(change_ops(job, Selection(), lambda op, _: device_work(op) or op), machine)
    source = PricingMachine(was, was_hosts, machine.stack)
    vendors = {one.cluster(job.rank_count).device.vendor for one in (source, machine)}
    stays_behind = _OF_LIBRARY if len(vendors) > 1 else 0.0
    # Their quotient is the mean ratio, each task weighted by its duration.
    before_ns = after_ns = 0.0

    def scale(op: Op, ranks: Ranks) -> Op:
        nonlocal before_ns, after_ns
        work, duration_ns = device_work(op), duration_of(op)
        if work is None:
            return op
        priced_ns = price_ns(work, ranks, source)
        ratio = price_ns(work, ranks, machine) / priced_ns if priced_ns else 1.0
        if isinstance(work, Gemm | Convolution | Attention) and priced_ns and duration_ns:
            ratio *= (duration_ns / priced_ns) ** -stays_behind
        before_ns += duration_ns
        after_ns += duration_ns * ratio
        return retime(op, duration_ns * ratio * _end_of(op, Doubt(doubt)))

    scaled = change_ops(job, selection, scale)
    mean = after_ns / before_ns if before_ns else 1.0

    def scale_rest(op: Op, _: Ranks) -> Op:
        if device_work(op) is not None:
            return op
        return retime(op, duration_of(op) * mean * _end_of(op, Doubt(doubt)))

    return change_ops(scaled, selection, scale_rest)


def _at_end(doubt: Doubt, width: float) -> float:
    return {Doubt.FASTEST: 1 / width, Doubt.NONE: 1.0, Doubt.SLOWEST: width}[doubt]


def _end_of(op: Op, doubt: Doubt) -> float:
    is_counted = isinstance(op, Fixed) and op.work is not None and not op.is_estimated
    return _at_end(doubt, COUNTED_DOUBT if is_counted else ESTIMATED_DOUBT)


def _with_host_times(job: JobGraph, times: tuple[float, float, str], doubt: Doubt) -> JobGraph:
    """*job* with host work that takes as many times as long as *times* says, at one end."""
    factor = times[0] * _at_end(doubt, times[1])
    # A pause may be work after all, so the fastest end assumes a faster host.
    factor_of_pauses = min(factor, 1.0) if doubt is Doubt.FASTEST else 1.0

    def scale_host(op: Op, _: Ranks) -> Op:
        return retime(op, duration_of(op) * (factor_of_pauses if _is_pause(op) else factor))

    has_hosts = any(lane_mask(program, LaneWord.HOST).any() for program in job.programs)
    if factor == 1.0 or not has_hosts:
        return job
    return change_ops(job, Selection(None, LaneWord.HOST), scale_host)


def _is_pause(op: Op) -> bool:
    work = work_of(op)
    is_between = isinstance(work, HostWork) and work.part is HostPart.BETWEEN_LAUNCHES
    return is_between and duration_of(op) > PAUSE_NS


def device_work(op: Op) -> Work | None:
    """What a task does on the device, where that is known."""
    work = work_of(op)
    return None if isinstance(work, HostWork | HostSpan) else work


def count_rehosted(job: JobGraph, selection: Selection, what: str, _: object) -> Recosted:
    """How much of the time of *selection* has known work; *what* names that time."""
    return count_recosted(
        job, selection.by_program(job), lambda op: device_work(op) is not None, what=what
    )


def clone(
    job: JobGraph,
    _: Selection,
    *,
    count: int,
    groups: LabelPattern | None = None,
    was_hosts: int | None = None,
    machine: PricingMachine | None = None,
) -> JobGraph:
    """The job has *count* ranks: every rank is cloned, with its batch.

    Groups like *groups* (by default those of all ranks) include the clones; all other groups are
    cloned. The present ranks are on *was_hosts*, or on as few hosts as they need.
    """
    if count < job.rank_count or count % job.rank_count:
        raise ScenarioError(
            f"count: must be a multiple of the {job.rank_count} ranks that the job has, got "
            f"{count}. Ranks are cloned."
        )
    copies = count // job.rank_count
    if not job.groups:
        raise ScenarioError(
            "the job has no collective of several ranks that more ranks could join. "
            "`data_parallel` makes many ranks of one."
        )
    grown = [_is_grown(job, group, groups) for group in job.groups]
    if not any(grown):
        names = ", ".join(repr(group.name) for group in job.groups[:8])
        raise ScenarioError(
            f"no group includes the new ranks. Groups are {names}: name the data-parallel ones "
            "with `groups`."
        )
    was = None if machine is None else replace(machine, hosts=was_hosts)

    def recost(op: Op, ranks: Ranks) -> Op:
        group = next((one for one in job.groups if one.ranks == ranks), None)
        if not ranks or group is None or not _is_grown(job, group, groups) or copies == 1:
            return op
        if not isinstance(op, Fixed) or not isinstance(op.work, Communication):
            return op
        if op.work.collective.byte_matrix is not None:
            raise ScenarioError(
                f"group {group.name!r}: an exchange with a byte matrix belongs to a model sharded "
                "over these ranks, and cannot include clones. Name other `groups`."
            )
        after = _with_clones(ranks, copies, job.rank_count)
        if machine is None or was is None:
            return retime(op, op.duration_ns * time_ratio(op.work, op.work, ranks, after))
        before_ns, after_ns = price_ns(op.work, ranks, was), price_ns(op.work, after, machine)
        return retime(op, op.duration_ns * (after_ns / before_ns if before_ns > 0 else 1.0))

    return _clone_ranks(change_ops(job, Selection(), recost), copies, grown)


def count_grown(
    job: JobGraph, _: Selection, what: str, steps: Sequence[dict[str, Any]]
) -> Recosted:
    """How much of the time of the groups that grow is of collectives with known bytes."""
    groups: LabelPattern | None = steps[0].get("groups")
    grown = [number for number, group in enumerate(job.groups) if _is_grown(job, group, groups)]
    chosen = []
    for rank in range(job.rank_count):
        program, group_of_slot = job.program_of(rank), np.append(job.rank_group[rank], NO_GROUP)
        # PLAIN is -1: the last one, which is none.
        chosen.append((program, np.isin(group_of_slot[program.slot], grown), 1))
    return count_recosted(job, chosen, lambda op: isinstance(op.work, Communication), what=what)


def _is_grown(job: JobGraph, group: Group, groups: LabelPattern | None) -> bool:
    if groups is not None:
        return groups.matches(group.name)
    return len(set(group.ranks)) == job.rank_count


def _with_clones(ranks: Ranks, copies: int, rank_count: int) -> Ranks:
    return tuple(rank + copy * rank_count for copy in range(copies) for rank in ranks)


def facts_of_more(facts: JobFacts, copies: int) -> JobFacts:
    """*facts* of a job with every rank *copies* times."""
    return replace(
        facts,
        peak_memory_bytes=facts.peak_memory_bytes * copies,
        samples=facts.samples * copies,
        tokens=facts.tokens * copies,
    )


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
        facts=facts_of_more(job.facts, copies),
        groups=tuple(groups),
        rank_program=np.tile(job.rank_program, copies),
        # NO_GROUP is -1: the last column, which holds it.
        rank_group=np.concatenate([number[copy][job.rank_group] for copy in range(copies)]),
    )
