"""Search: the fastest layout of a Transformer that fits, and proof that it is the fastest.

Memory first, then bounds, then replays in order of the bounds. Once the next bound exceeds the best
replayed time, no remaining layout can win. Replays are ordinary predictions. A scenario that states
no layout gets the one with the lowest bound (`fill_layout`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter

from perfmodel.base.errors import PlanError
from perfmodel.base.units import format_duration, format_size
from perfmodel.execution.executor import Executor, SerialExecutor
from perfmodel.planning.layouts.bounds import Bounds, layer_of, measure_layer
from perfmodel.planning.layouts.candidates import FIELDS, Candidate, iter_candidates, iter_variants
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
from perfmodel.prediction.phases import OnPhase, ignore_phase
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import PredictOptions, Setting, build_question, load_setting
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.transformer.layout_choice import USABLE_SHARE
from perfmodel.workloads.transformer.spec import TransformerSpec
from topologies import Cluster

REPLAYED_AT_ONCE = 8
MEASURED_AT_ONCE = 64
BOUNDING_SHARE = 0.5
"""Share of the time that bounding may use."""
EXPLAINED = 4
"""Replays that explaining the winner takes as long as."""
MOST_LAYERS = 48
"""Kinds of layer that are measured for a layout without a replay."""
_KEPT = frozenset(
    {
        *("parallel.sharding", "parallel.sequence_parallel", "parallel.schedule"),
        *("parallel.dispatcher", "parallel.expert_overlap", "training.recompute"),
    }
)
_SPLIT = ("parallel.tp", "parallel.pp", "parallel.dp", "parallel.micro_batch")
Machine = tuple[Cluster, SoftwareStack]


def search_layouts(
    question: LayoutQuestion, *, executor: Executor, on_phase: OnPhase = ignore_phase
) -> Search:
    """Answer *question*, for every number of hosts; replays fan out over *executor*."""
    return Search(_search(question, hosts, executor, on_phase) for hosts in question.hosts)


def fastest_by_bound(
    spec: TransformerSpec, cluster: Cluster, stack: SoftwareStack, *, stated: frozenset[str]
) -> Candidate:
    """The layout with the lowest bound among those that fit; nothing is replayed."""
    everything = list(iter_candidates(spec, cluster, stack, stated=stated))
    fitting = list_fitting(spec, cluster, stated, everything)
    bounds = Bounds(cluster, stack)
    # Limited by number, not by time: equal questions get equal answers.
    kinds = list(_by_layer(fitting).values())[:MOST_LAYERS]
    return min((one for alike in kinds for one in alike), key=bounds.bound_ns)


def fill_layout(setting: Setting, *, on_phase: OnPhase = ignore_phase) -> Setting:
    """*setting* with a layout, if its workload is a Transformer that leaves all of it open.

    Ranks, micro-batch and interleaving are chosen; all else stays as it is.
    """
    spec = setting.workload
    if not isinstance(spec, TransformerSpec):
        return setting
    stated = _stated(spec) | _KEPT
    if stated & set(_SPLIT):
        return setting
    on_phase("choosing a layout", 0.0)
    if setting.cluster.rank_count == 1:
        return setting
    try:
        best = fastest_by_bound(spec, setting.cluster, setting.stack, stated=stated)
    except PlanError:
        # Nothing fits or divides: the workload's own choice explains the error.
        return setting
    chosen = {key: value for key, value in best.overrides.items() if key not in stated}
    changes = tuple(f"{key}={value}" for key, value in chosen.items())
    sentence = (
        f"No layout is stated: {', '.join(changes)} has the lowest bound of those that fit. "
        "`perfmodel search` replays the best of them."
    )
    # Recomputation is kept, so all changes are of one section.
    parallel = {key.removeprefix("parallel."): value for key, value in chosen.items()}
    filled = spec.model_copy(update={"parallel": spec.parallel.model_copy(update=parallel)})
    scenario = setting.scenario
    if scenario is not None:
        scenario = replace(scenario, overrides=(*scenario.overrides, *changes))
    sentences = (*setting.chosen, sentence)
    return replace(setting, workload=filled, scenario=scenario, chosen=sentences)


def _stated(spec: TransformerSpec) -> frozenset[str]:
    """The layout fields that the file or the user set."""
    given = {
        *(f"parallel.{name}" for name in spec.parallel.model_fields_set),
        *(f"training.{name}" for name in spec.training.model_fields_set),
    }
    known = {*FIELDS.values(), *_SPLIT}
    return frozenset(field for field in given & known if attrgetter(field)(spec) is not None)


def _search(
    question: LayoutQuestion, hosts: int, executor: Executor, on_phase: OnPhase
) -> LayoutRanking:
    began_s, seconds = time.monotonic(), question.seconds / len(question.hosts)
    spec, machine = _load(question, hosts)
    cluster = machine[0]
    on_phase(f"{hosts} hosts: listing layouts", 0.0)
    everything = list(iter_candidates(spec, *machine, stated=question.stated))
    fitting = list_fitting(spec, cluster, question.stated, everything)
    until_s = began_s + BOUNDING_SHARE * seconds
    queue = own_first(spec, bound_layouts(machine, fitting, executor, until_s, on_phase))
    options = PredictOptions(samples=question.samples, seed=question.seed, is_explained=False)
    replayed, is_proven = replay_layouts(
        queue,
        lambda candidates: executor.map(judge, (*machine, options), candidates),
        question.top,
        began_s + seconds,
        on_phase,
    )
    tally = count_layouts(len(everything), len(fitting), queue, replayed, is_proven=is_proven)
    on_phase(f"{hosts} hosts: ways to send tokens to experts, schedules of pipelines", 0.96)
    for _ in range(2):
        # Bounds say nothing of these, so layouts are compared under the stack's defaults first.
        # What improves the best is then tried with the others.
        best = min(replayed, key=lambda one: one.time_ns).candidate
        others = [
            one
            for one in iter_variants(best, cluster, stated=question.stated)
            if one.chosen.fits and not any(one.is_like(old.candidate) for old in replayed)
        ]
        found = executor.map(judge, (*machine, options), others)
        replayed += [
            RankedLayout(candidate, round(one.iteration_ns), one)
            for candidate, one in zip(others, found, strict=True)
        ]
    ranked = explain_layouts(machine, order_layouts(replayed)[: question.top])
    return LayoutRanking(
        question=question,
        hosts=hosts,
        rank_count=cluster.rank_count,
        tokens=spec.batch * spec.sequence_length,
        memory_bytes=cluster.device.memory_bytes,
        layouts=tuple(ranked),
        tally=tally,
        reasons=find_reasons(ranked),
    )


def _load(question: LayoutQuestion, hosts: int) -> tuple[TransformerSpec, Machine]:
    loaded = load_setting(to_scenario(question, hosts=hosts))
    spec = loaded.workload
    if not isinstance(spec, TransformerSpec):
        raise PlanError(
            f"search: {spec.name} is a recommendation model, whose plans are searched by "
            "`perfmodel rank --search SECONDS`. Name a Transformer here."
        )
    return spec, (loaded.cluster, loaded.stack)


def list_fitting(
    spec: TransformerSpec, cluster: Cluster, stated: frozenset[str], everything: Sequence[Candidate]
) -> list[Candidate]:
    """Those of *everything* that leave a part of the memory free; an error where none does.

    The workload's own layout may fill the memory, as it may in a prediction.
    """
    if not everything:
        fixed = f" with {', '.join(sorted(stated))} fixed" if stated else ""
        raise PlanError(
            f"search: {spec.name} has no layout on {cluster.rank_count} ranks{fixed}: batch "
            f"{spec.batch}, {spec.model.layers} layers and {spec.model.heads} heads do not divide "
            f"into any. {'Fix less' if stated else 'Change batch'}, or change hosts."
        )
    memory_bytes = cluster.device.memory_bytes
    usable_bytes = memory_bytes * USABLE_SHARE
    fitting = [
        one
        for one in everything
        if one.peak_bytes <= (memory_bytes if one.is_own else usable_bytes)
    ]
    if not fitting:
        nearest = min(everything, key=lambda one: one.peak_bytes)
        words = ", ".join(f"{key}={value}" for key, value in nearest.overrides.items())
        raise PlanError(
            f"search: none of {len(everything)} layouts of {spec.name} fits in "
            f"{format_size(int(usable_bytes))} ({USABLE_SHARE:.0%} of a GPU). The nearest needs "
            f"{format_size(nearest.peak_bytes)}: {words}. Use more hosts, or shorter sequences."
        )
    return fitting


def _by_layer(fitting: Sequence[Candidate]) -> dict[TransformerSpec, list[Candidate]]:
    """*fitting* by the layer that determines their bounds, the own and most promising first."""
    kinds: dict[TransformerSpec, list[Candidate]] = {}
    # Of equals the larger micro-batch: it launches fewer kernels.
    for one in sorted(fitting, key=lambda one: (not one.is_own, one.promise, -one.micro_batch)):
        kinds.setdefault(layer_of(one), []).append(one)
    return kinds


def bound_layouts(
    machine: Machine,
    fitting: Sequence[Candidate],
    executor: Executor,
    until_s: float,
    on_phase: OnPhase,
) -> list[tuple[int, Candidate]]:
    """Layouts with their bounds, lowest first; without those not bounded in time."""
    bounds, kinds = Bounds(*machine), _by_layer(fitting)
    layers = list(kinds)
    first, at_once = 0, 2
    while first < len(layers):
        on_phase(
            f"{len(fitting)} layouts fit: bounded {first} of {len(layers)} kinds of layer",
            0.05 + 0.15 * first / len(layers),
        )
        part, began_s = layers[first : first + at_once], time.monotonic()
        bounds.take(part, executor.map(measure_layer, machine, part))
        first += len(part)
        took_s = time.monotonic() - began_s
        if time.monotonic() + took_s > until_s:
            break
        at_once = min(2 * at_once, MEASURED_AT_ONCE) if took_s < 1 else at_once
    bounded = [one for layer in layers[:first] for one in kinds[layer]]
    order = sorted((bounds.bound_ns(one), number) for number, one in enumerate(bounded))
    return [(bound_ns, bounded[number]) for bound_ns, number in order]


def own_first(
    spec: TransformerSpec, queue: Sequence[tuple[int, Candidate]]
) -> list[tuple[int, Candidate]]:
    """*queue* with the layout first that `predict` answers with, so that none found is slower."""
    is_open = not _stated(spec) & set(_SPLIT)
    first = [one for one in queue if (one[1].keeps(spec) if is_open else one[1].is_own)][:1]
    return first + [one for one in queue if one not in first]


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
    deadline_s: float,
    on_phase: OnPhase,
) -> tuple[list[RankedLayout], bool]:
    """The replayed layouts, and whether no other layout can be faster than the best of them."""
    done: list[RankedLayout] = []
    at_once, best, one_s = 1, "none", 0.0
    while len(done) < len(queue):
        began_s = time.monotonic()
        if done:
            best_ns = min(one.time_ns for one in done)
            is_proven = queue[len(done)][0] >= best_ns
            # The next replays take about as long as the last ones and must also end in time.
            in_time = int((deadline_s - began_s) / one_s) - EXPLAINED
            if in_time < 1 or (is_proven and len(done) >= top):
                return done, is_proven
            at_once, best = min(REPLAYED_AT_ONCE, in_time), format_duration(best_ns)
        share = 0.2 + 0.75 * len(done) / len(queue)
        on_phase(f"{len(queue)} layouts fit: replayed {len(done)}, best so far {best}", share)
        part = queue[len(done) : len(done) + at_once]
        found = judge_all([candidate for _, candidate in part])
        done += [
            RankedLayout(candidate, bound_ns, one)
            for (bound_ns, candidate), one in zip(part, found, strict=True)
        ]
        one_s = max((time.monotonic() - began_s) / len(part), 1e-6)
    return done, True


def explain_layouts(machine: Machine, ranked: Sequence[RankedLayout]) -> list[RankedLayout]:
    """*ranked* with explanations of the first and of the next with another split of the ranks."""
    other = next((one for one in ranked if one.split != ranked[0].split), ranked[0])
    shared = (*machine, PredictOptions(samples=2))
    return [
        replace(one, explained=judge(shared, one.candidate)) if one in (ranked[0], other) else one
        for one in ranked
    ]
