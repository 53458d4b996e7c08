"""Collective calls: what the communication kernels of a trace say about themselves.

Newer traces name the collective, its size and its group. Older ones have only
the name of the kernel; then all ranks are one group and order alone counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from collectives.collective import Collective, CollectiveKind
from perfmodel.base.dtypes import DType, parse_dtype
from perfmodel.base.errors import InputError
from perfmodel.recordings.operator_calls import OperatorCall, call_of_detail
from perfmodel.recordings.rank_view import NO_OPERATOR, RankView

WORLD = "world"
_KIND_WORDS = (
    ("reduce_scatter", CollectiveKind.REDUCE_SCATTER),
    ("reducescatter", CollectiveKind.REDUCE_SCATTER),
    ("all_gather", CollectiveKind.ALL_GATHER),
    ("allgather", CollectiveKind.ALL_GATHER),
    ("all_to_all", CollectiveKind.ALL_TO_ALL),
    ("alltoall", CollectiveKind.ALL_TO_ALL),
    ("all_reduce", CollectiveKind.ALL_REDUCE),
    ("allreduce", CollectiveKind.ALL_REDUCE),
    ("broadcast", CollectiveKind.BROADCAST),
    ("barrier", CollectiveKind.BARRIER),
    ("reduce", CollectiveKind.REDUCE),
    ("sendrecv", CollectiveKind.ALL_TO_ALL),
    ("send", CollectiveKind.SEND_RECV),
    ("recv", CollectiveKind.SEND_RECV),
)
_TORCH_DTYPES = {"byte": DType.INT8, "char": DType.INT8, "bool": DType.INT8}
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One communication kernel: the device task, its group, and what it must have in common.

    *collective* is None where the trace does not tell the size, and *is_estimated* where the
    size is only what fits into the time.
    """

    task: int
    group: str
    ranks: tuple[int, ...] | None
    signature: tuple[object, ...]
    kind: CollectiveKind | None
    collective: Collective | None
    is_estimated: bool = False


def find_collective_calls(
    view: RankView, executed: Mapping[int, OperatorCall] | None = None
) -> tuple[CollectiveCall, ...]:
    """The communication kernels of a rank by start.

    *executed* are calls that an execution trace knows more about, by row.
    """
    is_needed = bool(view.device.is_collective.any())
    operators = view.operators_of_calls() if is_needed else np.empty(0, dtype=np.int64)
    streams: dict[int, int] = {}
    groups = _stated_groups(view)
    group_of_stream = _groups_of_streams(view)
    calls = []
    for task in np.flatnonzero(view.device.is_collective).tolist():
        row = int(view.device.row[task])
        detail = view.trace.detail_of(row)
        if detail.get("Collective name"):
            calls.append(_stated(task, detail, groups))
        else:
            stream = int(view.device.stream[task])
            place = streams.setdefault(stream, len(streams))
            group = group_of_stream.get(stream) or (WORLD if not place else f"{WORLD} {place}")
            found = _unstated(task, view.trace.name_of(row), group)
            launch = int(view.device.call[task])
            operator = int(operators[launch]) if launch >= 0 else NO_OPERATOR
            calls.append(_with_tensors(view, found, operator, executed or {}))
    return tuple(calls)


def _with_tensors(
    view: RankView, found: CollectiveCall, row: int, executed: Mapping[int, OperatorCall]
) -> CollectiveCall:
    """The same call with what the tensors of the operator around it say (nccl:all_to_all)."""
    if row == NO_OPERATOR:
        return found
    name = view.trace.name_of(row)
    call = executed.get(row) or call_of_detail(name, view.trace.detail_of(row))
    kind = kind_of_name(name) or found.kind
    if call is None or not call.tensors or kind is None or not name.startswith(("nccl:", "c10d::")):
        return found
    sizes_bytes = [tensor.size_bytes for argument in call.arguments[:1] for tensor in argument]
    size_bytes = sum(sizes_bytes)
    if kind is CollectiveKind.ALL_GATHER:
        # What goes in is one rank's part; sizes count the whole.
        size_bytes *= view.trace.world_size
    if not size_bytes:
        return found
    return replace(found, kind=kind, collective=Collective(kind, size_bytes, call.tensors[0].dtype))


