"""Steady iterations, and ranks that do the same."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.extensions.emulation.rank_record import DEVICE_SHIFT, CallType
from perfmodel.extensions.emulation.windows import Windows
from tests.extensions.emulation.test_communicators import collective, record

VIEW = {"operator": "aten.view.default"}
ADD = {
    "operator": "aten.add_.Scalar", "inputs": [["self", [4], "fp32", 16]], "outputs": [],
    "written": ["self"], "arguments": {"other": 1},
}  # fmt: skip


def on_device(index, *, other=1):
    stream = index << DEVICE_SHIFT
    calls = (
        (int(CallType.NOTE), 0, 1, 0, 0),
        (int(CallType.KERNEL), 1, 1, stream, 1),
        (int(CallType.COLLECTIVE), 0, 1, stream + 32, 2),
        (int(CallType.SYNC_DEVICE), index, 1, -1, -1),
    )
    kinds = (VIEW, {**ADD, "arguments": {"other": other}})
    return replace(
        record(0, [collective()]), calls=calls, kinds=kinds, boundaries=(0, 4),
        operator_names=("",) * 3,
    )  # fmt: skip


def signature(one):
    windows = Windows(one)
    return windows.signature(windows.chosen)


def test_ranks_on_different_devices_of_their_hosts_do_the_same():
    assert signature(on_device(0)) == signature(on_device(7))


def test_numbers_that_change_no_work_do_not_tell_ranks_apart():
    assert signature(on_device(0, other=1)) == signature(on_device(0, other=2))


def test_the_most_frequent_iteration_is_written():
    first, rest = on_device(0).calls, on_device(0).calls[1:]
    bounds = (0, 4, 7, 10)
    mixed = replace(on_device(0), calls=(*first, *rest, *rest), boundaries=bounds)
    windows = Windows(mixed)
    assert (windows.chosen, windows.distinct_count, windows.steady_count) == (1, 2, 3)
