"""Recommendation runs: which profile and workload a row stands for, and how far they are off."""

from __future__ import annotations

import pytest

from perfmodel.execution.serial import SerialExecutor
from perfmodel.validation.runs import validate_runs
from perfmodel.validation.runs_dlrm import build_dlrm_spec
from perfmodel.validation.runs_software import find_rule
from perfmodel.validation.runs_table import RunRow, load_runs
from perfmodel.workloads.dlrm.spec import Interaction

WIDE = {
    "source": "ours", "software": "HugeCTR 3.2", "gpu": "V100-SXM2-16GB", "n_gpus": "1",
    "dense_features": "13", "n_tables": "26 slots (1 fused table) + wide table",
    "rows_total": "2600", "emb_dim": "16", "multi_hot": "1", "bottom_mlp": "none",
    "top_mlp": "429-1024-1", "interaction": "concat + wide sum", "precision": "fp32",
    "gbs": "512", "optimizer": "Adam",
}  # fmt: skip


def _row(**changes: str) -> RunRow:
    return RunRow("a", WIDE | changes, 0.01)


@pytest.mark.parametrize(
    ("software", "profile"),
    [
        ("HugeCTR 3.2", "hugectr_hash"),
        ("Merlin HugeCTR with NVIDIA DL Frameworks Release 20.06", "hugectr_2020"),
        ("Merlin HugeCTR with NVIDIA DL Frameworks Release 21.05", "hugectr_2021"),
        ("merlin_hugectr NVIDIA Release 22.04", "hugectr"),
        ("NVIDIA Merlin HugeCTR Release 23.04", "hugectr"),
        ("PyTorch NVIDIA Release 20.06", "ngc_dlrm"),
    ],
)
def test_the_release_of_the_software_chooses_the_profile(software, profile):
    assert find_rule(_row(software=software)).profile == profile


def test_a_fused_table_with_a_wide_part_becomes_wide_and_deep():
    row = _row()
    sentences: list[str] = []
    spec = build_dlrm_spec(row, find_rule(row), sentences)
    assert spec.dense.interaction is Interaction.WIDE_DEEP
    assert spec.dense.bottom_mlp == ()
    # 13 features and 26 tables of 16; the first number of the top layers is their input.
    assert spec.top_inputs == 13 + 26 * 16 == 429
    assert spec.dense.top_mlp == (1024, 1)
    assert spec.wide_tables == 1


def test_small_tables_are_copied_where_a_row_says_so_and_the_release_could():
    sharding = "HugeCTR hybrid embedding (hot dp / cold mp)"
    for release, size in (("20.06", 0), ("21.05", 2 * 2**20)):
        row = _row(software=f"Merlin HugeCTR Release {release}", sharding=sharding)
        spec = build_dlrm_spec(row, find_rule(row), [])
        assert spec.sharding.data_parallel_below == size


def test_core_recommendation_runs_stay_within_their_error(shared_data):
    table = load_runs(shared_data / "runs" / "core_dlrm.csv")
    board = validate_runs(table, executor=SerialExecutor())
    assert board.overall is not None
    assert board.overall.rows == len(table.rows) == 29
    assert board.overall.mape_pct < 12
    assert board.overall.inside_interval_pct > 70
    for name, score in board.groups.items():
        assert score.mape_pct < 15, name
