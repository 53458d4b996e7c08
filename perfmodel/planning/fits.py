"""Fits: whether a layout fits in memory, and which layouts do, without replaying anything.

For a layout that a question states, the peak of every class of ranks, by the memory model that
predictions use. For a Transformer whose layout is open, the layouts of the chooser's space on few
hosts first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from perfmodel.base.cautions import NO_CAUTIONS, Cautions, join_cautions
from perfmodel.base.errors import InputError
from perfmodel.graph.job import RankMemory, fit_probability
from perfmodel.prediction.gate import check_machine, check_workload
from perfmodel.prediction.layouts.candidates import Candidate, iter_candidates
from perfmodel.prediction.layouts.choosing import is_open, spec_of_layouts, stated_fields
from perfmodel.prediction.question import Setting, build_question, load_setting
from perfmodel.prediction.scenario import Scenario
from perfmodel.workloads.families import family_of

_CHANGES = (
    ("training.recompute=attention",),
    ("training.recompute=full",),
    ("parallel.sharding=zero1",),
    ("parallel.micro_batch=1",),
    ("parallel.sharding=zero3",),
    ("training.recompute=full", "parallel.micro_batch=1", "parallel.sharding=zero1"),
    ("training.recompute=full", "parallel.micro_batch=1", "parallel.sharding=zero3"),
)
"""What is tried to make a layout fit, in this order."""


@dataclass(frozen=True, slots=True)
class RankPeak:
    """Neighbouring *ranks* that need the same memory, such as those of a pipeline stage."""

    ranks: range
    memory: RankMemory


@dataclass(frozen=True, slots=True)
class FittingLayout:
    """A layout of *gpus* GPUs as the fields to set, with the peak of its fullest rank."""

    gpus: int
    overrides: tuple[str, ...]
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """Whether *scenario* fits: *peaks* of its ranks, or *layouts* that fit where it states none.

    *remedy* are the fewest changes tried that make a stated layout fit.
    """

    scenario: Scenario
    capacity_bytes: int
    peaks: tuple[RankPeak, ...] = ()
    layouts: tuple[FittingLayout, ...] = ()
    tried: int = 0
    remedy: tuple[str, ...] = ()
    cautions: Cautions = NO_CAUTIONS

    @property
    def fullest(self) -> RankPeak | None:
        """The ranks that need most; None where no layout is stated."""
        return max(self.peaks, key=lambda one: one.memory.total_bytes, default=None)

    @property
    def peak_bytes(self) -> int:
        """What the fullest ranks need, or those of the first layout that fits."""
        if self.fullest is not None:
            return self.fullest.memory.total_bytes
        return self.layouts[0].peak_bytes if self.layouts else 0

    @property
    def fits(self) -> bool:
        """Whether every rank has the memory it needs, in some layout where none is stated."""
        return bool(self.peak_bytes) and self.peak_bytes <= self.capacity_bytes

    @property
    def probability(self) -> float:
        """How likely that is."""
        return fit_probability(self.peak_bytes, self.capacity_bytes) if self.peak_bytes else 0.0


def find_fits(scenario: Scenario) -> MemoryAnswer:
    """Whether *scenario* fits in memory, and otherwise what does."""
    setting = load_setting(scenario)
    capacity_bytes = setting.cluster.device.memory_bytes
    stated = (check_machine(setting.cluster.topology), check_workload(setting.workload))
    answer = MemoryAnswer(scenario, capacity_bytes, cautions=join_cautions(stated))
    if is_open(setting):
        layouts, tried = _list_layouts(scenario)
        return replace(answer, layouts=layouts, tried=tried)
    answer = replace(answer, peaks=_peaks(build_question(setting).memory_of_rank))
    if answer.fits or not family_of(setting.workload).has_layouts:
        return answer
    return replace(answer, remedy=_remedy(scenario, capacity_bytes))


def _peaks(memory_of_rank: Sequence[RankMemory]) -> tuple[RankPeak, ...]:
    found, first = [], 0
    for memory, members in groupby(memory_of_rank):
        count = len(list(members))
        found.append(RankPeak(range(first, first + count), memory))
        first += count
    return tuple(found)


def _remedy(scenario: Scenario, capacity_bytes: int) -> tuple[str, ...]:
    for changes in _CHANGES:
        tried = replace(scenario, overrides=(*scenario.overrides, *changes))
        try:
            peaks = _peaks(build_question(load_setting(tried)).memory_of_rank)
        except InputError:
            continue
        if max(one.memory.total_bytes for one in peaks) <= capacity_bytes:
            return changes
    return ()


def _list_layouts(scenario: Scenario) -> tuple[tuple[FittingLayout, ...], int]:
    """Layouts that fit, on as few hosts as any does up to those asked for, and how many were tried.

    Of equal numbers of GPUs those that need least come first.
    """
    tried, most = 0, scenario.hosts or 1
    for hosts in sorted({*(1 << power for power in range(most.bit_length())), most}):
        setting = load_setting(replace(scenario, hosts=hosts))
        found = []
        for one in _candidates(setting):
            tried += 1
            if one.peak_bytes <= setting.cluster.device.memory_bytes:
                words = tuple(f"{key}={value}" for key, value in one.overrides.items())
                found.append(FittingLayout(setting.cluster.rank_count, words, one.peak_bytes))
        if found:
            found.sort(key=lambda one: one.peak_bytes)
            return tuple(found), tried
    return (), tried


def _candidates(setting: Setting) -> Iterator[Candidate]:
    spec = spec_of_layouts(setting.workload)
    stated = stated_fields(setting)
    found = iter_candidates(spec, setting.cluster, setting.stack, stated=stated)
    return (one for one in found if not one.is_own)
