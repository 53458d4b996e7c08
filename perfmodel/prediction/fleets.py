"""Fleets: layers split over pipeline stages whose GPUs differ, by what each stage multiplies.

A stage is as fast as its slowest rank. Where a workload says nothing of its stages, each takes
layers in proportion to that speed, so that none is waited for in every micro-batch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.base.dtypes import DType
from perfmodel.costs.models import price_ops
from perfmodel.graph.ops import Gemm
from perfmodel.prediction.layouts.choosing import spec_of_layouts
from perfmodel.prediction.question import Setting
from perfmodel.workloads.jobs import fill

_PRODUCT = Gemm(8192, 8192, 8192, DType.BF16)
"""What GPUs are compared by: most of a layer is products about so large."""


def split_by_speed(setting: Setting) -> Setting:
    """*setting* with layers by the speed of the stages of a fleet, where none are stated."""
    spec, cluster = spec_of_layouts(setting.workload), setting.cluster
    parallel = spec.parallel
    stated = {"stages", "stage_layers"} & parallel.model_fields_set
    stages = parallel.pp or 1
    if not cluster.topology.fleet or stages == 1 or parallel.interleaving > 1 or stated:
        return setting
    numbers, devices = cluster.devices_of(np.arange(cluster.rank_count, dtype=np.int64))
    times = [price_ops([_PRODUCT], device=one, stack=setting.stack) for one in devices]
    rates = np.array([1.0 / one.duration_ns[0] for one in times])[numbers]
    lengths = share_out(spec.model.layers, rates.reshape(stages, -1).min(axis=1).tolist())
    if len(set(lengths)) == 1:
        return setting
    words = "+".join(map(str, lengths))
    said = (
        f"Stages take {words} layers, by the speed of their slowest GPUs; state "
        "parallel.stage_layers, or parallel.stages=equal."
    )
    split = fill(parallel, stage_layers=lengths)
    workload = setting.workload.model_copy(update={"parallel": split})
    return replace(setting, workload=workload, assumptions=(*setting.assumptions, said))


def share_out(layers: int, speeds: list[float]) -> tuple[int, ...]:
    """*layers* in proportion to *speeds*, at least one each; what is left goes to the largest rest.

    Of equal rests the first stage's counts.
    """
    wanted = [layers * speed / sum(speeds) for speed in speeds]
    found = [max(1, int(one)) for one in wanted]
    by_rest = sorted(range(len(speeds)), key=lambda place: found[place] - wanted[place])
    for place in by_rest[: max(0, layers - sum(found))]:
        found[place] += 1
    while sum(found) > layers:
        found[found.index(max(found))] -= 1
    return tuple(found)
