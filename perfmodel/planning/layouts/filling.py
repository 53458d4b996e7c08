"""Filling: a layout for a scenario that states none, the best of the search's bounding stage.

The split over ranks, the micro-batch and the interleaving are chosen; sharding
and recomputation stay as the workload has them. No clock decides, so that equal
scenarios have equal answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.base.errors import PlanError
from perfmodel.planning.layouts.candidates import FIELDS
from perfmodel.planning.layouts.search import fastest_by_bound
from perfmodel.prediction.phases import OnPhase, ignore_phase
from perfmodel.prediction.scenario import JobScenario, Scenario
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads.catalog import load_workload
from perfmodel.workloads.transformer.spec import TransformerSpec
from topologies import build_cluster, load_topology

_KEPT = frozenset({"parallel.sharding", "training.recompute", "parallel.sequence_parallel"})
_SPLIT = ("parallel.tp", "parallel.pp", "parallel.dp", "parallel.micro_batch")


@dataclass(frozen=True, slots=True)
class Filled:
    """A scenario that states its layout, and what to say about where it came from."""

    scenario: Scenario | JobScenario
    sentences: tuple[str, ...] = ()


def fill_layout(scenario: Scenario | JobScenario, *, on_phase: OnPhase = ignore_phase) -> Filled:
    """*scenario* with a layout, if it is about a Transformer and leaves all of it open."""
    if isinstance(scenario, JobScenario):
        return Filled(scenario)
    topology = load_topology(scenario.topology, calibrations=scenario.calibration)
    spec = load_workload(scenario.workload, scenario.overrides)
    if not isinstance(spec, TransformerSpec):
        return Filled(scenario)
    stated = _stated(spec) | _KEPT
    if stated & set(_SPLIT):
        return Filled(scenario)
    on_phase("choosing a layout", 0.0)
    cluster = build_cluster(
        topology,
        hosts=scenario.hosts,
        ranks_per_host=scenario.ranks_per_host,
    )
    if cluster.rank_count == 1:
        return Filled(scenario)
    try:
        best = fastest_by_bound(
            spec, cluster, load_stack(scenario.stack or spec.stack), stated=stated
        )
    except PlanError:
        # Nothing fits, or nothing divides: the workload's own choice says what is wrong.
        return Filled(scenario)
    chosen = {key: value for key, value in best.overrides.items() if key not in stated}
    changes = tuple(f"{key}={value}" for key, value in chosen.items())
    sentence = (
        f"The layout was left open: {', '.join(changes)} has the lowest bound of those that fit. "
        "`perfmodel search` replays the best of them."
    )
    return Filled(replace(scenario, overrides=(*scenario.overrides, *changes)), (sentence,))


def _stated(spec: TransformerSpec) -> frozenset[str]:
    """The fields of a layout that the file or the person gave."""
    given = {
        *(f"parallel.{name}" for name in spec.parallel.model_fields_set),
        *(f"training.{name}" for name in spec.training.model_fields_set),
    }
    known = {*FIELDS.values(), *_SPLIT}
    return frozenset(field for field in given & known if _value(spec, field) is not None)


def _value(spec: TransformerSpec, field: str) -> object:
    section, _, name = field.partition(".")
    return getattr(getattr(spec, section), name)
