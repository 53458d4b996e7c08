"""Choosing: the layout of a Transformer whose question leaves it open.

Memory first, then lower bounds, then a few replays of those with the lowest bounds. Work counts,
not seconds, so equal questions get equal answers on a busy machine. `perfmodel search` goes
through the same candidates and bounds, and on until the best is proven.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter

from perfmodel.base.errors import PlanError
from perfmodel.base.units import format_size
from perfmodel.execution.executor import SerialExecutor
from perfmodel.prediction.layouts.bounds import Bounds, Closeness, Layer, layer_of
from perfmodel.prediction.layouts.candidates import Candidate, iter_candidates, searched_fields
from perfmodel.prediction.phases import OnPhase, ignore_phase
from perfmodel.prediction.question import PredictOptions, Setting, build_question
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.workloads.families import family_of
from perfmodel.workloads.fields import Workload
from perfmodel.workloads.transformer.layout_choice import USABLE_SHARE
from perfmodel.workloads.transformer.spec import TransformerSpec
from topologies import Cluster

MOST_LAYERS = 48
"""Kinds of layer that are measured for a layout that nobody stated."""
MOST_ROUTED, MOST_BOUNDED, MOST_REPLAYED = 24, 12, 4
"""Layouts that are bounded with their routing and closely for it, and that are replayed."""
_SPLIT = ("parallel.tp", "parallel.pp", "parallel.dp", "parallel.micro_batch")
_TIMES_ALONE = PredictOptions(samples=0, is_explained=False)


def complete_layout(setting: Setting, *, on_phase: OnPhase = ignore_phase) -> Setting:
    """*setting* with a layout, if its workload leaves the split of the ranks open.

    Fields of the layout that the file or the user states keep their values.
    """
    if not is_open(setting):
        return setting
    spec = spec_of_layouts(setting.workload)
    stated = stated_fields(setting)
    on_phase("choosing a layout", 0.0)
    try:
        best = find_fast(spec, setting.cluster, setting.stack, stated=stated)
    except PlanError:
        # Nothing fits or divides: the workload's own choice explains the error.
        return setting
    chosen = {key: value for key, value in best.overrides.items() if key not in stated}
    changes = tuple(f"{key}={value}" for key, value in chosen.items())
    sentence = (
        f"You gave no layout: {', '.join(changes)} was the fastest of {MOST_REPLAYED} promising "
        "ones. `perfmodel search` compares them all."
    )
    scenario = setting.scenario
    if scenario is not None:
        scenario = replace(scenario, overrides=(*scenario.overrides, *changes))
    return replace(
        setting,
        workload=best.spec,
        scenario=scenario,
        chosen=(*setting.chosen, sentence),
        defaults_taken=tuple(one for one in setting.defaults_taken if one.setting not in chosen),
    )


def is_open(setting: Setting) -> bool:
    """Whether the split of several ranks is left open, in a family that has layouts."""
    if not family_of(setting.workload).has_layouts or setting.cluster.rank_count == 1:
        return False
    return not stated_fields(setting) & set(_SPLIT)


def spec_of_layouts(workload: Workload) -> TransformerSpec:
    """*workload* as layouts are chosen for it; an error where its family has none."""
    family = family_of(workload)
    if not family.has_layouts:
        plans = ", whose plans are searched by `perfmodel rank --search N`"
        raise PlanError(
            f"{workload.name}: is {family.title}{plans if family.has_tables else ''}. "
            "It has no parallel layouts; name a Transformer here."
        )
    assert isinstance(workload, TransformerSpec)
    return workload


def find_fast(
    spec: TransformerSpec, cluster: Cluster, stack: SoftwareStack, *, stated: frozenset[str]
) -> Candidate:
    """The fastest of the layouts with the lowest bounds among those that fit."""
    candidates = iter_candidates(spec, cluster, stack, stated=stated)
    everything = [one for one in candidates if not one.is_own]
    fitting = list_fitting(spec, cluster, stated, everything)
    lowest = list_lowest(fitting, Bounds(cluster, stack))
    return min(lowest, key=lambda one: replay_ns(one, cluster))


def list_lowest(fitting: Sequence[Candidate], bounds: Bounds) -> list[Candidate]:
    """The layouts to replay for a question that states none: those with the lowest bounds."""
    kinds = list(by_layer([one for one in fitting if not one.is_own]).values())[:MOST_LAYERS]
    near = [one for alike in kinds for one in alike]
    for closeness, most in zip(Closeness, (MOST_ROUTED, MOST_BOUNDED, MOST_REPLAYED), strict=True):
        near = sorted(near, key=partial(bounds.bound_ns, closeness=closeness))[:most]
    return near


def replay_ns(candidate: Candidate, cluster: Cluster) -> int:
    """The iteration time of *candidate*."""
    # The path of a prediction builds its question here, where the layout is known.
    from perfmodel.prediction.predict import predict

    question = build_question(Setting(candidate.spec, cluster, candidate.stack, _TIMES_ALONE))
    return predict(question, executor=SerialExecutor()).iteration_ns


def stated_fields(setting: Setting) -> frozenset[str]:
    """The layout fields that the file or the user set; defaults of a framework may be changed."""
    spec = spec_of_layouts(setting.workload)
    given = {
        *(f"parallel.{name}" for name in spec.parallel.model_fields_set),
        *(f"training.{name}" for name in spec.training.model_fields_set),
    }
    known = {*searched_fields().values(), *_SPLIT}
    stated = {field for field in given & known if attrgetter(field)(spec) is not None}
    return frozenset(stated - {one.setting for one in setting.defaults_taken})


def list_stated(candidates: Iterable[Candidate], setting: Setting) -> list[Candidate]:
    """Those of *candidates* that keep what *setting* states of a layout."""
    spec, stated = setting.workload, stated_fields(setting)
    return [
        one
        for one in candidates
        if all(attrgetter(field)(one.spec) == attrgetter(field)(spec) for field in stated)
    ]


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


def by_layer(fitting: Sequence[Candidate]) -> dict[Layer, list[Candidate]]:
    """*fitting* by the layer of their rough bounds, the own and most promising first."""
    kinds: dict[Layer, list[Candidate]] = {}
    # Of equals the larger micro-batch: it launches fewer kernels.
    for one in sorted(fitting, key=lambda one: (not one.is_own, one.promise, -one.micro_batch)):
        kinds.setdefault(layer_of(one, Closeness.ROUGH), []).append(one)
    return kinds
