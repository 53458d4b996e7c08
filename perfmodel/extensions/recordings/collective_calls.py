"""Collective calls: the communication kernels of a trace.

Newer traces name the collective, its size and its group. Older ones only have the kernel name;
there, the tensors of the operator around the launch may give the size.
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
from perfmodel.extensions.recordings.operator_calls import call_of_detail, whole_number
from perfmodel.extensions.recordings.operators.calls import OperatorCall
from perfmodel.extensions.recordings.rank_view import NO_OPERATOR, RankView

WORLD = "world"
_KIND_PATTERNS = (
    ("reduce_scatter|reducescatter", CollectiveKind.REDUCE_SCATTER),
    ("all_gather|allgather", CollectiveKind.ALL_GATHER),
    ("all_to_all|alltoall", CollectiveKind.ALL_TO_ALL),
    ("all_reduce|allreduce", CollectiveKind.ALL_REDUCE),
    ("broadcast", CollectiveKind.BROADCAST),
    ("barrier", CollectiveKind.BARRIER),
    ("reduce", CollectiveKind.REDUCE),
    ("sendrecv", CollectiveKind.ALL_TO_ALL),
    ("send|recv", CollectiveKind.SEND_RECV),
)
"""The first pattern that is in the name of a kernel or call decides."""
_TORCH_DTYPES = {"byte": DType.INT8, "char": DType.INT8, "bool": DType.INT8}


@dataclass(frozen=True, slots=True)
class CollectiveKernel:
    """One communication kernel: the device task, its group, and what all members must agree on.

    *collective* is None if the trace does not give the size, and *is_estimated* if the size is
    only what fits into the time.
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
) -> tuple[CollectiveKernel, ...]:
    """The communication kernels of a rank by start.

    *executed* holds calls, by row, that an execution trace describes better.
    """
    device, trace = view.device, view.trace
    tasks = np.flatnonzero(device.is_collective).tolist()
    if not tasks:
        return ()
    details = {task: trace.detail_of(int(device.row[task])) for task in tasks}
    stated = {task for task in tasks if details[task].get("Collective name")}
    names_on: dict[int, set[str]] = {}
    for task in sorted(stated):
        names_on.setdefault(int(device.stream[task]), set()).add(_group_name(details[task]))
    operators, ranks_of_group = view.operators_of_tasks(), _stated_groups(view)
    streams: dict[int, int] = {}
    calls = []
    for task in tasks:
        if task in stated:
            calls.append(_stated_call(task, details[task], ranks_of_group))
            continue
        stream, row = int(device.stream[task]), int(operators[task])
        place = streams.setdefault(stream, len(streams))
        # Kernels launched before the window name no group: they are in the one of their stream.
        names = names_on.get(stream, set())
        group = next(iter(names)) if len(names) == 1 else f"{WORLD} {place}" if place else WORLD
        word = view.task_name(task).split("(")[0].split("<")[0]
        call = CollectiveKernel(task, group, None, (word,), kind_of_name(word), None)
        calls.append(call if row == NO_OPERATOR else _with_tensors(view, call, row, executed or {}))
    return tuple(calls)


def _with_tensors(
    view: RankView, found: CollectiveKernel, row: int, executed: Mapping[int, OperatorCall]
) -> CollectiveKernel:
    """The same call with the size that the tensors of the operator in *row* give."""
    name = view.trace.name_of(row)
    call = executed.get(row) or call_of_detail(name, view.trace.detail_of(row))
    kind = kind_of_name(name) or found.kind
    if call is None or not call.tensors or kind is None or not name.startswith(("nccl:", "c10d::")):
        return found
    size_bytes = sum(tensor.size_bytes for argument in call.arguments[:1] for tensor in argument)
    if kind is CollectiveKind.ALL_GATHER:
        # The input is one rank's part; sizes count the whole.
        size_bytes *= view.trace.world_size
    if not size_bytes:
        return found
    return replace(found, kind=kind, collective=Collective(kind, size_bytes, call.tensors[0].dtype))


def _group_name(detail: dict[str, Any]) -> str:
    word = str(detail.get("Process Group Name", WORLD))
    return f"{word} {detail.get('Process Group Description') or ''}".strip()


def _stated_call(
    task: int, detail: dict[str, Any], ranks_of_group: dict[str, tuple[int, ...]]
) -> CollectiveKernel:
    name, word = str(detail["Collective name"]), str(detail.get("Process Group Name", WORLD))
    kind, group = kind_of_name(name), _group_name(detail)
    ranks = _ranks(detail.get("Process Group Ranks")) or ranks_of_group.get(word)
    peers = (detail.get("Src Rank"), detail.get("Dst Rank"))
    if kind is CollectiveKind.SEND_RECV and all(isinstance(peer, int) for peer in peers):
        low, high = sorted(peer for peer in peers if isinstance(peer, int))
        group, ranks = f"{group} {low}-{high}", (low, high)
    values = max(whole_number(detail.get(f"{way} msg nelems")) for way in ("In", "Out"))
    is_even = kind not in (CollectiveKind.ALL_TO_ALL, CollectiveKind.SEND_RECV)
    signature = (kind or name, values if is_even else 0)
    dtype, collective = dtype_of_word(detail.get("dtype")), None
    if kind is not None and values and dtype is not None:
        collective = Collective(kind, values * dtype.size_bytes, dtype)
    return CollectiveKernel(task, group, ranks, signature, kind, collective)


def dtype_of_word(word: object) -> DType | None:
    """The number format that a trace calls *word*; None if it is unknown."""
    text = str(word or "")
    try:
        return _TORCH_DTYPES.get(text.lower()) or parse_dtype(text)
    except InputError:
        return None


def kind_of_name(name: str) -> CollectiveKind | None:
    """The kind of collective of a kernel or call with this *name*."""
    word = name.lower()
    return next((kind for pattern, kind in _KIND_PATTERNS if re.search(pattern, word)), None)


def _stated_groups(view: RankView) -> dict[str, tuple[int, ...]]:
    info = view.trace.properties.get("distributedInfo")
    groups = info.get("pg_config") if isinstance(info, dict) else None
    return {
        str(group["pg_name"]): ranks
        for group in (groups if isinstance(groups, list) else ())
        if isinstance(group, dict) and "pg_name" in group and (ranks := _ranks(group.get("ranks")))
    }


def _ranks(value: object) -> tuple[int, ...] | None:
    """Ranks of a group; the profiler cuts long lists short with dots, which makes them useless."""
    if isinstance(value, list) and all(isinstance(rank, int) for rank in value):
        return tuple(value) or None
    if isinstance(value, str) and "..." not in value:
        return tuple(int(number) for number in re.findall(r"\d+", value)) or None
    return None
