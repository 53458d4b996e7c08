"""torch.distributed on virtual groups, for any backend name.

torch's own functions make the groups, from a store and a backend of ours, so that sub-groups,
meshes and object collectives are torch's own code.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.device_mesh as mesh
from torch.distributed import distributed_c10d as c10d

from perfmodel.extensions.emulation.device.descriptions import script_line
from perfmodel.extensions.emulation.device.exchange import PeerExchange
from perfmodel.extensions.emulation.device.groups import VirtualGroup
from perfmodel.extensions.emulation.rank_record import GroupRecord

_BACKEND = "perfmodel"


class Distributed:
    """Replaces how groups are made; *groups* are those that the script made."""

    def __init__(self, exchange: PeerExchange, *, world_size: int) -> None:
        self.groups: dict[str, GroupRecord] = {}
        self._exchange = exchange
        self._world_size = world_size
        self._backend_word = "nccl"
        self._pending: tuple[tuple[int, ...], str] = ((), "")
        self._init = c10d.init_process_group
        self._new_group = c10d.new_group
        self._make = c10d._new_process_group_helper

    def install(self) -> None:
        """Install the virtual backend."""
        dist.Backend.register_backend(
            _BACKEND,
            lambda *_, **__: VirtualGroup(self._exchange, *self._pending),
            devices=["cpu", "cuda"],
        )
        for module in (dist, c10d, mesh):
            for name, function in {
                "init_process_group": self._init_process_group,
                "new_group": self._new_process_group,
                "get_backend": self._get_backend,
                "is_nccl_available": lambda: True,
            }.items():
                if hasattr(module, name):
                    setattr(module, name, function)
        c10d._NCCL_AVAILABLE = True
        c10d._new_process_group_helper = self._make_group
        # Nothing is timed, and no rank is waited for.
        c10d._store_based_barrier = lambda *_, **__: None
        torch._C._distributed_c10d.Logger.set_runtime_stats_and_log = lambda _: None

    def _init_process_group(
        self,
        backend: str | None = None,
        init_method: str | None = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        *_: Any,
        **__: Any,
    ) -> None:
        del init_method
        size = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
        own = rank if rank >= 0 else int(os.environ.get("RANK", "0"))
        if size != self._world_size or own != self._exchange.rank:
            raise RuntimeError(
                f"{script_line()}: init_process_group makes this process rank {own} of {size}, "
                f"but it is emulated as rank {self._exchange.rank} of {self._world_size}. Give "
                f"--ranks {size}, or let the script take its rank from the environment."
            )
        self._backend_word = "nccl" if backend is None else str(backend).lower()
        self._init(_BACKEND, store=self._exchange.store, world_size=size, rank=own, timeout=timeout)

    def _new_process_group(
        self,
        ranks: Any = None,
        timeout: Any = None,
        backend: Any = None,
        pg_options: Any = None,
        use_local_synchronization: bool = False,
        group_desc: str | None = None,
        device_id: Any = None,
        **_: Any,
    ) -> Any:
        del backend, pg_options, device_id
        return self._new_group(
            ranks,
            timeout,
            _BACKEND,
            None,
            use_local_synchronization=use_local_synchronization,
            group_desc=group_desc,
        )

    def _make_group(
        self, group_size: int, group_rank: int, ranks: Any, *args: Any, **kwargs: Any
    ) -> Any:
        members = tuple(ranks) or tuple(range(self._world_size))
        name = str(kwargs.get("group_name", args[2] if len(args) > 2 else ""))
        description = kwargs.get("group_desc") or ""
        family = f"{script_line()} {description} {len(members)}"
        self.groups.setdefault(name, GroupRecord(name, members, family))
        self._pending = (members, name)
        made = self._make(group_size, group_rank, ranks, *args, **kwargs)
        if isinstance(made[0], VirtualGroup):
            made[0].name_it(name, self._get_backend())
        return made

    def _get_backend(self, *_: Any, **__: Any) -> str:
        # Of a list of backends by device, the one of the device.
        return "nccl" if "nccl" in self._backend_word else self._backend_word
