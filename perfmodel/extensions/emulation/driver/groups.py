"""Groups: torch's own process groups, with the collectives that they really ask NCCL for.

Ranks meet in a store on files. A rank whose group begins with one that does not run gets the
identity of its communicator from a rule that all its members follow.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.distributed import distributed_c10d as c10d

from perfmodel.extensions.emulation.driver.descriptions import DTYPE_WORDS, script_line
from perfmodel.extensions.emulation.driver.recorder import Recorder
from perfmodel.extensions.emulation.rank_record import GroupRecord
from perfmodel.extensions.emulation.workers import NEEDS_ALL_RANKS, WorkerOrder

_CALLS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send",
    "recv",
)  # fmt: skip
_SEND = _CALLS.index("send")
"""Names of the driver's calls; from this one on, they have a peer."""
_FORMATS = (
    "int8", "uint8", "int32", "int32", "int64", "int64", "float16", "float32", "float64",
    "bfloat16", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
"""Number formats by NCCL's numbers."""
_dist: Any = dist
_c10d: Any = c10d
_mesh: Any = device_mesh
"""Modules whose type stubs lack what C++ defines."""
_PAIRS = ("send", "recv_")
"""Operators whose third argument is the peer."""
_MERGED = {
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "allgather_": "all_gather",
    "barrier": "barrier",
}
"""Operators of torch that make several calls of NCCL, or one that stands for another."""


class Groups:
    """The groups of one rank of *order*, and the calls in them."""

    def __init__(self, driver: Any, recorder: Recorder, order: WorkerOrder, rank: int) -> None:
        self.records: dict[str, GroupRecord] = {}
        self._driver, self._recorder, self._rank = driver, recorder, rank
        self._world_size = order.request.ranks
        self._running = frozenset(order.ranks)
        self._path = os.path.join(order.folder, "store")  # noqa: PTH118  torch wants a text
        # The driver keeps the address of each word.
        self._names: dict[str, tuple[int, bytes]] = {}
        self._parts: list[dict[str, Any]] | None = None
        self._peer: int | None = None
        self._init = c10d.init_process_group
        self._make = c10d._new_process_group_helper

    def install(self) -> None:
        """Let groups meet in our store, and see how they are made."""
        _c10d._new_process_group_helper = self._make_group
        # Nothing is timed, and no rank is waited for that does not run.
        _c10d._store_based_barrier = lambda *_, **__: None
        logger: Any = torch._C._distributed_c10d.Logger
        logger.set_runtime_stats_and_log = lambda _: None
        for module in (_dist, _c10d, _mesh):
            module.init_process_group = self._init_process_group

    def _init_process_group(self, backend: Any = None, *_: Any, **words: Any) -> None:
        size, own = words.get("world_size", -1), words.get("rank", -1)
        if size not in (-1, self._world_size) or own not in (-1, self._rank):
            raise RuntimeError(
                f"{script_line()}: init_process_group makes this process rank {own} of {size}, "
                f"but it is emulated as rank {self._rank} of {self._world_size}. Give --ranks "
                f"{size}, or let the script take its rank from the environment."
            )
        kept = {name: words[name] for name in ("timeout", "pg_options") if name in words}
        store: Any = _dist.FileStore(self._path, -1)
        if len(self._running) < self._world_size:
            store = _Store(store)
        self._init(backend, store=store, world_size=self._world_size, rank=self._rank, **kept)

    def _make_group(self, size: int, rank: int, ranks: Any, *args: Any, **words: Any) -> Any:
        members = tuple(ranks) or tuple(range(self._world_size))
        made = self._make(size, rank, ranks, *args, **words)
        name = getattr(made[0], "group_name", "")
        if name:
            family = f"{script_line()} {words.get('group_desc') or ''} {len(members)}"
            self.records.setdefault(name, GroupRecord(name, members, family))
        return made

    def call(self, word: str, kernel: Callable[..., Any], keys: Any, *args: Any, **kw: Any) -> Any:
        """Run an operator of torch.distributed on a group."""
        self._recorder.check_running()
        boxed = next(
            one
            for one in (*args, *kw.values())
            if isinstance(one, torch.ScriptObject) and "ProcessGroup" in str(one._type())
        )
        group = dist.ProcessGroup.unbox(boxed)
        record = self.records[group.group_name]
        runs = "".join("01"[rank in self._running] for rank in record.ranks).encode()
        number, runs = self._names.setdefault(record.name, (len(self._names), runs))
        self._driver.announce(number, len(record.ranks), runs)
        self._recorder.flush()
        self._parts = [] if word in _MERGED else None
        # A pair may have a communicator of its own, in which its ranks are 0 and 1.
        self._peer = args[2] if word in _PAIRS else None
        try:
            return kernel(keys, *args, **kw)
        finally:
            self._recorder.flush()
            if self._parts:
                self._join(_MERGED[word])
            self._parts = None

    def add(self, number: int, thread: int, stream: int) -> None:
        """A call of NCCL that the driver noted."""
        table = self._driver.collectives
        call, size_bytes, dtype, peer, group = table[number % len(table)]
        record = self.records[list(self._names)[group]]
        is_pair = call >= _SEND
        if is_pair and self._peer is not None:
            peer = self._peer
        words = {
            "call": _CALLS[call],
            "group": record.name,
            "bytes": size_bytes,
            "dtype": DTYPE_WORDS[f"torch.{_FORMATS[dtype]}"],
            "root": 0 if is_pair else peer,
            "peer": record.ranks[peer] if is_pair else None,
            "splits": None,
            "line": script_line(),
        }
        if self._parts is not None:
            self._parts.append(words | {"place": (thread, stream)})
            return
        if is_pair and record.ranks[peer] not in self._running:
            self._recorder.notes[
                f"rank {self._rank} communicates with rank {record.ranks[peer]} ({script_line()})"
            ] = None
            raise SystemExit(NEEDS_ALL_RANKS)
        self._recorder.communicate(words, thread, stream)

    def _join(self, call: str) -> None:
        """One call for the messages that an operator is made of."""
        parts = self._parts or []
        thread, stream = parts[0]["place"]
        sent = [one["bytes"] for one in parts if one["call"] == "send"]
        whole = parts[0] | {"call": call, "peer": None, "splits": sent or None}
        moved = sum(sent) or sum(one["bytes"] for one in parts if one["call"] != "recv")
        whole["bytes"] = 0 if call == "barrier" else moved
        del whole["place"]
        self._recorder.communicate(whole, thread, stream)


class _Store(_dist.Store):  # type: ignore[misc]  # a class of C++
    """A store in which the identity of a communicator follows from its key.

    So members agree on it whether or not the one that makes it runs, and comes first. Other keys
    that nobody has written have such a value, too.
    """

    def __init__(self, store: Any) -> None:
        super().__init__()
        self._store = store

    def get(self, key: str) -> bytes:
        """The value of *key*."""
        return bytes(self._store.get(key)) if self._store.check([key]) else _identity(key)

    def set(self, key: str, value: bytes) -> None:
        """Give *key* a value."""
        self._store.set(key, _identity(key) if len(value) == len(_identity(key)) else value)

    def wait(self, keys: list[str], *_: Any) -> None:
        """Nothing is waited for: `get` answers for those that do not come."""


def _identity(key: str) -> bytes:
    return hashlib.sha512(key.encode()).digest() * 2


def _forward(name: str) -> Callable[..., Any]:
    return lambda store, *args: getattr(store._store, name)(*args)


# C++ looks for functions of the class.
for _name in ("add", "check", "compare_set", "delete_key"):
    setattr(_Store, _name, _forward(_name))
