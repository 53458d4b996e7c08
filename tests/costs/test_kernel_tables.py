"""Cells of tables of kernels: what is no size and no time is refused, row by row."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import InputError
from perfmodel.costs.attention.table import load_attention_table
from perfmodel.costs.experts.table import load_expert_table
from perfmodel.costs.gemm.table import load_gemm_table
from perfmodel.costs.measured_kernels import MOST_SIZE, measured_ns, whole
from perfmodel.costs.memory.table import load_memory_table

GPU = "NVIDIA H100 80GB HBM3"
GEMM = "collector,device,m,n,k,latency_ms\nx,{gpu},{size},64,64,{time}\nx,{gpu},64,64,64,1\n"
ATTENTION = (
    "collector,device,kernel_source,batch_size,isl,num_heads,num_key_value_heads,head_dim,latency_ms\n"
    "x,{gpu},fa3,1,{size},32,8,128,{time}\nx,{gpu},fa3,1,4096,32,8,128,0.5\n"
)
MEMORY = "op,device,latency_ms,B,H\nadd,{gpu},{time},{size},8\nadd,{gpu},1,8,8\n"
EXPERTS = (
    "device,kernel_source,dtype,tokens,hidden,ffn,top_k,experts,tp,ep,distribution,latency_ms\n"
    "{gpu},k,fp8,{size},64,64,2,8,1,1,balanced,{time}\n{gpu},k,fp8,8,64,64,2,8,1,1,balanced,1\n"
)
TABLES = [
    (load_gemm_table, GEMM),
    (load_attention_table, ATTENTION),
    (load_memory_table, MEMORY),
    (load_expert_table, EXPERTS),
]


@pytest.mark.parametrize(("load", "text"), TABLES)
@pytest.mark.parametrize("word", ["inf", "-inf", "nan", "soon", "-1", "0", "1e400", "", "True"])
def test_a_time_or_a_size_that_is_none_costs_its_row_only(tmp_path, load, text, word):
    for cells in ({"time": word, "size": 64}, {"time": 1, "size": word}):
        file = tmp_path / "table.csv"
        file.write_text(text.format(gpu=GPU, **cells))
        table = load(file)
        assert len(table.kernels) == 1
        assert [row.row for row in table.unsupported] == ["0"]


@pytest.mark.parametrize(("load", "text"), TABLES)
def test_a_fraction_of_a_size_is_no_size(tmp_path, load, text):
    file = tmp_path / "table.csv"
    file.write_text(text.format(gpu=GPU, time=1, size="64.5"))
    assert "whole number" in load(file).unsupported[0].reason


def test_sizes_and_times_have_bounds():
    assert whole("m", 1) == 1
    assert whole("m", "64") == 64
    assert whole("m", 2.0**31) == MOST_SIZE
    assert measured_ns("0.5") == 500_000
    assert measured_ns(1e9) == 1e15
    for value in (MOST_SIZE + 1, 10**30, True, None, [4], "9" * 400):
        with pytest.raises(InputError, match="m must be a whole number"):
            whole("m", value)
    for value in (1.1e9, 1e-320, 0.9e-6, True, None):
        with pytest.raises(InputError, match="latency must be above 0"):
            measured_ns(value)
