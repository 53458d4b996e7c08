"""A family of models that is added to the tables is served by every command.

The toy family is one square GEMM per rank; what it lacks is refused by name.
"""

from __future__ import annotations

from typing import Any, Literal

import pytest

from perfmodel import api
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import PlanError, WorkloadError
from perfmodel.extensions.measurements.validation import runs_table, runs_workloads
from perfmodel.extensions.measurements.validation.runs import predict_run
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts, MemoryPart, RankMemory
from perfmodel.graph.ops import Gemm
from perfmodel.planning.question import LayoutQuestion, RankQuestion
from perfmodel.prediction.question import PredictOptions, build_question, load_setting
from perfmodel.prediction.scenario import Scenario
from perfmodel.reports.text import describe_fit
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads.catalog import load_workload, parse_workload
from perfmodel.workloads.eager import EagerWriter
from perfmodel.workloads.families import FAMILIES
from perfmodel.workloads.family import BuiltWorkload, Family, IterationFlops, JobRequest
from perfmodel.workloads.fields import Workload
from perfmodel.workloads.jobs import apply_stack_defaults
from topologies import load_device


class ToySpec(Workload):
    """A square GEMM."""

    family: Literal["toy"]
    width: int = 4096


class ToyFamily(Family[ToySpec]):
    title = "a toy"
    spec_type = ToySpec

    def stack_defaults(self, spec, stack) -> dict[str, dict[str, Any]]:
        return {"input": {"load_time": 1000}}

    def build(self, spec: ToySpec, request: JobRequest) -> BuiltWorkload:
        job = JobBuilder()
        writer = EagerWriter(job.new_program(), request.stack)
        gemm = Gemm(spec.batch, spec.width, spec.width, DType.BF16)
        writer.run("linear", [gemm], label="layer/gemm")
        program = job.add_program(writer.finish())
        for _ in range(request.rank_count):
            job.add_rank(program)
        part = MemoryPart("toy weights", 2 * spec.width**2, advice="Buy a smaller toy.")
        memory = (RankMemory((part,)),) * request.rank_count
        return BuiltWorkload(job.build(JobFacts(spec.name)), memory)

    def count_flops(self, spec: ToySpec) -> IterationFlops:
        flops = 2 * spec.batch * spec.width**2
        return IterationFlops(
            model_flops=flops, hardware_flops=flops, tokens=spec.batch, dtype=DType.BF16
        )


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """A file of the toy family, which is in the table of families for this test."""
    monkeypatch.setitem(FAMILIES, "toy", ToyFamily())
    file = tmp_path / "toy.yaml"
    file.write_text("name: ball\nfamily: toy\nbatch: 8192\n")
    return str(file)


def ask(toy: str, *overrides: str) -> Scenario:
    return Scenario(workload=toy, topology="dgx_h100", hosts=1, overrides=overrides)


def test_predict_reads_builds_and_measures_a_family(toy):
    small, large = (api.predict(ask(toy, f"width={width}")) for width in (4096, 8192))
    assert large.iteration_ns > 2 * small.iteration_ns
    # 8,192 x 2 operations for each of 4096 x 4096 weights.
    assert small.facts.work.model_flops == 8192 * 2 * 4096**2
    assert small.yardsticks.unit == "tokens"
    with pytest.raises(WorkloadError, match="no such field"):
        api.predict(ask(toy, "widht=1"))


def test_what_takes_the_memory_says_what_to_change(toy):
    question = build_question(load_setting(ask(toy, "width=400000")))
    assert "most of it toy weights" in describe_fit(question.memory_fit)
    assert describe_fit(question.memory_fit).endswith("Buy a smaller toy.")


def test_compare_and_the_schema_know_a_family(toy):
    both = api.compare({"a": ask(toy), "b": ask(toy, "width=8192")})
    assert [one.name for one in both.answered] == ["a", "b"]
    assert "## family: toy" in api.describe_schema("workload")
    assert "ToySpec" in api.json_schema("workload")["$defs"]


def test_stacks_fill_in_what_a_family_leaves_open_unless_they_are_for_another(toy):
    spec = apply_stack_defaults(load_workload(toy), load_stack("pytorch_fused"))
    assert spec.input.load_time == 1000
    with pytest.raises(WorkloadError, match="is for dlrm workloads and this is a toy one"):
        apply_stack_defaults(spec, load_stack("torchrec"))


def test_tables_and_layouts_that_a_family_has_not_are_refused_by_name(toy):
    with pytest.raises(PlanError, match="has no embedding tables to place"):
        api.rank(RankQuestion(workload=toy, topology="dgx_h100"))
    with pytest.raises(PlanError, match="It has no parallel layouts"):
        api.search(LayoutQuestion(workload=toy, topology="dgx_h100"))


def test_measured_runs_of_a_family_are_predicted(toy, monkeypatch, tmp_path):
    def build(row, stack, sentences) -> Workload:
        content = {"name": str(row.name), "family": "toy", "batch": row.value("gbs")}
        return parse_workload(content | row.section("toy"), document="row")

    known = runs_table.load_columns()
    width = runs_table.Column("count", "width of a toy", sets="toy.width")
    monkeypatch.setitem(known.families, "toy", {"width": width})
    monkeypatch.setitem(known.required, "toy", ("width",))
    monkeypatch.setitem(runs_workloads.WORKLOADS, "toy", build)
    file = tmp_path / "runs.csv"
    heading = "device,n_gpus,gbs,iter_time_s,framework,machine,width\n"
    file.write_text(heading + "h100_sxm,8,8192,0.001,,dgx_h100,8192\n")
    (row,) = runs_table.load_runs(file).rows
    assert row.family == "toy"
    assert "width of a toy" in api.describe_schema("runs")
    found = predict_run(PredictOptions(samples=0, is_explained=False), row)
    assert not found.reason
    # Eight ranks compute the same at once.
    assert found.predicted_ns > 2 * 8192**3 / load_device("h100_sxm").peak_flops[DType.BF16] * 1e9
    assert any("'pytorch_fused' is used, which was not fitted" in one for one in found.assumptions)
