"""What an iteration trains is counted from what a script moves to the device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.emulation.batches import Batch, count_batch
from perfmodel.emulation.rank_record import CallType
from perfmodel.emulation.request import Emulation
from tests.emulation.test_communicators import record


def moving(*copies, backwards=1):
    """A record whose only iteration moves tensors of these shapes and formats."""
    kinds = [
        {"operator": "host_to_device", "inputs": [], "outputs": [["", list(shape), dtype, 0]]}
        for shape, dtype in copies
    ]
    calls = [(CallType.KERNEL, place, 1, 0, place) for place in range(len(kinds))]
    return replace(
        record(0, []), kinds=tuple(kinds), calls=tuple(calls), boundaries=(0, len(calls)),
        operator_names=("to",) * len(calls), first_steady=0, backward_count=backwards,
    )  # fmt: skip


def batch(*copies, backwards=1, ranks=1, stated=None):
    request = Emulation(("-m", "x"), ranks, "h100_sxm", samples_per_iteration=stated)
    return count_batch(request, {0: moving(*copies, backwards=backwards)})


TOKENS = [((12, 1024), "int64"), ((12, 1024), "int64")]
IMAGES = [((256, 3, 224, 224), "fp32"), ((256,), "int64")]


@pytest.mark.parametrize(
    ("copies", "more", "found"),
    [
        (TOKENS, {}, Batch(12, 12 * 1024)),
        # Inputs and targets of two micro-batches, on eight ranks.
        (2 * TOKENS, {"backwards": 2, "ranks": 8}, Batch(192, 192 * 1024)),
        # Two losses of one batch are no second batch.
        (IMAGES, {"backwards": 2}, Batch(256, 0)),
        (TOKENS, {"stated": 24}, Batch(24, 24 * 1024)),
        ([((1,), "fp32")], {}, Batch(0, 0)),
    ],
)
def test_samples_are_the_first_size_of_the_largest_tensor_of_every_pass(copies, more, found):
    assert batch(*copies, **more) == found
