"""What an iteration trains is counted from what a script moves to the device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.extensions.emulation.batches import Batch, count_batch
from perfmodel.extensions.emulation.rank_record import CallType, GroupRecord, IterationRecord
from perfmodel.extensions.emulation.request import Emulation
from tests.extensions.emulation.test_communicators import collective, record


def moving(*copies, backwards=1, values=0):
    """A record whose only iteration moves tensors of these shapes and formats."""
    kinds = [
        {
            "operator": "host_to_device", "inputs": [], "outputs": [["", list(shape), dtype, 0]],
            "arguments": {"checksum": values},
        }
        for shape, dtype in copies
    ]  # fmt: skip
    calls = [(CallType.KERNEL, place, 1, 0, place) for place in range(len(kinds))]
    return replace(
        record(0, []), kinds=tuple(kinds), calls=tuple(calls), boundaries=(0, len(calls)),
        operator_names=("to",) * len(calls), first_steady=0,
        iterations=(IterationRecord(backward_passes=backwards),),
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
        # A pipeline moves one batch and splits it on the device.
        (TOKENS, {"backwards": 2}, Batch(12, 12 * 1024)),
        # A mask that is made on the host is no batch.
        ([*TOKENS, ((1024, 1024), "fp32")], {}, Batch(12, 12 * 1024)),
        # Nor are tables of a diffusion's 1,000 steps, however many there are.
        ([*IMAGES, *3 * [((1000,), "fp64")]], {}, Batch(256, 0)),
        # Weights of losses and masks of attention come with tokens.
        (
            [*TOKENS, ((12, 1024), "fp32"), ((12, 1, 1024, 1024), "int8")],
            {},
            Batch(12, 12 * 1024),
        ),
        # Two losses of one batch are no second batch.
        (IMAGES, {"backwards": 2}, Batch(256, 0)),
        (TOKENS, {"stated": 24}, Batch(24, 24 * 1024)),
        ([((1,), "fp32")], {}, Batch(0, 0)),
    ],
)
def test_samples_are_the_first_size_of_the_largest_tensor_of_every_pass(copies, more, found):
    counted = batch(*copies, **more)
    assert (counted.samples, counted.tokens) == (found.samples, found.tokens)


def sharing(rank, values, *groups, calls=()):
    """A record that moves *values* after *calls* of its main thread, and ends its backward pass."""
    made = moving(*TOKENS, values=values)
    collectives = tuple(
        collective() | {"group": "g", "bytes": 12 * 1024 * 8} | one for one in calls
    )
    forward = [(CallType.COLLECTIVE, place, 1, 0, 0) for place in range(len(calls))]
    return replace(
        made, rank=rank, groups=tuple(groups), collectives=collectives,
        calls=(*made.calls, *forward, (CallType.RECORD, 0, 2, 0, 0)),
        boundaries=(0, len(made.calls) + len(forward) + 1),
    )  # fmt: skip


def counted(*records, ranks):
    request = Emulation(("-m", "x"), ranks, "h100_sxm")
    return count_batch(request, {one.rank: one for one in records}).samples


PAIRS = tuple(GroupRecord(f"t{first}", (first, first + 1), "mesh_tp 2") for first in (0, 2, 4, 6))
COLUMNS = tuple(
    GroupRecord(f"d{first}", tuple(range(first, 8, 2)), "mesh_dp 4") for first in (0, 1)
)
EVERYONE = GroupRecord("g", tuple(range(8)), "world 8")


def test_ranks_of_a_group_that_move_the_same_values_count_once():
    groups = (EVERYONE, *PAIRS, *COLUMNS)
    some = [sharing(rank, rank // 2 + 1, *groups) for rank in (0, 1, 4, 7)]
    assert counted(*some, ranks=8) == 4 * 12


@pytest.mark.parametrize(
    ("calls", "batches"),
    [
        # The same seed everywhere, gradients are reduced by the backward pass.
        ([], 8),
        # Activations are reduced before it: one batch.
        ([{}], 1),
        ([{"bytes": 8}], 8),
        ([{"call": "all_gather"}], 8),
        # Each rank sends to one other.
        ([{"call": "send", "peer": 1}], 4),
    ],
)
def test_equal_values_on_all_ranks_are_one_batch_if_activations_are_exchanged(calls, batches):
    some = [
        sharing(rank, 1, EVERYONE, calls=[
            call | ({"peer": rank ^ call["peer"]} if "peer" in call else {}) for call in calls
        ])
        for rank in range(8)
    ]  # fmt: skip
    assert counted(*some, ranks=8) == batches * 12
