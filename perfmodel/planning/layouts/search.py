"""Search: the fastest layout of a Transformer that fits, and proof that it is the fastest.

Memory first, then bounds, then replays in order of the bounds. Once the next bound exceeds the best
replayed time, no remaining layout can win. Replays are ordinary predictions. The budget counts
bounds and replays, so the same question has the same answer under any load; seconds are a brake.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from statistics import fmean
from typing import NamedTuple

from perfmodel.base.units import format_duration
from perfmodel.execution.executor import Executor, SerialExecutor
from perfmodel.planning.layouts.ranking import (
    LayoutRanking,
    RankedLayout,
    Search,
    count_layouts,
    find_reasons,
    order_layouts,
)
from perfmodel.planning.question import LayoutQuestion, to_scenario
from perfmodel.prediction.answer import Prediction
from perfmodel.prediction.layouts.bounds import (
    Bounds,
    Closeness,
    Layer,
    layer_of,
    measure_layer,
)
from perfmodel.prediction.layouts.candidates import Candidate, iter_candidates, list_space
from perfmodel.prediction.layouts.choosing import (
    MOST_BOUNDED,
    by_layer,
    list_fitting,
    list_lowest,
    list_stated,
    spec_of_layouts,
)
from perfmodel.prediction.phases import OnPhase, ignore_phase
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import PredictOptions, Setting, build_question, load_setting
from perfmodel.stacks.stack import SoftwareStack
from topologies import Cluster

REPLAYED_AT_ONCE, REFINED_AT_ONCE = 8, 16
MEASURED_AT_ONCE = 64
REPLAY_WORK = 4
"""A replay counts as so many bounds: it takes at least as long."""
BOUNDING_SHARE = 0.75
"""Share of the work, and of the time, that bounding may use."""
Machine = tuple[Cluster, SoftwareStack]


def search_layouts(
    question: LayoutQuestion, *, executor: Executor, on_phase: OnPhase = ignore_phase
) -> Search:
    """Answer *question*, for every number of hosts; replays fan out over *executor*."""
    return Search(_search(question, hosts, executor, on_phase) for hosts in question.hosts)


def _search(
    question: LayoutQuestion, hosts: int, executor: Executor, on_phase: OnPhase
) -> LayoutRanking:
    budget = Budget(question.work, question.seconds, shares=len(question.hosts))
    loaded = load_setting(to_scenario(question, hosts=hosts))
    spec, machine = spec_of_layouts(loaded.workload), (loaded.cluster, loaded.stack)
    cluster = loaded.cluster
    on_phase(f"{hosts} hosts: listing layouts", 0.0)
    everything = list(iter_candidates(spec, *machine, stated=question.stated))
    fitting = list_fitting(spec, cluster, question.stated, everything)
    as_stated = list_stated(fitting, loaded)
    pool = LayoutPool(machine, fitting, as_stated, executor, budget, on_phase)
    options = PredictOptions(samples=question.samples, seed=question.seed, is_explained=False)
    replayed, is_proven = replay_layouts(
        pool,
        lambda candidates: executor.map(judge, (*machine, options), candidates),
        question.top,
        budget,
        on_phase,
    )
    tally = count_layouts(
        len(everything), len(fitting), pool.left_ns, replayed, is_proven=is_proven
    )
    ranked = explain_layouts(machine, order_layouts(replayed)[: question.top])
    return LayoutRanking(
        question=question,
        hosts=hosts,
        rank_count=cluster.rank_count,
        tokens=spec.batch * spec.sequence_length,
        memory_bytes=cluster.device.memory_bytes,
        layouts=tuple(ranked),
        tally=replace(tally, is_braked=budget.is_braked, space=list_space(everything)),
        reasons=find_reasons(ranked),
    )


class Budget:
    """What a search may spend: *work* in bounds, and *seconds* as a brake."""

    def __init__(self, work: int, seconds: float | None, *, shares: int = 1) -> None:
        self._left, self._bounding = work, round(work * BOUNDING_SHARE)
        self._until_s = None if seconds is None else time.monotonic() + seconds / shares
        self._bounded_s = None if seconds is None else BOUNDING_SHARE * seconds / shares
        self.is_braked = False

    def take(self, wanted: int, *, is_bounding: bool = False) -> int:
        """How many of *wanted* more bounds or replays may be done; 0 ends the search."""
        each = 1 if is_bounding else REPLAY_WORK
        left = min(self._left, self._bounding) if is_bounding else self._left // each
        if self._until_s is not None:
            early_s = self._until_s - (self._bounded_s or 0.0) if is_bounding else self._until_s
            self.is_braked |= time.monotonic() > early_s
            left = 0 if self.is_braked else left
        taken = max(min(wanted, left), 0)
        self._left -= taken * each
        self._bounding -= taken * is_bounding
        return taken


class Bounded(NamedTuple):
    """The bound of a layout, how close it is, and the layout's number, which breaks ties."""

    bound_ns: int
    closeness: Closeness
    number: int


