"""Recommendation runs: which stack and workload a row describes, and how far they are off."""

from __future__ import annotations

import pytest

from perfmodel.base.dtypes import DType
from perfmodel.execution.executor import SerialExecutor
from perfmodel.extensions.measurements.validation.framework_stacks import choose_stack
from perfmodel.extensions.measurements.validation.runs import validate_runs
from perfmodel.extensions.measurements.validation.runs_question import read_setting
from perfmodel.extensions.measurements.validation.runs_table import RunRow, load_runs
from perfmodel.workloads.catalog import load_workload
from perfmodel.workloads.dlrm.spec import Interaction

WIDE = {
    "framework": "hugectr", "release": "3.2", "device": "v100_sxm2_16gb", "machine": "dgx1_v100",
    "n_gpus": "1", "dense_features": "13", "tables": "26", "wide_table": "1",
    "rows_total": "2600", "emb_dim": "16", "lookups": "1", "top_layers": "1024-1",
    "interaction_kind": "wide_deep", "compute_precision": "fp32", "placement": "all_keys",
    "gbs": "512", "optimizer_kind": "adam",
}  # fmt: skip


def _row(**changes: str) -> RunRow:
    return RunRow("a", "dlrm", WIDE | changes, 0.01)


@pytest.mark.parametrize(
    ("framework", "release", "placement", "stack"),
    [
        ("hugectr", "3.2", "all_keys", "hugectr_hash"),
        ("hugectr", "20.06", "hugectr_hybrid", "hugectr_2020"),
        ("hugectr", "21.05", "hugectr_hybrid", "hugectr_2021"),
        ("hugectr", "22.04", "hugectr_hybrid", "hugectr_2022"),
        ("hugectr", "", "hugectr_hybrid", "hugectr_2022"),
        ("hugectr", "23.04", "hugectr_auto", "hugectr_2023"),
        ("hugectr", "", "", "hugectr"),
        ("nvidia_pytorch_dlrm", "2022-01-10", "single", "ngc_dlrm"),
        ("megatron_lm", "", "", "generic_dlrm"),
    ],
)
def test_framework_release_and_placement_choose_the_stack(framework, release, placement, stack):
    chosen = choose_stack(framework, release=release, family="dlrm", placement=placement)
    assert chosen.stack.name == stack
    assert bool(chosen.assumptions) == stack.startswith("generic")


def test_a_wide_table_beside_others_becomes_wide_and_deep():
    spec = read_setting(_row()).workload
    assert spec.dense.interaction is Interaction.WIDE_DEEP
    assert spec.dense.bottom_mlp == ()
    # 13 features and 26 tables of 16; the wide table has a row for each of 26 x 100.
    assert spec.top_inputs == 13 + 26 * 16 == 429
    assert spec.embedding.rows == (*[100] * 26, 2600)
    assert spec.wide_tables == 1


def test_releases_place_tables_as_they_did():
    plain = {"placement": "", "interaction_kind": "dot", "wide_table": "0"}
    for release, sharder in (
        ("20.06", "naive"), ("21.05", "hugectr_hybrid"), ("23.04", "hugectr_auto"),
    ):  # fmt: skip
        spec = read_setting(_row(**plain, release=release, bottom_layers="32-16")).workload
        # Earlier releases inherit the keys of later ones.
        assert (spec.sharding.sharder, spec.embedding.index_dtype) == (sharder, DType.INT32)


def test_indices_are_as_skewed_as_those_of_the_shipped_workload_with_the_same_tables():
    shipped = load_workload("dlrm_mlperf").embedding
    plain = {"placement": "", "interaction_kind": "dot", "wide_table": "0", "emb_dim": "16"}
    backwards = "-".join(str(rows) for rows in reversed(shipped.rows))
    row = _row(**plain, table_rows=backwards, bottom_layers="32-16")
    scenario = read_setting(row)
    assert scenario.workload.embedding.zipf_exponents == tuple(reversed(shipped.zipf_exponents))
    assert any("as skewed as those of dlrm_mlperf" in word for word in scenario.assumptions)
    others = read_setting(_row(**plain, table_rows="-".join(["500"] * 26), bottom_layers="32-16"))
    assert others.workload.embedding.zipf_exponents == 0.0


def test_core_recommendation_runs_stay_within_their_error(shared_data):
    table = load_runs(shared_data / "runs" / "core_dlrm.csv")
    board = validate_runs(table, executor=SerialExecutor())
    assert board.overall is not None
    assert board.overall.rows == len(table.rows) == 68
    assert board.overall.mape_pct < 13
    assert board.overall.median_pct < 8
    assert 85 <= board.overall.inside_interval_pct <= 97
    assert 80 <= board.overall.inside_interval_pct <= 99


def test_stated_cross_layers_are_those_of_the_workload():
    stated = {"cross_layers": "2", "cross_rank": "64", "wide_table": "0"}
    dense = read_setting(_row(interaction_kind="dcnv2", **stated)).workload.dense
    assert dense.interaction is Interaction.CROSS
    assert (dense.cross.layers, dense.cross.rank) == (2, 64)
