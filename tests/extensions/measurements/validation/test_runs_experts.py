"""Runs of models with experts: what a row states of them, and what a framework does by default."""

from __future__ import annotations

import pytest

from perfmodel.extensions.measurements.validation.framework_stacks import choose_stack
from perfmodel.extensions.measurements.validation.runs_question import read_setting
from perfmodel.extensions.measurements.validation.runs_table import RunRow
from perfmodel.stacks.capabilities import Dispatcher
from perfmodel.workloads.transformer.words import CudaGraph, Positions, Recompute

GROK = {
    "framework": "nemo", "release": "25.04", "device": "gb200", "machine": "gb200_nvl72",
    "n_gpus": "128", "n_nodes": "32", "gpus_per_node": "4", "arch": "moe", "layers": "64",
    "hidden": "6144", "heads": "48", "kv_heads": "8", "head_dim": "128", "ffn": "32768",
    "gated_ffn": "1", "vocab": "131072", "seq_len": "8192", "experts": "8", "top_k": "2",
    "moe_ffn": "32768", "compute_precision": "bf16", "gbs": "512", "mbs": "1", "tp": "4",
    "pp": "1", "ep": "8", "data_sharding": "zero1", "cuda_graph": "partial",
}  # fmt: skip


def setting_of(**changes: str):
    return read_setting(RunRow("a", "transformer", GROK | changes, 1.0))


def test_settings_of_experts_are_read_by_name():
    words = {"dispatcher": "hybridep", "ep_overlap": "yes", "mtp_layers": "1", "packed": "yes"}
    spec = setting_of(**words, cuda_graph="full").workload
    assert spec.parallel.dispatcher is Dispatcher.HYBRIDEP
    assert spec.parallel.expert_overlap is True
    assert spec.training.cuda_graph is CudaGraph.FULL
    assert (spec.model.mtp_layers, spec.model.top_k, spec.training.packed_tokens) == (1, 2, 512)


@pytest.mark.parametrize(("changes", "etp"), [({}, 4), ({"etp": "1"}, 1), ({"n_gpus": "16"}, 4)])
def test_megatron_before_25_09_divides_experts_over_the_tensor_group(changes, etp):
    hosts = {"n_nodes": "4", "ep": "8"} if "n_gpus" in changes else {}
    assert setting_of(**changes, **hosts).workload.parallel.etp == etp


def test_a_known_configuration_recomputes_what_it_says():
    host = {"device": "b200_sxm", "machine": "dgx_b200", "n_nodes": "16", "gpus_per_node": "8"}
    large = {"mbs": "16", **host}
    for stated in ({}, {"cuda_graph": ""}, {"cuda_graph": "", "recompute_modules": "moe_act"}):
        assert setting_of(**large, **stated).workload.training.recompute is Recompute.NONE
    assert setting_of(**large, recompute="full").workload.training.recompute is Recompute.FULL


@pytest.mark.parametrize(
    ("release", "stack"),
    [("24.01", "nemo"), ("25.07", "nemo_2024"), ("25.09", "nemo_2025"), ("26.04.01", "nemo_2025"),
     ("26.06", "nemo_2026"),
     ("26.08", "nemo_2026"), ("dev 2025-01", "nemo_2024")],
)  # fmt: skip
def test_releases_of_nemo_choose_the_stack(release, stack):
    chosen = choose_stack("nemo", release=release, family="transformer")
    assert chosen.stack.name == stack


def test_layers_that_a_run_keeps_in_host_memory_are_stated():
    large = {"mbs": "16", "cuda_graph": ""}
    stated = setting_of(**large, offload_layers="3").workload.training
    assert (stated.offload_layers, stated.recompute) == (3, Recompute.NONE)


def test_a_model_of_known_widths_takes_bias_and_clamps_of_the_shipped_one():
    widths = {
        "hidden": "2880", "heads": "64", "kv_heads": "8", "head_dim": "64", "ffn": "2880",
        "moe_ffn": "2880", "vocab": "201088", "layers": "24", "experts": "32", "tp": "1",
    }  # fmt: skip
    known, other = setting_of(**widths), setting_of()
    assert (known.workload.model.bias, known.workload.model.clamped_ffn) == (True, True)
    assert known.workload.model.positions is Positions.YARN
    assert (other.workload.model.bias, other.workload.model.clamped_ffn) == (False, False)
    assert any("those of gpt_oss_120b" in one for one in known.assumptions)


def test_tokens_are_dropped_where_a_column_says_so_and_not_by_the_name_of_a_model():
    capacities = [
        setting_of(**cells).workload.training.capacity_factor
        for cells in ({"capacity_factor": "1"}, {"model": "Qwen3 (tokendrop)"}, {})
    ]
    assert capacities == [1.0, None, None]
