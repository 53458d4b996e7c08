"""Reading workloads: shipped ones, own files, and changed fields."""

from __future__ import annotations

import pytest

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import WorkloadError
from perfmodel.workloads import list_workloads, load_workload, parse_workload

SHIPPED = [title.name for title in list_workloads()]

TINY = """
name: tiny
family: transformer
description: a tiny model
source: made up for a test
batch: 4
sequence_length: 16
model: {layers: 2, hidden: 8, heads: 2, ffn: 32, vocab: 10, max_positions: 16}
"""


def test_the_promised_workloads_are_shipped():
    assert SHIPPED == [
        "bert_large",
        "deepseek_v3",
        "dlrm_dcnv2",
        "dlrm_ddp",
        "dlrm_deep_fm",
        "dlrm_default",
        "dlrm_mlperf",
        "dlrm_v4",
        "dlrm_wide_deep",
        "gpt2_124m",
        "gpt2_xl",
        "gpt3_175b",
        "gpt_oss_120b",
        "llama3_405b",
        "llama3_70b",
        "llama3_8b",
        "mlp_data_parallel",
        "qwen3_30b_a3b",
        "transformer_small",
    ]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_workload_is_read_by_its_name_and_by_its_file_name(name):
    assert load_workload(name) == load_workload(f"{name}.yaml")
    assert load_workload(name).name == name


def test_a_field_can_be_changed_with_its_unit_and_type():
    workload = load_workload(
        "llama3_8b",
        ["batch=4096", "parallel.tp=4", "training.bucket_size=1 MiB", "training.precision=fp16"],
    )
    assert workload.batch == 4096
    assert workload.parallel.tp == 4
    assert workload.training.bucket_size == 2**20
    assert workload.training.precision is DType.FP16


def test_a_list_can_be_changed():
    workload = load_workload("dlrm_mlperf", ["embedding.rows=[10, 20]", "embedding.width=128"])
    assert [table.rows for table in workload.embedding.tables()] == [10, 20]


def test_changing_one_load_does_not_change_the_next():
    load_workload("llama3_8b", ["batch=1"])
    assert load_workload("llama3_8b").batch == 128
    assert load_workload("dlrm_dcnv2").batch == 55_296


@pytest.mark.parametrize("value", ["017", "0x10", "1:30", "&a [1]", "[*a]", "[1", "9" * 5000])
def test_a_change_is_read_as_strictly_as_a_file(value):
    with pytest.raises(WorkloadError, match="batch: "):
        load_workload("llama3_8b", [f"batch={value}"])


@pytest.mark.parametrize(
    ("name", "override", "fault"),
    [
        ("llama3_8b", "tp=4", "parallel.tp"),
        ("llama3_8b", "bach=4", "batch"),
        ("llama3_8b", "model.layer=2", "model.layers"),
        ("llama3_8b", "family=dlrm", "no such field"),
        ("dlrm_mlperf", "embedding.width=64", "of width 128, .*got widths 64"),
        ("dlrm_dcnv2", "embedding.pooling_factors=[1, 2]", "got 2 for 26 tables"),
        ("dlrm_dcnv2", "batch", "field=value"),
    ],
)
def test_a_change_that_cannot_be_is_refused(name, override, fault):
    with pytest.raises(WorkloadError, match=fault):
        load_workload(name, [override])


def test_all_faults_are_reported_at_once():
    changes = [
        "batch=0", "model.layers=true", "model.heads=2.5", "training.recompute=sometimes",
        "training.bucket_size=25", "training.precision=fp7",
    ]  # fmt: skip
    with pytest.raises(WorkloadError) as error:
        load_workload("llama3_8b", changes)
    message = str(error.value)
    assert message.startswith("llama3_8b: 6 faults")
    for place in ("batch", "model.layers", "model.heads", "training.recompute", "fp7", "got 25"):
        assert place in message


@pytest.mark.parametrize(
    ("workload", "change"),
    [
        ("llama3_8b", "batch=4000000000"),
        ("llama3_8b", "batch=100000000000000000000"),
        ("llama3_8b", "batch=" + "9" * 5000),
        ("llama3_8b", "batch=" + "[" * 3000),
        ("llama3_8b", "model.layers=1025"),
        ("llama3_8b", "model.hidden=16777217"),
        ("llama3_8b", "parallel.cp=65537"),
        ("llama3_8b", "parallel.sharding=[zero1]"),
        ("llama3_8b", "training.bucket_size=1e300 GB"),
        ("dlrm_default", "embedding.rows=[1000000000001]"),
        ("dlrm_default", "embedding.pooling_factors=1e300"),
    ],
)
def test_every_number_has_a_bound(workload, change):
    with pytest.raises(WorkloadError, match=change.partition("=")[0]):
        load_workload(workload, [change])


def test_an_own_file_is_read(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    assert load_workload(path).model.head_width == 4


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("heads: 2", "heads: 3", "hidden must be divisible by heads, got 8 and 3"),
        ("heads: 2", "heads: 2, kv_heads: 4", "heads must be divisible by kv_heads, got 2 and 4"),
        (", max_positions: 16", "", "learned positions need max_positions"),
        ("sequence_length: 16", "sequence_length: 17", "at most model.max_positions 16, got 17"),
        ("family: transformer", "family: forest", "one of dlrm, transformer, got 'forest'"),
        ("batch: 4", "batch: 4\ninput: {load_time: 3}", "must carry its unit"),
    ],
)
def test_a_fault_in_a_file_is_named(tmp_path, before, after, fault):
    path = tmp_path / "tiny.yaml"
    assert before in TINY
    path.write_text(TINY.replace(before, after))
    with pytest.raises(WorkloadError) as error:
        load_workload(path)
    assert fault in str(error.value)


def test_a_workload_that_is_nowhere_names_a_near_one():
    with pytest.raises(WorkloadError, match="Near: llama3_8b"):
        load_workload("lama3_8b")


def test_a_directory_is_no_workload(tmp_path):
    with pytest.raises(WorkloadError, match="directory"):
        load_workload(tmp_path)


def test_content_without_a_family_is_refused():
    with pytest.raises(WorkloadError, match="family must be one of"):
        parse_workload({}, document="nothing")


def test_a_key_of_another_section_is_suggested_with_its_place(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(f"{TINY}ffn: 32\n")
    with pytest.raises(WorkloadError, match=r"ffn .*unknown key; did you mean 'model.ffn'"):
        load_workload(path)


def test_the_batch_of_a_replica_is_multiplied_by_the_replicas():
    changes = ["replica_batch=2", "parallel.tp=4"]
    workload = load_workload("llama3_8b", changes, rank_count=32)
    # 32 ranks / (tp 4 x pp 1) are eight replicas of two sequences.
    assert (workload.batch, workload.parallel.pp) == (16, 1)
    assert load_workload("llama3_8b", [*changes, "batch=24"], rank_count=32).batch == 24


def test_stages_that_the_user_states_drop_what_the_file_says_about_its_own():
    own, stated = load_workload("llama3_405b"), load_workload("llama3_405b", ["parallel.pp=1"])
    assert own.parallel.interleaving > 1
    assert (stated.parallel.pp, stated.parallel.interleaving) == (1, 1)
    both = load_workload("llama3_405b", ["parallel.pp=2", "parallel.interleaving=3"])
    assert both.parallel.interleaving == 3
