"""Layers whose kernels a build without CUDA does not know."""

from __future__ import annotations

import pytest

from perfmodel.graph.ops import Attention, Convolution, Gemm, GroupedGemm, MemoryBound, Pass
from tests.extensions.emulation.emulating import emulate

pytest.importorskip("torch")


def test_groups_of_gemms_have_any_format_and_one_kernel_each(emulated):
    found = {(op.groups, op.m, op.n, op.k) for op in emulated("layers").ops() if is_grouped(op)}
    assert found == {(4, 16, 16, 32), (4, 32, 16, 16)}


def is_grouped(op):
    return isinstance(op, GroupedGemm)


def test_a_recurrent_layer_multiplies_its_state_step_by_step(emulated):
    gemms = [op for op in emulated("layers").ops() if isinstance(op, Gemm)]
    # 16 steps of 4 sequences in two layers; the input of all steps at once.
    assert sum((op.m, op.n, op.k) == (4, 256, 64) for op in gemms) == 2 * 16
    assert sum((op.m, op.n, op.k) == (4, 64, 256) for op in gemms) == 2 * 16
    assert sum((op.m, op.n, op.k) == (64, 256, 32) for op in gemms) >= 1


def test_wide_heads_and_trained_biases_have_a_fused_kernel(emulated):
    found = [op for op in emulated("layers").ops() if isinstance(op, Attention)]
    assert {(op.head_dim, op.direction) for op in found} == {
        (512, Pass.FORWARD), (64, Pass.FORWARD), (64, Pass.BACKWARD),
    }  # fmt: skip
    assert {op.kernel for op in found} == {"flash1"}


def test_compiled_convolutions_keep_their_channels_last(emulated):
    ops = emulated("layers").ops()
    convolutions = [op for op in ops if isinstance(op, Convolution)]
    assert len(convolutions) == 5
    # torch 1 has no tensor-core kernel for the gradient of weights of two groups of 16.
    [serial] = [op for op in convolutions if op.is_serial]
    assert (serial.groups, serial.m, serial.k) == (2, 16 * 9, 2 * 12 * 12)
    assert not [op for op in ops if isinstance(op, MemoryBound) and op.operator == "transpose"]


def test_extensions_in_cuda_are_kernels_that_touch_their_tensors(emulated):
    run = emulated("layers")
    [kernel] = [op for op in run.ops() if getattr(op, "operator", "") == "user_kernel"]
    assert kernel.read_bytes == kernel.write_bytes == 64 * 32 * 4
    assert "The extension mine is CUDA code and was not built" in run.stderr


def test_compressed_matrices_are_made_on_the_device_and_cpu_only_operators_refused(tmp_path):
    (tmp_path / "script.py").write_text(
        "import torch\n"
        "x = torch.ones(6, 4, device='cuda', requires_grad=True)\n"
        "a = torch.rand(6, 6, device='cuda')\n"
        "optimizer = torch.optim.SGD([x], 0.1)\n"
        "try:\n"
        "    torch.sparse.mm(a.to_sparse_csr(), x, 'amax')\n"
        "except RuntimeError as fault:\n"
        "    print(fault)\n"
        "for _ in range(4):\n"
        "    for b in (a.to_sparse_csr(), a.to_sparse_csc(),\n"
        "              a.to_sparse(layout=torch.sparse_csr)):\n"
        "        (b @ x).sum().backward()\n"
        "    assert (a.to_sparse_bsr((2, 2)) @ x).shape == x.shape\n"
        "    assert a.to_sparse(1).values().shape == (6, 6)\n"
        "    optimizer.step()\n"
    )
    run = emulate(tmp_path / "script.py", tmp_path, "--ranks", "1")
    assert "Could not run 'aten::_sparse_mm_reduce_impl'" in run.stdout
    assert run.code == 0, run.stderr
