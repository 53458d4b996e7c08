"""A new degree, schedule or optimizer needs its entry alone: all that ask read the tables.

Each test adds a toy at run time, as docs/extending.md says, and asks for predictions,
searches, measured runs, reports and flags.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from perfmodel.api import Scenario, predict
from perfmodel.base.errors import PerfModelError
from perfmodel.execution.executor import SerialExecutor
from perfmodel.graph.ops import Pass
from perfmodel.planning.layouts.search import search_layouts
from perfmodel.planning.question import LayoutQuestion
from perfmodel.reports.search import build_flags, report_search
from perfmodel.reports.terminal import to_text
from perfmodel.stacks.optimizers import Optimizer, load_optimizers
from perfmodel.stacks.schedules import Schedule, load_schedules
from perfmodel.workloads.transformer import layout_choice
from perfmodel.workloads.transformer.axes import AXES, Axis, Divided
from perfmodel.workloads.transformer.family import TransformerFamily
from perfmodel.workloads.transformer.layout import Layout
from perfmodel.workloads.transformer.schedules import ORDERS, Turn
from perfmodel.workloads.transformer.spec import Degree, ParallelSection, TransformerSpec

TINY = (
    "batch=16", "sequence_length=256", "model.max_positions=256", "model.layers=4",
    "model.heads=4", "model.hidden=256", "model.ffn=1024", "model.vocab=4096",
    "training.recompute=none", "parallel.interleaving=1",
)  # fmt: skip
ONE_RANK = ("parallel.tp=1", "parallel.pp=1", "parallel.micro_batch=1")


def ask(*overrides, stack=None):
    return predict(Scenario("dgx_a100", workload="gpt2_xl", overrides=(*TINY, *overrides),
                            stack=stack))  # fmt: skip


def search(*overrides, stack=None):
    question = LayoutQuestion(
        topology="dgx_a100", workload="gpt2_xl", overrides=(*TINY, *overrides), stack=stack, top=40
    )
    return search_layouts(question, executor=SerialExecutor())


def assumptions(answer):
    return " ".join(answer.assumptions)


@pytest.fixture
def measured(tmp_path):
    """Predicts a measured run with other cells; columns are read again, before and after."""
    pytest.importorskip("perfmodel.extensions.measurements")
    from perfmodel.extensions.measurements.validation import runs_table
    from tests.extensions.measurements.validation.test_runs import TRANSFORMER, predicted_s

    def forget():
        runs_table.load_columns.cache_clear()
        runs_table.columns_of.cache_clear()

    def of(**cells):
        return predicted_s(tmp_path, **cells)

    assert TRANSFORMER["optimizer_kind"] == "adam"
    forget()
    yield of
    forget()


def test_an_optimizer(monkeypatch, measured):
    with pytest.raises(PerfModelError, match="optimizer: must be one of adam, "):
        ask("training.optimizer=lion")
    step = (("lerp_", 2, 1), ("sign_", 1, 1), ("add_", 2, 1))
    monkeypatch.setitem(load_optimizers(), "lion", Optimizer(states=1, step=step))
    lion, adam = (ask(*ONE_RANK, f"training.optimizer={one}") for one in ("lion", "adam"))

    state = [one.memory.fullest.memory.parts for one in (lion, adam)]
    lion_bytes, adam_bytes = (
        next(part.size_bytes for part in parts if part.name == "optimizer state") for parts in state
    )
    # A master weight and one or two states.
    assert lion_bytes * 3 == adam_bytes * 2
    assert lion.isolated_ns < adam.isolated_ns
    [found] = search(*ONE_RANK, "training.optimizer=lion")
    assert found.best.time_ns <= lion.iteration_ns
    assert "training.optimizer=lion" in to_text(report_search([found]))
    assert measured(optimizer_kind="lion") < measured(optimizer_kind="adam")


def _all_forwards_first(layout: Layout, _stage: int):
    for direction in (Pass.FORWARD, Pass.BACKWARD):
        yield from (Turn(direction, number) for number in range(layout.micro_batches))


def test_a_schedule(monkeypatch, tmp_path, measured):
    stages = ("parallel.tp=1", "parallel.pp=4", "parallel.micro_batch=1")
    with pytest.raises(PerfModelError, match="schedule: must be one of 1f1b, "):
        ask("parallel.schedule=gpipe")
    entry = Schedule("All forwards come first.", trainers={"torchtitan": "GPipe"})
    monkeypatch.setitem(load_schedules(), "gpipe", entry)
    monkeypatch.setitem(ORDERS, "gpipe", _all_forwards_first)
    gpipe, plain = (ask(*stages, f"parallel.schedule={one}") for one in ("gpipe", "1f1b"))

    assert "All forwards come first." in assumptions(gpipe)
    peaks = [one.memory.fullest.memory.total_bytes for one in (gpipe, plain)]
    # All eight micro-batches are kept, not the four in flight.
    assert peaks[0] > peaks[1]
    stack = tmp_path / "ours.yaml"
    stack.write_text(
        "name: ours\nextends: torchtitan\ndescription: ours\nsource: ours\n"
        "schedules: [gpipe]\n...\n"
    )
    [found] = search(*stages, stack=str(stack))
    assert found.best.candidate.overrides["parallel.schedule"] == "gpipe"
    assert "gpipe" in to_text(report_search([found]))
    flags = build_flags(found.best)
    assert flags["torchtitan"].count("--parallelism.pipeline_parallel_schedule GPipe") == 1
    assert "Megatron-LM" not in flags
    cells = {"tp": "1", "pp": "4", "layers": "4"}
    assert measured(**cells, schedule="gpipe") != measured(**cells, schedule="1f1b")


class RowsParallel(ParallelSection):
    """With a degree more."""

    rows: Degree = 1


class RowsSpec(TransformerSpec):
    """With a degree more."""

    parallel: RowsParallel = RowsParallel()


@dataclass(frozen=True, slots=True)
class RowsLayout(Layout):
    """With a degree more."""

    rows: int = 1


def _iter_faults(spec, layout):
    if spec.sequence_length % layout.rows:
        yield f"sequence_length ({spec.sequence_length}) is not divisible by rows={layout.rows}"


def test_a_parallel_degree(monkeypatch, measured):
    with pytest.raises(PerfModelError, match=r"parallel.rows: no such field"):
        ask("parallel.rows=2")
    # The two fields and the entry; the work of its ranks would be written beside the others'.
    monkeypatch.setattr(TransformerFamily, "spec_type", RowsSpec)
    monkeypatch.setattr(layout_choice, "Layout", RowsLayout)
    axis = Axis(
        "rows", Divided.TOKENS, "ranks that share rows", lambda room: [1, 2], _iter_faults,
        columns=("row_parallel",), flags={"NeMo": "rows={rows}"},
    )  # fmt: skip
    monkeypatch.setitem(AXES, "rows", axis)
    two, one = (ask(*ONE_RANK, f"parallel.rows={rows}") for rows in (2, 1))

    assert "rows=2" in assumptions(two)
    assert "rows" not in assumptions(one)
    # Half the replicas, and half the tokens of a micro-batch in every GEMM.
    assert "dp=8" in assumptions(one)
    assert "dp=4" in assumptions(two)
    assert two.iteration_ns != one.iteration_ns
    with pytest.raises(PerfModelError, match=r"sequence_length \(255\) is not divisible by rows=2"):
        ask(*ONE_RANK, "parallel.rows=2", "sequence_length=255")
    with pytest.raises(PerfModelError, match="8 ranks are not divisible by tp x pp x rows"):
        ask(*ONE_RANK, "parallel.rows=16")

    [found] = search(*ONE_RANK)
    split = next(layout for layout in found.layouts if layout.candidate.chosen.layout.rows == 2)
    assert split.candidate.overrides["parallel.rows"] == 2
    assert "rows=2" in split.name
    assert build_flags(split)["NeMo"].count("rows=2") == 1
    report = to_text(report_search([found]))
    assert "rows" in report
    assert found.tally.is_proven
    stated = {"tp": "1", "pp": "1", "gbs": "16"}
    assert measured(**stated, row_parallel="2") != measured(**stated)
