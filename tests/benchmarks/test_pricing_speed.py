import time

import numpy as np
import pytest

from perfmodel.base.dtypes import DType
from perfmodel.costs.models import price_ops
from perfmodel.graph.ops import Gemm
from perfmodel.stacks.profiles import load_stack
from topologies import load_device

pytestmark = pytest.mark.benchmark


def test_a_product_priced_with_a_hundred_thousand_others_takes_a_tenth_of_one_alone():
    sizes = np.random.default_rng(0).integers(1, 16_384, (100_000, 3)).tolist()
    ops = [Gemm(m, n, k, DType.BF16) for m, n, k in sizes]
    device, stack = load_device("h100_sxm"), load_stack("pytorch_fused")
    price_ops(ops[:10], device=device, stack=stack)  # compiles
    started = time.process_time()
    price_ops(ops, device=device, stack=stack)
    together = time.process_time() - started
    started = time.process_time()
    for op in ops[:300]:
        price_ops([op], device=device, stack=stack)
    alone = (time.process_time() - started) / 300
    print(f"100,000 at once {together:.2f} s; one alone {alone * 1e6:.0f} us")
    # Both in one run: how many seconds it takes is a matter of the machine.
    assert alone > 10 * together / len(ops)
