"""Names of frameworks as people write them."""

from __future__ import annotations

import pytest

from perfmodel.extensions.measurements.validation.framework_stacks import choose_stack
from perfmodel.workloads import load_workload
from perfmodel.workloads.transformer.words import StateSharding


@pytest.mark.parametrize(
    ("framework", "stack"),
    [("megatron", "megatron"), ("megatron-lm", "megatron_lm"), ("Megatron-LM", "megatron_lm")],
)
def test_a_framework_is_known_by_its_common_names(framework, stack):
    chosen = choose_stack(framework, family="transformer")
    assert (chosen.stack.name, chosen.assumptions) == (stack, ())


def test_fsdp_is_full_sharding():
    workload = load_workload("llama3_8b", ["parallel.sharding=fsdp"])
    assert workload.parallel.sharding is StateSharding.ZERO3
