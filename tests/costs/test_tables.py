import pytest

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import MeasurementError
from perfmodel.costs.attention.table import load_attention_table
from perfmodel.costs.gemm.table import load_gemm_table
from perfmodel.costs.memory.table import load_memory_table
from perfmodel.graph.ops import Pass


def table(tmp_path, text: str):
    path = tmp_path / "table.csv"
    path.write_text(text)
    return path


def test_products_are_read_with_their_device(tmp_path):
    path = table(tmp_path, "collector,device,m,n,k,latency_ms\nt,NVIDIA H200,1,2,3,0.5\n")
    [kernel] = load_gemm_table(path).kernels
    assert (kernel.op.m, kernel.op.n, kernel.op.k) == (1, 2, 3)
    assert kernel.device == "h200_sxm"
    assert kernel.measured_ns == 500_000


def test_a_linear_layer_is_one_product_and_a_bmm_is_many(tmp_path):
    head = "op,device,latency_ms,B,M,N,K\n"
    path = table(tmp_path, head + "linear,x,1,4,8,16,32\nbmm,x,1,4,8,16,32\nconv,x,1,1,1,1,1\n")
    read = load_gemm_table(path)
    assert [(one.op.batch, one.op.m) for one in read.kernels] == [(1, 32), (4, 8)]
    assert "conv" in read.unsupported[0].reason


def test_rows_that_cannot_be_priced_are_listed_with_their_reason(tmp_path):
    text = "device,m,n,k,latency_ms\nx,0,1,1,1\nx,1,1,1,-1\n"
    read = load_gemm_table(table(tmp_path, text))
    assert [row.row for row in read.unsupported] == ["0", "1"]


def test_forward_and_backward_of_one_row_are_two_kernels(tmp_path):
    head = (
        "backend,data_type,attn_mask,batch_size,q_seqlen,kv_seqlen,num_q_heads,num_kv_heads,"
        "head_dim_qk,fwd_time_ms,bwd_time_ms,sliding_window_size,gpu_name\n"
    )
    rows = "cudnn,bfloat16,top_left,1,512,512,8,2,64,1,3,,NVIDIA H200\n"
    rows += "cudnn,bfloat16,top_left,1,512,512,8,2,64,1,3,128,NVIDIA H200\n"
    read = load_attention_table(table(tmp_path, head + rows))
    assert [kernel.op.direction for kernel in read.kernels] == [Pass.FORWARD, Pass.BACKWARD]
    assert "window" in read.unsupported[0].reason


def test_decoding_is_not_training(tmp_path):
    text = "device,kernel_source,batch_size,isl,num_heads,head_dim,latency_ms\nx,fa3,1,1,8,64,1\n"
    assert "decoding" in load_attention_table(table(tmp_path, text)).unsupported[0].reason


def test_operators_with_one_and_two_operands_read_different_bytes(tmp_path):
    text = "op,device,latency_ms,B,H\nadd,x,1,10,10\naddu,x,1,10,10\nln,x,1,10,20\n"
    add, scalar, norm = load_memory_table(table(tmp_path, text)).kernels
    assert (add.op.read_bytes, scalar.op.read_bytes) == (800, 400)
    assert (norm.op.operator, norm.op.row_length, norm.op.dtype) == ("layer_norm", 20, DType.FP32)


@pytest.mark.parametrize("load", [load_gemm_table, load_attention_table, load_memory_table])
def test_a_table_of_something_else_is_refused(load, tmp_path):
    with pytest.raises(MeasurementError):
        load(table(tmp_path, "colour\nred\n"))
    with pytest.raises(MeasurementError):
        load(tmp_path / "missing.csv")
