"""What a scenario names is loaded once: tables and plans from files, under a model."""

from __future__ import annotations

import json

import pytest

from embeddings.plan_document import to_plan_document
from embeddings.table import EmbeddingTable
from embeddings.table_files import load_tables
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import PlanError
from perfmodel.prediction.plans.default_plan import spec_of_tables
from perfmodel.prediction.question import build_question, load_setting
from perfmodel.prediction.scenario import Scenario
from perfmodel.workloads.catalog import load_workload
from perfmodel.workloads.dlrm.job import build_plan
from perfmodel.workloads.families import FAMILIES

HEADING = "name,rows,width,pooling_factor,zipf,dtype\n"
CONCAT = load_workload("dlrm_mlperf", ("dense.interaction=concat",))
DOT = load_workload("dlrm_mlperf", ("dense.interaction=dot",))


def ask(**files: str) -> Scenario:
    overrides = ("dense.interaction=concat", "batch=64")
    return Scenario("quad_a100", "dlrm_mlperf", overrides, samples=2, **files)  # type: ignore[arg-type]


def write(tmp_path, *rows: str) -> str:
    path = tmp_path / "tables.csv"
    path.write_text(HEADING + "".join(f"{row}\n" for row in rows))
    return str(path)


def test_without_files_the_workload_decides():
    setting = load_setting(ask())
    assert (setting.plan, setting.tables) == (None, ())
    assert setting.scenario is not None
    assert setting.scenario.stack == setting.stack.name == setting.workload.stack


def test_what_the_workload_leaves_open_is_filled_in_by_the_stack():
    assert load_workload("dlrm_mlperf").embedding.index_dtype is DType.INT64
    workload = load_setting(Scenario("quad_a100", "dlrm_mlperf", stack="hugectr")).workload
    assert spec_of_tables(workload).embedding.index_dtype is DType.INT32


@pytest.mark.parametrize(
    ("changes", "stack"),
    [({}, "nemo"), ({"parallel.sharding": "zero3"}, "nemo"),
     ({"parallel.sharding": "zero3", "parallel.tp": 2}, "nemo"),
     ({"parallel.sharding": "zero3", "model.experts": 4}, "nemo"),
     ({"model.head": "masked_tokens", "masked_tokens": 8}, "pytorch_hf")],
)  # fmt: skip
def test_a_transformer_that_names_no_stack_gets_one_that_public_runs_back(tmp_path, changes, stack):
    model = {"layers": 2, "hidden": 256, "heads": 4, "ffn": 1024, "vocab": 512}
    content = {
        "name": "mine", "family": "transformer", "batch": 8, "sequence_length": 128,
        "model": {**model, "max_positions": 128},
    }  # fmt: skip
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(content))
    overrides = tuple(f"{key}={value}" for key, value in changes.items())

    found = load_setting(Scenario("dgx_h100", str(path), overrides))
    assert found.stack.name == found.scenario.stack == stack
    assert found.stack.evidence
    assert found.chosen[0].startswith(f"You gave no stack: {stack} is assumed")
    named = load_setting(Scenario("dgx_h100", str(path), overrides, stack="megatron"))
    assert (named.stack.name, named.chosen) == ("megatron", ())
    path.write_text(json.dumps({**content, "stack": "fsdp"}))
    stated = load_setting(Scenario("dgx_h100", str(path), overrides))
    assert (stated.stack.name, stated.chosen) == ("fsdp", ())


def test_tables_of_a_file_take_the_place_of_the_models_own(tmp_path):
    file = write(tmp_path, "a,1000,64,3,1.1,fp16", "b,500,32,,,fp16")
    setting = load_setting(ask(tables=file))
    section = spec_of_tables(setting.workload).embedding
    assert (section.rows, section.width) == ((1000, 500), (64, 32))
    assert section.pooling_factors == (3.0, 1.0)
    assert section.dtype is DType.FP16
    assert setting.tables == load_tables(file)
    [said] = [
        line for line in build_question(setting).job.facts.assumptions if "distributions" in line
    ]
    assert "1.1" in said


def test_a_plan_of_a_file_is_kept(tmp_path):
    file = write(tmp_path, "a,1000,64,3,1.1,fp32", "b,500,32,,,fp32")
    workload = spec_of_tables(load_setting(ask(tables=file)).workload)
    first = build_plan(workload, rank_count=4, tables=load_tables(file))
    (tmp_path / "plan.json").write_text(json.dumps(to_plan_document(first)))
    found = load_setting(ask(tables=file, plan=str(tmp_path / "plan.json"))).plan
    assert found is not None
    assert (found.shards, found.tables, found.rank_count) == (first.shards, first.tables, 4)


def test_tables_that_do_not_go_together_are_refused(tmp_path):
    def place(workload, *rows: str):
        file = write(tmp_path, *rows)
        return FAMILIES["dlrm"].with_tables(workload, load_tables(file), file=file)

    mixed = place(CONCAT, "a,1000,64,3,,fp16", "b,500,64,,,fp32").embedding
    # 1,000 x 64 x 2 bytes and 500 x 64 x 4 bytes.
    assert [table.size_bytes for table in mixed.tables()] == [128_000, 128_000]
    shared = (EmbeddingTable("a", 10, 64, features=3), EmbeddingTable("b", 5, 32))
    # Three vectors of 64 numbers and one of 32.
    assert FAMILIES["dlrm"].with_tables(CONCAT, shared, file="t.yaml").deep_inputs == 3 * 64 + 32
    width = DOT.dense_width
    uneven = (f"a,10,{width},1,,fp32", "b,5,8,1,,fp32")
    with pytest.raises(PlanError, match=f"of width {width}.*got widths 8, {width}"):
        place(DOT, *uneven)
    assert len(place(CONCAT, *uneven).embedding.rows) == 2
    assert place(DOT, f"a,10,{width},1,,fp32").embedding.width == (width,)


@pytest.mark.parametrize(
    ("workload", "widths", "rule"),
    [
        (
            "dlrm_wide_deep",
            (16, 16),
            "wide_deep interaction needs tables of width 1, got widths 16",
        ),
        ("dlrm_wide_deep", (1, 1), "wide_deep interaction needs tables wider than 1, got widths 1"),
        ("dlrm_deep_fm", (1, 8, 16), "tables of one width in addition .*, got widths 1, 8, 16"),
        ("dlrm_deep_fm", (1,), "tables of one width in addition .*, got widths 1"),
        ("dlrm_v4", (512,), "sequence interaction needs tables that are not pooled"),
    ],
)
def test_tables_of_a_file_must_suit_the_interaction(workload, widths, rule):
    tables = tuple(EmbeddingTable(f"t{width}", 10, width) for width in widths)
    with pytest.raises(PlanError, match=f"t.csv, tables of {workload}: .*{rule}"):
        FAMILIES["dlrm"].with_tables(load_workload(workload), tables, file="t.csv")
    # Cross layers and plain concatenation take tables of any width.
    assert (
        FAMILIES["dlrm"]
        .with_tables(load_workload("dlrm_dcnv2"), tables, file="t.csv")
        .embedding.rows
    )


def test_files_must_belong_to_something():
    with pytest.raises(PlanError, match="give --tables too"):
        load_setting(ask(indices="i.npz"))
    for files in ({"plan": "x"}, {"tables": "x"}):
        with pytest.raises(PlanError, match="has no embedding tables"):
            load_setting(Scenario("quad_a100", "llama3_8b", **files))
