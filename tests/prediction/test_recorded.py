"""Answers to jobs whose durations are stated, as recorded: no cost model takes part."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from perfmodel.api import JobScenario, predict
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts, JobGraph
from perfmodel.graph.ops import Fixed
from perfmodel.graph.program import Dependency, LaneKind
from perfmodel.graph.storage import save_job
from perfmodel.prediction.scenario import Mode
from tests import recorded

KEYS = ("iteration_time_ms", "period_ms", "isolated_ms", "breakdown_ms", "bound", "ranks",
        "critical_path", "waits", "provenance")  # fmt: skip


def build_job(seed: int) -> JobGraph:
    """Ranks of two kinds that launch kernels, copy batches and meet, each in its own time."""
    source = random.Random(seed)
    builder = JobBuilder()
    numbers = []
    for _ in range(2):
        program = builder.new_program()
        lanes = {kind: program.add_lane(kind.value, kind) for kind in LaneKind}
        before = None
        for step in range(6):
            load = program.add_task(
                lanes[LaneKind.LOADER], _work("load", source, 900), label="load"
            )
            copied = program.add_task(
                lanes[LaneKind.COPY], _work("copy", source, 400), label="copy", after=[load]
            )
            launched = program.add_task(
                lanes[LaneKind.HOST], _work("launch", source, 700), label="launch"
            )
            waits = [launched, copied] if step % 2 else [launched]
            waits += [before] if before is not None and step % 3 == 0 else []
            kernel = program.add_task(
                lanes[LaneKind.COMPUTE], _work("gemm", source, 1500), label="gemm", after=waits
            )
            before = program.add_task(
                lanes[LaneKind.COMMUNICATION],
                _work("reduce", source, 800),
                label="reduce",
                slot=step % 2,
                after=[kernel],
            )
        program.add_dependency(0, Dependency(before, distance=1, lag_ns=50))
        numbers.append(builder.add_program(program.build()))
    ranks = [builder.add_rank(numbers[rank % 3 == 2]) for rank in range(6)]
    builder.add_group("world", ranks, slot=0)
    for start in (0, 3):
        builder.add_group(f"half {start}", ranks[start : start + 3], slot=1)
    return builder.build(JobFacts(f"stated durations {seed}"))


def _work(name: str, source: random.Random, most_ns: int) -> Fixed:
    return Fixed(name, source.randrange(most_ns // 4, most_ns))


def values() -> dict[str, Any]:
    """All that is recorded."""
    found = {}
    with TemporaryDirectory() as place:
        for seed in range(4):
            folder = Path(place) / str(seed)
            save_job(build_job(seed), folder)
            for mode in Mode:
                scenario = JobScenario(str(folder), mode=mode, samples=2)
                answer = predict(scenario, executor="serial").to_dict()
                found[f"{mode.value} {seed}"] = {key: answer[key] for key in KEYS}
    return found


def test_stated_durations_give_the_answers_that_were_recorded(found):
    recorded.check(__file__, found)


@pytest.mark.parametrize("seed", range(4))
def test_parts_add_up_and_no_period_is_longer_than_an_iteration_and_its_lag(found, seed):
    for mode in Mode:
        answer = found[f"{mode.value} {seed}"]
        parts_ms = sum(answer["breakdown_ms"].values())
        assert parts_ms == pytest.approx(answer["iteration_time_ms"], rel=1e-6)
        path_ms = sum(one["ms"] for one in answer["critical_path"]["by_kind"])
        assert path_ms == pytest.approx(answer["iteration_time_ms"], rel=1e-6)
        # The next iteration begins 50 ns after the last rendezvous of this one.
        assert answer["period_ms"] <= answer["isolated_ms"] + 50e-6 + 1e-9
