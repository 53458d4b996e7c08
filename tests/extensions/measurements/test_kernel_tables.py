"""Cells of tables of kernels: what is no size and no time is refused, row by row."""

from __future__ import annotations

import pytest

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import InputError, MeasurementError
from perfmodel.extensions.measurements.kernel_tables import load_table
from perfmodel.extensions.measurements.measured_kernels import MOST_SIZE, parse_ms, parse_size
from perfmodel.graph.ops import Pass

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
TABLES = [("gemm", GEMM), ("attention", ATTENTION), ("memory", MEMORY), ("experts", EXPERTS)]


@pytest.mark.parametrize(("kind", "text"), TABLES)
@pytest.mark.parametrize("word", ["inf", "-inf", "nan", "soon", "-1", "0", "1e400", "", "True"])
def test_a_time_or_a_size_that_is_none_costs_its_row_only(tmp_path, kind, text, word):
    for cells in ({"time": word, "size": 64}, {"time": 1, "size": word}):
        read = load_table(kind, table(tmp_path, text.format(gpu=GPU, **cells)))
        assert len(read.kernels) == 1
        assert [row.row for row in read.unsupported] == ["0"]


@pytest.mark.parametrize(("kind", "text"), TABLES)
def test_a_fraction_of_a_size_is_no_size(tmp_path, kind, text):
    file = table(tmp_path, text.format(gpu=GPU, time=1, size="64.5"))
    assert "whole number" in load_table(kind, file).unsupported[0].reason


def test_sizes_and_times_have_bounds():
    assert parse_size("m", 1) == 1
    assert parse_size("m", "64") == 64
    assert parse_size("m", 2.0**31) == MOST_SIZE
    assert parse_ms("0.5") == 500_000
    assert parse_ms(1e9) == 1e15
    for value in (MOST_SIZE + 1, 10**30, True, None, [4], "9" * 400):
        with pytest.raises(InputError, match="m must be a whole number"):
            parse_size("m", value)
    for value in (1.1e9, 1e-320, 0.9e-6, True, None):
        with pytest.raises(InputError, match="latency must be above 0"):
            parse_ms(value)


def table(tmp_path, text: str):
    path = tmp_path / "table.csv"
    path.write_text(text)
    return path


def test_products_are_read_with_their_device(tmp_path):
    path = table(tmp_path, "collector,device,m,n,k,latency_ms\nt,NVIDIA H200,1,2,3,0.5\n")
    [kernel] = load_table("gemm", path).kernels
    assert (kernel.op.m, kernel.op.n, kernel.op.k) == (1, 2, 3)
    assert kernel.device == "h200_sxm"
    assert kernel.measured_ns == 500_000


def test_a_linear_layer_is_one_product_and_a_bmm_is_many(tmp_path):
    head = "op,device,latency_ms,B,M,N,K\n"
    path = table(tmp_path, head + "linear,x,1,4,8,16,32\nbmm,x,1,4,8,16,32\nconv,x,1,1,1,1,1\n")
    read = load_table("gemm", path)
    assert [(one.op.batch, one.op.m) for one in read.kernels] == [(1, 32), (4, 8)]
    assert "conv" in read.unsupported[0].reason


def test_rows_that_cannot_be_priced_are_listed_with_their_reason(tmp_path):
    text = "device,m,n,k,latency_ms\nx,0,1,1,1\nx,1,1,1,-1\n"
    read = load_table("gemm", table(tmp_path, text))
    assert [row.row for row in read.unsupported] == ["0", "1"]


def test_forward_and_backward_of_one_row_are_two_kernels(tmp_path):
    head = (
        "backend,data_type,attn_mask,batch_size,q_seqlen,kv_seqlen,num_q_heads,num_kv_heads,"
        "head_dim_qk,fwd_time_ms,bwd_time_ms,sliding_window_size,gpu_name\n"
    )
    rows = "cudnn,bfloat16,top_left,1,512,512,8,2,64,1,3,,NVIDIA H200\n"
    rows += "cudnn,bfloat16,top_left,1,512,512,8,2,64,1,3,128,NVIDIA H200\n"
    read = load_table("attention", table(tmp_path, head + rows))
    assert [kernel.op.direction for kernel in read.kernels] == [Pass.FORWARD, Pass.BACKWARD]
    assert "window" in read.unsupported[0].reason


def test_decoding_is_not_training(tmp_path):
    text = "device,kernel_source,batch_size,isl,num_heads,head_dim,latency_ms\nx,fa3,1,1,8,64,1\n"
    assert "decoding" in load_table("attention", table(tmp_path, text)).unsupported[0].reason


def test_operators_with_one_and_two_operands_read_different_bytes(tmp_path):
    text = "op,device,latency_ms,B,H\nadd,x,1,10,10\naddu,x,1,10,10\nln,x,1,10,20\n"
    add, scalar, norm = load_table("memory", table(tmp_path, text)).kernels
    assert (add.op.read_bytes, scalar.op.read_bytes) == (800, 400)
    assert (norm.op.operator, norm.op.row_length, norm.op.dtype) == ("layer_norm", 20, DType.FP32)


def test_a_table_of_norms_keeps_its_numbers_of_rows(tmp_path):
    # N alone is not a side of a product.
    text = (
        "norm_type,backend,data_type,N,C,fwd_time_ms,bwd_time_ms,success,gpu_name\n"
        "rms_norm,cudnn,bfloat16,16384,4096,0.072,0.106,True,NVIDIA H200\n"
    )
    forward, backward = load_table("memory", table(tmp_path, text)).kernels
    assert forward.op.read_bytes >= 16384 * 4096 * 2
    assert (forward.measured_ns, backward.measured_ns) == (72_000.0, 106_000.0)


@pytest.mark.parametrize("kind", ["gemm", "attention", "memory", "experts"])
def test_a_table_of_something_else_is_refused(kind, tmp_path):
    with pytest.raises(MeasurementError):
        load_table(kind, table(tmp_path, "colour\nred\n"))
    with pytest.raises(MeasurementError):
        load_table(kind, tmp_path / "missing.csv")


@pytest.mark.parametrize("heading", ["M,N,K,time_us", "m,n,k,latency_us", "M,N,K,duration_us"])
def test_headings_that_people_write_are_known(tmp_path, heading):
    path = tmp_path / "mine.csv"
    path.write_text(f"{heading}\n64,128,256,10\n")
    [one] = load_table("gemm", path, "h100_sxm").kernels
    assert (one.op.m, one.op.n, one.op.k, one.device) == (64, 128, 256, "h100_sxm")
    assert one.measured_ns == pytest.approx(10_000)


def test_a_table_that_names_no_gpu_asks_for_it(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("m,n,k,time_us\n64,128,256,10\n")
    with pytest.raises(MeasurementError, match="Name the GPU with --device"):
        load_table("gemm", path)


def test_kernels_of_compiled_code_are_read_with_all_their_bytes(tmp_path):
    text = (
        "fused_kind,device,size_bytes,latency_ms,recording\n"
        "pointwise,NVIDIA H100 80GB HBM3,6593445888,2.3,a\n"
        "reduction,NVIDIA H100 80GB HBM3,64,0.002,a\n"
    )
    large, small = load_table("memory", table(tmp_path, text)).kernels
    assert (large.op.operator, large.op.read_bytes) == ("fused_pointwise", 6_593_445_888)
    assert (small.op.operator, small.op.read_bytes + small.op.write_bytes) == (
        "fused_reduction",
        64,
    )
