"""Tables and plans from files, under a model."""

from __future__ import annotations

import json

import pytest

from embeddings.plan_document import to_plan_document
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import PlanError
from perfmodel.prediction.placing import PlacementFiles, load_tabled, place_workload
from perfmodel.workloads.catalog import load_workload
from topologies import build_cluster, load_topology

HEADING = "name,rows,width,pooling_factor,zipf,dtype\n"
CLUSTER = build_cluster(load_topology("quad_a100"))
CONCAT = load_workload("dlrm_mlperf", ("dense.interaction=concat",))
DOT = load_workload("dlrm_mlperf", ("dense.interaction=dot",))


def write(tmp_path, *rows: str) -> str:
    path = tmp_path / "tables.csv"
    path.write_text(HEADING + "".join(f"{row}\n" for row in rows))
    return str(path)


def test_without_files_the_workload_decides():
    placed = place_workload(CONCAT, PlacementFiles(), CLUSTER)
    assert (placed.workload, placed.plan) == (CONCAT, None)
    assert load_tabled(CONCAT, PlacementFiles(plan="x")).tables == CONCAT.embedding.tables()


def test_tables_of_a_file_take_the_place_of_the_models_own(tmp_path):
    file = write(tmp_path, "a,1000,64,3,1.1,fp16", "b,500,32,,,fp16")
    placed = place_workload(CONCAT, PlacementFiles(tables=file), CLUSTER)
    section = placed.workload.embedding
    assert (section.rows, section.width) == ((1000, 500), (64, 32))
    assert section.pooling_factors == (3.0, 1.0)
    assert section.dtype is DType.FP16
    assert placed.plan.tables == load_tabled(CONCAT, PlacementFiles(tables=file)).tables
    assert placed.plan.rank_count == 4


def test_a_plan_of_a_file_is_kept(tmp_path):
    file = write(tmp_path, "a,1000,64,3,1.1,fp32", "b,500,32,,,fp32")
    first = place_workload(CONCAT, PlacementFiles(tables=file), CLUSTER)
    (tmp_path / "plan.json").write_text(json.dumps(to_plan_document(first.plan)))
    files = PlacementFiles(tables=file, plan=str(tmp_path / "plan.json"))
    assert place_workload(CONCAT, files, CLUSTER).plan.shards == first.plan.shards


def test_tables_that_do_not_go_together_are_refused(tmp_path):
    mixed = PlacementFiles(tables=write(tmp_path, "a,1000,64,3,,fp16", "b,500,64,,,fp32"))
    with pytest.raises(PlanError, match="must have one number format"):
        load_tabled(CONCAT, mixed)
    width = DOT.dense_width
    uneven = PlacementFiles(tables=write(tmp_path, f"a,10,{width},1,,fp32", "b,5,8,1,,fp32"))
    with pytest.raises(PlanError, match=f"needs tables {width} wide.*got 8, {width}"):
        load_tabled(DOT, uneven)
    assert len(load_tabled(CONCAT, uneven).tables) == 2
    even = PlacementFiles(tables=write(tmp_path, f"a,10,{width},1,,fp32"))
    assert load_tabled(DOT, even).spec.embedding.width == (width,)


def test_files_must_belong_to_something():
    with pytest.raises(PlanError, match="give --tables too"):
        PlacementFiles(indices="i.npz")
    with pytest.raises(PlanError, match="has no embedding tables"):
        load_tabled(load_workload("llama3_8b"), PlacementFiles(plan="x"))
