"""What comes and goes in memory during an iteration."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.api import Scenario, predict
from perfmodel.engine.history import History
from perfmodel.engine.reasons import Window
from perfmodel.engine.replay import replay
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.durations import build_durations
from perfmodel.graph.job import JobFacts, KeptBytes, MemoryPart, RankMemory
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import LaneKind
from perfmodel.prediction.explain import Evidence
from perfmodel.prediction.memory_timeline import memory_over_time
from perfmodel.reports.html import to_page
from perfmodel.reports.prediction import report_prediction


def evidence_of(*labels):
    """One rank that runs a kernel of 10 ns for each of *labels*."""
    builder = JobBuilder()
    program = builder.new_program()
    compute = program.add_lane("compute", LaneKind.COMPUTE)
    for label in labels:
        program.add_task(compute, Fixed("kernel", 0), label=label)
    builder.add_rank(builder.add_program(program.build()))
    job = builder.build(JobFacts("passes"))
    durations = build_durations(job, [np.full(len(labels), 10)])
    history = History(job, durations, replay(job, durations))
    return Evidence(history, 0, Window(0, 10 * len(labels)), ((0,),))


def memory_of(*kept):
    parts = MemoryPart("weights", 100), MemoryPart("activations", 50, is_kept=True)
    return RankMemory(parts, kept)


def test_a_layer_is_allocated_when_its_forward_starts_and_freed_when_its_backward_ends():
    evidence = evidence_of(
        "optimizer/zero", "layer 0/up forward", "layer 0/down forward", "layer 1/up forward",
        "layer 1/up backward", "layer 0/down backward", "layer 0/up backward", "optimizer/step",
    )  # fmt: skip
    kept = KeptBytes("layer 0", 30), KeptBytes("layer 1", 20)

    curve = memory_over_time(evidence, 0, memory_of(*kept))

    # Task n runs from 10 n to 10 n + 10 ns. Layer 0: 10 to 70, layer 1: 30 to 50.
    assert curve is not None
    assert curve.moments_ns.tolist() == [0, 10, 30, 50, 70]
    assert curve.size_bytes.tolist() == [100, 130, 150, 130, 100]


def test_each_micro_batch_in_flight_is_counted_and_recomputed_bytes_while_backward_runs():
    passes = ["layer 0/up forward"], ["layer 0/recompute/up forward", "layer 0/up backward"]
    forward, backward = ([*names, "pipeline/gap"] for names in passes)
    evidence = evidence_of(*forward, *forward, *backward, *backward)

    curve = memory_over_time(evidence, 0, memory_of(KeptBytes("layer 0", 5, recomputed_bytes=40)))

    # Forwards at 0 and 20, backwards from 40 to 60 and from 70 to 90.
    assert curve is not None
    assert curve.moments_ns.tolist() == [0, 20, 40, 60, 70, 90]
    assert curve.size_bytes.tolist() == [105, 110, 150, 105, 145, 100]


@pytest.mark.parametrize(
    ("labels", "kept"),
    [
        (["layer 0/up forward", "layer 0/up backward"], ()),
        (["layer 0/up forward"], (KeptBytes("layer 0", 5),)),
        (["kernel"], (KeptBytes("layer 0", 5),)),
    ],
)
def test_without_pairs_of_passes_nothing_is_known(labels, kept):
    assert memory_over_time(evidence_of(*labels), 0, memory_of(*kept)) is None


@pytest.mark.parametrize(
    ("workload", "changes"),
    [
        ("transformer_small", ("batch=32",)),
        ("transformer_small", ("batch=8", "parallel.pp=2", "parallel.micro_batch=1")),
        ("dlrm_default", ()),
        ("dlrm_dcnv2", ()),
    ],
)
def test_the_highest_point_is_the_peak_that_is_counted_part_by_part(workload, changes):
    found = predict(Scenario(workload=workload, topology="dgx_h100", overrides=changes, samples=2))
    evidence = found.evidence
    memory = {rank: one.memory for one in found.explanation.rank_classes for rank in one.ranks}
    for rank, members in enumerate(evidence.class_ranks):
        curve = memory_over_time(evidence, rank, memory[members[0]])
        assert curve is not None
        assert curve.size_bytes.max() == memory[members[0]].total_bytes
        assert curve.size_bytes.min() < curve.size_bytes.max()
    assert '<div class="memory">' in to_page(report_prediction(found))
