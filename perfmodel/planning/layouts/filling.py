"""Filling: a layout for a scenario that states none, the best of the search's bounding stage.

The split over ranks, the micro-batch and the interleaving are chosen; sharding
and recomputation stay as the workload has them. No clock decides, so that equal
scenarios have equal answers.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.base.errors import PlanError
from perfmodel.planning.layouts.candidates import FIELDS
from perfmodel.planning.layouts.search import fastest_by_bound
from perfmodel.prediction.phases import OnPhase, ignore_phase
from perfmodel.prediction.question import Setting
from perfmodel.workloads.transformer.spec import TransformerSpec

_KEPT = frozenset({"parallel.sharding", "training.recompute", "parallel.sequence_parallel"})
_SPLIT = ("parallel.tp", "parallel.pp", "parallel.dp", "parallel.micro_batch")


def fill_layout(setting: Setting, *, on_phase: OnPhase = ignore_phase) -> Setting:
    """*setting* with a layout, if its workload is a Transformer that leaves all of it open."""
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
        # Nothing fits, or nothing divides: the workload's own choice says what is wrong.
        return setting
    chosen = {key: value for key, value in best.overrides.items() if key not in stated}
    changes = tuple(f"{key}={value}" for key, value in chosen.items())
    sentence = (
        f"The layout was left open: {', '.join(changes)} has the lowest bound of those that fit. "
        "`perfmodel search` replays the best of them."
    )
    # Sharding and recomputation are kept, so all changes are of one section.
    parallel = {key.removeprefix("parallel."): value for key, value in chosen.items()}
    filled = spec.model_copy(update={"parallel": spec.parallel.model_copy(update=parallel)})
    scenario = setting.scenario
    if scenario is not None:
        scenario = replace(scenario, overrides=(*scenario.overrides, *changes))
    return replace(setting, workload=filled, scenario=scenario, chosen=(sentence,))


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
