"""The work that kernel names, grids and times are taken for, as recorded."""

from __future__ import annotations

from itertools import product
from typing import Any

from collectives.collective import CollectiveKind
from perfmodel.extensions.recordings.kernel_estimates import (
    estimate_collective,
    estimate_work,
    is_gemm_kernel,
)
from tests import recorded
from topologies import load_device

DEVICES = ("v100_sxm2_16gb", "h100_sxm", "a100_pcie_40gb")
DETAILS = (
    None,
    {"grid": [12, 6, 4], "block": [128, 1, 1]},
    # Extents that no launch has are not read.
    {"grid": [12, 6, 0], "block": [128, 1, 1]},
    {"grid": [12, 6, 4], "block": [128, 1.5, 1]},
    {"grid": [12, 6], "block": [2**31, 1, 1]},
)
NAMES = (
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn",
    "volta_sgemm_64x32_sliced1x4_nn",
    "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4>(Params)",
    "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, Array<char*, 3ul>>",
    "void at::native::elementwise_kernel<128, 2, BinaryFunctor<half>>",
    "void multi_tensor_apply_kernel<TensorListMetadata<4>, Adam<float>>",
    "void at::native::reduce_kernel<512, 1, ReduceOp<float>>",
    "flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>",
    "somebody_elses_kernel",
)


def kernels() -> dict[str, Any]:
    """By name, device and time, launched alone and as a batch."""
    found = {}
    for number, name in enumerate(NAMES):
        works = [
            repr(
                estimate_work(
                    name, time_ns, load_device(device), detail=detail, is_batched=is_batched
                )
            )
            for device, time_ns, detail in product(DEVICES, (1_500, 400_000), DETAILS)
            for is_batched in (False, True)
        ]
        found[f"{number}: {name}"] = [is_gemm_kernel(name), *works]
    return found


def transfers() -> dict[str, Any]:
    """By kind, device and number of ranks."""
    return {
        f"{kind.value}, {device}": [
            estimate_collective(kind, 300_000, ranks, load_device(device)).size_bytes
            for ranks in (2, 8)
        ]
        for kind, device in product(CollectiveKind, DEVICES)
    }


def values() -> dict[str, Any]:
    """All grids."""
    return {**kernels(), **transfers()}


def test_estimates_are_as_recorded():
    recorded.check(__file__, values())
