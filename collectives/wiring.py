"""Wiring: what one group of ranks sees of the machines it runs on.

Groups that are translations of each other see the same wiring, so a job with
thousands of groups has a handful of wirings. Bandwidths are the datasheet's;
the calibration says what NCCL reaches of them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np

from perfmodel.base.errors import InputError

MAX_MESH_GPUS = 8
T = TypeVar("T")
Capacities = tuple[tuple[float, ...], ...]


@lru_cache(maxsize=256)
def pack_rings(capacities: Capacities) -> float:
    """Bandwidth of the best set of rings, given what each GPU can send each other one directly.

    A ring is a directed cycle through every GPU of the group. The best set is a linear programme
    over all cycles, which is small for existing meshes (8 GPUs).
    Zero when no cycle passes all GPUs. Beyond 8 GPUs the bound by the poorest GPU is taken.
    """
    count = len(capacities)
    matrix = np.array(capacities, dtype=float)
    if count > MAX_MESH_GPUS:
        return float(min(matrix.sum(axis=0).min(), matrix.sum(axis=1).min()))
    if count == 2:
        return float(min(matrix[0, 1], matrix[1, 0]))
    cycles = _usable_cycles(matrix)
    if not cycles.size:
        return 0.0
    return _best_packing(cycles, matrix)


def _usable_cycles(matrix: np.ndarray) -> np.ndarray:
    count = len(matrix)
    rest = np.array(list(itertools.permutations(range(1, count))), dtype=np.int64)
    cycles = np.hstack([np.zeros((len(rest), 1), dtype=np.int64), rest])
    exists = matrix[cycles, np.roll(cycles, -1, axis=1)] > 0
    usable: np.ndarray = cycles[exists.all(axis=1)]
    return usable


def _best_packing(cycles: np.ndarray, matrix: np.ndarray) -> float:
    from scipy.optimize import linprog  # heavy, and only meshes need it
    from scipy.sparse import csr_matrix

    count = len(matrix)
    wires = cycles * count + np.roll(cycles, -1, axis=1)
    columns = np.repeat(np.arange(len(cycles)), count)
    load = csr_matrix(
        (np.ones(wires.size), (wires.ravel(), columns)), shape=(count * count, len(cycles))
    )
    # In units of the widest wire: with bytes per second the solver takes 1e11 for infinite.
    widest = float(matrix.max())
    answer = linprog(
        -np.ones(len(cycles)),
        A_ub=load,  # type: ignore[call-overload]  # the stubs do not know sparse matrices
        b_ub=matrix.ravel() / widest,
    )
    assert answer.success, answer.message  # nothing sent is always possible
    return float(-answer.fun) * widest


def chain_bandwidth(capacities: Capacities) -> float:
    """Bandwidth of one chain or tree over the direct wires; zero when they do not join all GPUs.

    NCCL finds one such chain where no ring fits, over one lane: the thinnest wire bounds it.
    """
    matrix = np.array(capacities, dtype=float)
    steps = (matrix > 0) + np.eye(len(matrix))
    is_joined = np.linalg.matrix_power(steps, len(matrix))[0].all()
    return float(matrix[matrix > 0].min()) if is_joined else 0.0


class ByIdentity(Generic[T]):
    """A *value* as a key: equal when it is the same object, which it keeps alive."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.value is self.value


class HostLinkClass(Enum):
    """How the GPUs of a host reach each other; the value is the word used in files."""

    NVSWITCH = "nvswitch"
    NVLINK_MESH = "nvlink_mesh"
    PCIE_PEER = "pcie_peer"
    PCIE_HOST = "pcie_host"
    NONE = "none"

    @property
    def is_nvlink(self) -> bool:
        """Whether transfers inside the host take NVLink only."""
        return self in (HostLinkClass.NVSWITCH, HostLinkClass.NVLINK_MESH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """The numbers of a group that its cost depends on.

    *ring_bandwidth_bytes_per_s* is what all rings that fit in a host carry together past one
    GPU, one way; where no ring fits (*is_chain*) that of the chain taken instead.
    *pair_bandwidth_bytes_per_s* is what each GPU can send when all pairs of a host talk at once.
    *nic_bandwidth_bytes_per_s* is that of all NICs of a host that the group sends with;
    *nic_sharing* is how many ranks of the group share the busiest NIC, *net_latency_ns* what the
    wires and switches from NIC to NIC take, *call_latency_ns* what a call between hosts pays
    once; *doubling_loss* what a tree under reducing switches loses with hosts; *has_amd_cpu* is
    what NCCL asks of the host before it plans with the network. With *is_peer_assumed* it is
    unknown whether PCIe traffic between GPUs stops in host
    memory; with *is_of_table* the host is the very one that a table was measured on; with
    *is_unseen* its GPU is of a generation without measurements.
    *nic_unevenness* is how much more than its share the busiest NIC carries if all ranks send
    alike. *sound* is what the group would see without faults.
    *pair_oversubscription* is how much the spine slows traffic between all pairs of hosts; rings
    and trees run between neighbours and seldom cross it.
    """

    topology_name: str
    measured: str
    architecture: str
    rank_count: int
    host_count: int
    ranks_per_host: int
    link_class: HostLinkClass
    ring_bandwidth_bytes_per_s: float
    pair_bandwidth_bytes_per_s: float
    is_chain: bool = False
    is_peer_assumed: bool = False
    is_of_table: bool = False
    is_unseen: bool = False
    can_reduce_in_switch: bool = False
    can_reduce_in_network: bool = False
    nic_bandwidth_bytes_per_s: float = 0.0
    nic_sharing: int = 1
    nic_count: int = 0
    nic_unevenness: float = 1.0
    pair_oversubscription: float = 1.0
    net_latency_ns: float = 0.0
    call_latency_ns: float = 0.0
    has_amd_cpu: bool = False
    doubling_loss: float = 0.0
    host_link: str = ""
    nic_link: str = ""
    sound: Wiring | None = None

    def busiest_link(self, gpu_ns: float, nic_ns: float, *, is_pairwise: bool) -> str:
        """The link that decides, given how long those of a GPU and the NICs are busy.

        Rings and trees run between neighbours; exchanges of all pairs cross the spine.
        """
        if is_pairwise and nic_ns * self.pair_oversubscription > max(gpu_ns, nic_ns):
            return "leaf -> spine"
        return self.nic_link if nic_ns > gpu_ns else self.host_link

    def __post_init__(self) -> None:
        if not 1 <= self.host_count <= self.rank_count:
            raise InputError(
                f"wiring: hosts must be between 1 and the number of ranks, got "
                f"{self.host_count} hosts for {self.rank_count} ranks."
            )
        if self.host_count > 1 and self.nic_bandwidth_bytes_per_s <= 0:
            raise InputError(
                f"wiring on {self.topology_name}: {self.host_count} hosts need a network, and "
                "the topology has no fabric. Add one, or keep the group on one host."
            )
