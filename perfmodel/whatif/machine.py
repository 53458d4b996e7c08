"""Machine: where a job is said to run, by name, so that its work can be priced."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from perfmodel.costs.stack_files import load_stack
from perfmodel.costs.stacks import SoftwareStack
from topologies import Cluster, build_cluster, load_topology

DEFAULT_STACK = "pytorch_eager"


@dataclass(frozen=True, slots=True)
class Machine:
    """A topology by name or file, with as many hosts as the ranks of a job need.

    *hosts* spreads the ranks over that many hosts instead.
    """

    topology: str
    hosts: int | None = None
    stack: str = DEFAULT_STACK

    def cluster(self, rank_count: int) -> Cluster:
        """The machine with room for *rank_count* ranks."""
        return _build(self.topology, self.hosts, rank_count)

    def load_stack(self) -> SoftwareStack:
        """The software that runs on it."""
        return load_stack(self.stack)


@lru_cache(maxsize=16)
def _build(topology: str, hosts: int | None, rank_count: int) -> Cluster:
    loaded = load_topology(topology)
    needed = -(-rank_count // loaded.gpus_per_host) if hosts is None else hosts
    return build_cluster(loaded, hosts=needed, ranks_per_host=-(-rank_count // needed))