class LayoutPool:
    """Layouts that fit, lowest bound first; close bounds are computed when they are needed.

    Those *as_stated* are what `predict` chooses from: fields that the workload states are kept.
    """

    def __init__(
        self,
        machine: Machine,
        fitting: Sequence[Candidate],
        as_stated: Sequence[Candidate],
        executor: Executor,
        budget: Budget,
        on_phase: OnPhase,
    ) -> None:
        self._machine, self._executor, self._budget = machine, executor, budget
        self._bounds, self._on_phase = Bounds(*machine), on_phase
        kinds = by_layer(fitting)
        measured = self._measure(list(kinds))
        self._all = [one for layer in measured for one in kinds[layer]]
        self.size = len(fitting)
        # What the workload states and what `predict` replays come first: no answer is slower.
        budget.take(MOST_BOUNDED, is_bounding=True)
        first = {id(one) for one in list_lowest(as_stated, self._bounds)}
        self._is_spent = False
        self._growth: dict[Closeness, list[float]] = {step: [] for step in Closeness}
        self._queue = [
            Bounded(0, Closeness.CLOSE, number)
            if one.is_own or id(one) in first
            else Bounded(self._bounds.bound_ns(one, Closeness.ROUGH), Closeness.ROUGH, number)
            for number, one in enumerate(self._all)
        ]
        heapify(self._queue)

    @property
    def left_ns(self) -> list[int]:
        """The bounds of the layouts that were not taken."""
        return [one.bound_ns for one in self._queue]

    def lowest_ns(self) -> int | None:
        """The lowest bound of a layout that was not taken; None if there is none.

        It is a close one as long as the budget for bounds lasts.
        """
        while not self._is_spent and self._queue and self._queue[0].closeness < Closeness.CLOSE:
            self._bound_closer()
        return self._queue[0].bound_ns if self._queue else None

    def _bound_closer(self) -> None:
        """Bound the lowest ones one step closer, many at once: workers share the measuring."""
        lowest = [heappop(self._queue) for _ in range(min(REFINED_AT_ONCE, len(self._queue)))]
        layers = {
            one: layer_of(self._all[one.number], Closeness(one.closeness + 1))
            for one in lowest
            if one.closeness < Closeness.CLOSE
        }
        known = set(self._measure(list(dict.fromkeys(layers.values()))))
        for one in lowest:
            if one not in layers or layers[one] not in known:
                self._is_spent |= one in layers
                heappush(self._queue, one)
                continue
            closer = Closeness(one.closeness + 1)
            found_ns = max(one.bound_ns, self._bounds.bound_ns(self._all[one.number], closer))
            self._growth[closer].append(found_ns / max(one.bound_ns, 1))
            heappush(self._queue, Bounded(found_ns, closer, one.number))

    def take(self, count: int) -> list[tuple[int, Candidate]]:
        """The *count* layouts with the lowest bounds, or fewer.

        Once the budget for bounds is spent, a rough bound counts as the close one it would grow to.
        """
        taken: list[tuple[int, Candidate]] = []
        while len(taken) < count and self.lowest_ns() is not None:
            one = min(self._queue, key=self._guess_ns) if self._is_spent else self._queue[0]
            self._queue.remove(one)
            heapify(self._queue)
            taken.append((one.bound_ns, self._all[one.number]))
        return taken

    def _guess_ns(self, one: Bounded) -> tuple[float, int]:
        steps = [self._growth[step] for step in Closeness if step > one.closeness]
        return one.bound_ns * math.prod(fmean(found) for found in steps if found), one.number

    def _measure(self, layers: list[Layer]) -> list[Layer]:
        """Measure as many of *layers* as the budget allows, and return those."""
        done = [one for one in layers if self._bounds.has(one)]
        new = [one for one in layers if not self._bounds.has(one)]
        while new:
            self._on_phase(f"bounding layouts, kinds of layer left: {len(new)}", 0.1)
            count = self._budget.take(min(MEASURED_AT_ONCE, len(new)), is_bounding=True)
            # One kind is always measured, so that something is replayed.
            part = new[: count or int(not self._bounds.is_begun)]
            if not part:
                break
            self._bounds.take(part, self._executor.map(measure_layer, self._machine, part))
            done, new = done + part, new[len(part) :]
        return done


def judge(
    shared: tuple[Cluster, SoftwareStack, PredictOptions], candidate: Candidate
) -> Prediction:
    """Predict one layout; a module-level function, so that any worker can run it."""
    question = build_question(Setting(candidate.spec, *shared))
    return predict(question, executor=SerialExecutor())


def replay_layouts(
    pool: LayoutPool,
    judge_all: Callable[[Sequence[Candidate]], list[Prediction]],
    top: int,
    budget: Budget,
    on_phase: OnPhase,
) -> tuple[list[RankedLayout], bool]:
    """The replayed layouts, and whether no other layout can be faster than the best of them."""
    done: list[RankedLayout] = []
    while (lowest_ns := pool.lowest_ns()) is not None:
        best_ns = min((one.time_ns for one in done), default=None)
        is_proven = best_ns is not None and lowest_ns >= best_ns
        if is_proven and len(done) >= top:
            return done, True
        best = "none" if best_ns is None else format_duration(best_ns)
        on_phase(f"{pool.size} layouts fit: replayed {len(done)}, best so far {best}", 0.5)
        # The first alone: its time prunes others. At least one is always replayed.
        count = budget.take(REPLAYED_AT_ONCE if done else 1) or (0 if done else 1)
        if not count:
            return done, is_proven
        part = pool.take(count)
        found = judge_all([candidate for _, candidate in part])
        done += [
            RankedLayout(candidate, bound_ns, one)
            for (bound_ns, candidate), one in zip(part, found, strict=True)
        ]
    return done, True


def explain_layouts(machine: Machine, ranked: Sequence[RankedLayout]) -> list[RankedLayout]:
    """*ranked* with explanations of the first and of the next with another split of the ranks."""
    other = next((one for one in ranked if one.split != ranked[0].split), ranked[0])
    shared = (*machine, PredictOptions(samples=2))
    return [
        replace(one, explained=judge(shared, one.candidate)) if one in (ranked[0], other) else one
        for one in ranked
    ]
