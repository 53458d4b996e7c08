"""Search: the fastest layout of a Transformer that fits, and proof that it is the fastest.

Memory first, then bounds, then replays in order of the bounds. Once the next bound exceeds the best
replayed time, no remaining layout can win. Replays are ordinary predictions. The budget counts
bounds and replays, so the same question has the same answer under any load; seconds are a brake.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from perfmodel.base.errors import PlanError
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
from perfmodel.prediction.layouts.bounds import Bounds, measure_layer
from perfmodel.prediction.layouts.candidates import Candidate, iter_candidates
from perfmodel.prediction.layouts.choosing import by_layer, list_fitting
from perfmodel.prediction.phases import OnPhase, ignore_phase
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import PredictOptions, Setting, build_question, load_setting
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.transformer.spec import TransformerSpec
from topologies import Cluster

REPLAYED_AT_ONCE = 8
MEASURED_AT_ONCE = 64
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
    spec, machine = _load(question, hosts)
    cluster = machine[0]
    on_phase(f"{hosts} hosts: listing layouts", 0.0)
    everything = list(iter_candidates(spec, *machine, stated=question.stated))
    fitting = list_fitting(spec, cluster, question.stated, everything)
    queue = bound_layouts(machine, fitting, executor, budget, on_phase)
    options = PredictOptions(samples=question.samples, seed=question.seed, is_explained=False)
    replayed, is_proven = replay_layouts(
        queue,
        lambda candidates: executor.map(judge, (*machine, options), candidates),
        question.top,
        budget,
        on_phase,
    )
    tally = count_layouts(len(everything), len(fitting), queue, replayed, is_proven=is_proven)
    ranked = explain_layouts(machine, order_layouts(replayed)[: question.top])
    return LayoutRanking(
        question=question,
        hosts=hosts,
        rank_count=cluster.rank_count,
        tokens=spec.batch * spec.sequence_length,
        memory_bytes=cluster.device.memory_bytes,
        layouts=tuple(ranked),
        tally=replace(tally, is_braked=budget.is_braked),
        reasons=find_reasons(ranked),
    )


class Budget:
    """What a search may spend: *work* in bounds and replays, and *seconds* as a brake."""

    def __init__(self, work: int, seconds: float | None, *, shares: int = 1) -> None:
        self._left, self._bounding = work, round(work * BOUNDING_SHARE)
        self._until_s = None if seconds is None else time.monotonic() + seconds / shares
        self._bounded_s = None if seconds is None else BOUNDING_SHARE * seconds / shares
        self.is_braked = False

    def take(self, wanted: int, *, is_bounding: bool = False) -> int:
        """How many of *wanted* more bounds or replays may be done; 0 ends the search."""
        left = min(self._left, self._bounding) if is_bounding else self._left
        if self._until_s is not None:
            early_s = self._until_s - (self._bounded_s or 0.0) if is_bounding else self._until_s
            self.is_braked |= time.monotonic() > early_s
            left = 0 if self.is_braked else left
        taken = max(min(wanted, left), 0)
        self._left -= taken
        self._bounding -= taken * is_bounding
        return taken


def _load(question: LayoutQuestion, hosts: int) -> tuple[TransformerSpec, Machine]:
    loaded = load_setting(to_scenario(question, hosts=hosts))
    spec = loaded.workload
    if not isinstance(spec, TransformerSpec):
        raise PlanError(
            f"search: {spec.name} is a recommendation model, whose plans are searched by "
            "`perfmodel rank --search SECONDS`. Name a Transformer here."
        )
    return spec, (loaded.cluster, loaded.stack)


def bound_layouts(
    machine: Machine,
    fitting: Sequence[Candidate],
    executor: Executor,
    budget: Budget,
    on_phase: OnPhase,
) -> list[tuple[int, Candidate]]:
    """Layouts with their bounds, lowest first; without those beyond the budget."""
    bounds, kinds = Bounds(*machine), by_layer(fitting)
    layers, first = list(kinds), 0
    while first < len(layers):
        on_phase(
            f"{len(fitting)} layouts fit: bounded {first} of {len(layers)} kinds of layer",
            0.05 + 0.15 * first / len(layers),
        )
        wanted = min(MEASURED_AT_ONCE, len(layers) - first)
        part = layers[first : first + budget.take(wanted, is_bounding=True)]
        if not part:
            break
        bounds.take(part, executor.map(measure_layer, machine, part))
        first += len(part)
    bounded = [one for layer in layers[:first] for one in kinds[layer]]
    order = sorted((bounds.bound_ns(one), number) for number, one in enumerate(bounded))
    return [(bound_ns, bounded[number]) for bound_ns, number in order]


def judge(
    shared: tuple[Cluster, SoftwareStack, PredictOptions], candidate: Candidate
) -> Prediction:
    """Predict one layout; a module-level function, so that any worker can run it."""
    question = build_question(Setting(candidate.spec, *shared))
    return predict(question, executor=SerialExecutor())


def replay_layouts(
    queue: Sequence[tuple[int, Candidate]],
    judge_all: Callable[[Sequence[Candidate]], list[Prediction]],
    top: int,
    budget: Budget,
    on_phase: OnPhase,
) -> tuple[list[RankedLayout], bool]:
    """The replayed layouts, and whether no other layout can be faster than the best of them."""
    done: list[RankedLayout] = []
    best = "none"
    while len(done) < len(queue):
        if done:
            best_ns = min(one.time_ns for one in done)
            is_proven = queue[len(done)][0] >= best_ns
            if is_proven and len(done) >= top:
                return done, True
            best = format_duration(best_ns)
        share = 0.2 + 0.75 * len(done) / len(queue)
        on_phase(f"{len(queue)} layouts fit: replayed {len(done)}, best so far {best}", share)
        # The first alone: its time prunes others. At least one is always replayed.
        wanted = REPLAYED_AT_ONCE if done else 1
        count = budget.take(min(wanted, len(queue) - len(done))) or (0 if done else 1)
        if not count:
            return done, is_proven
        part = queue[len(done) : len(done) + count]
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