def _groups_of_streams(view: RankView) -> dict[int, str]:
    """The group of each stream that has only one: kernels launched before the window say none."""
    found: dict[int, set[str]] = {}
    for task in np.flatnonzero(view.device.is_collective).tolist():
        detail = view.trace.detail_of(int(view.device.row[task]))
        if detail.get("Collective name"):
            stream = int(view.device.stream[task])
            found.setdefault(stream, set()).add(_group_name(detail))
    return {stream: names.pop() for stream, names in found.items() if len(names) == 1}


def _group_name(detail: dict[str, Any]) -> str:
    word = str(detail.get("Process Group Name", WORLD))
    return f"{word} {detail.get('Process Group Description') or ''}".strip()


def _stated(
    task: int, detail: dict[str, Any], groups: dict[str, tuple[int, ...]]
) -> CollectiveCall:
    name, word = str(detail["Collective name"]), str(detail.get("Process Group Name", WORLD))
    kind = kind_of_name(name)
    ranks = _ranks(detail.get("Process Group Ranks")) or groups.get(word)
    group = _group_name(detail)
    peers = (detail.get("Src Rank"), detail.get("Dst Rank"))
    if kind is CollectiveKind.SEND_RECV and all(isinstance(peer, int) for peer in peers):
        low, high = sorted(peer for peer in peers if isinstance(peer, int))
        group, ranks = f"{group} {low}-{high}", (low, high)
    values = max(_whole(detail.get("In msg nelems")), _whole(detail.get("Out msg nelems")))
    is_even = kind not in (CollectiveKind.ALL_TO_ALL, CollectiveKind.SEND_RECV)
    signature = (kind or name, values if is_even else 0)
    return CollectiveCall(task, group, ranks, signature, kind, _collective(kind, values, detail))


def _unstated(task: int, kernel: str, group: str) -> CollectiveCall:
    word = kernel.split("(")[0].split("<")[0]
    return CollectiveCall(task, group, None, (word,), kind_of_name(word), None)


def _collective(
    kind: CollectiveKind | None, values: int, detail: dict[str, Any]
) -> Collective | None:
    word = str(detail.get("dtype", ""))
    if kind is None or not values:
        return None
    try:
        dtype = _TORCH_DTYPES.get(word.lower()) or parse_dtype(word)
    except InputError:
        return None
    return Collective(kind, values * dtype.size_bytes, dtype)


def size_of_dtype(word: object) -> DType:
    """The number format that a trace calls *word*; fp32 where it says nothing we know."""
    text = str(word or "")
    try:
        return _TORCH_DTYPES.get(text.lower()) or parse_dtype(text)
    except InputError:
        return DType.FP32


def kind_of_name(name: str) -> CollectiveKind | None:
    """The kind of collective that a kernel or call of this *name* makes."""
    word = name.lower()
    return next((kind for prefix, kind in _KIND_WORDS if prefix in word), None)


def _stated_groups(view: RankView) -> dict[str, tuple[int, ...]]:
    info = view.trace.properties.get("distributedInfo")
    groups = info.get("pg_config") if isinstance(info, dict) else None
    found = {}
    for group in groups if isinstance(groups, list) else ():
        if isinstance(group, dict) and "pg_name" in group:
            ranks = _ranks(group.get("ranks"))
            if ranks:
                found[str(group["pg_name"])] = ranks
    return found


def _ranks(value: object) -> tuple[int, ...] | None:
    """Ranks of a group; long lists are cut short with dots by the profiler and not usable."""
    if isinstance(value, list) and all(isinstance(rank, int) for rank in value):
        return tuple(value) or None
    if isinstance(value, str) and "..." not in value:
        return tuple(int(number) for number in _NUMBERS.findall(value)) or None
    return None


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
