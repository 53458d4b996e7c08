"""Vertices: the endpoints that links of a machine join.

A vertex may stand for several chips that software sees as one: the four
NVSwitch chips of a DGX H100 are one vertex with `chips=4`, because every GPU
spreads each transfer over all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from perfmodel.base.errors import TopologyError


class VertexKind(Enum):
    """What a vertex is; the value is the word used in files."""

    GPU = "gpu"
    NVSWITCH = "nvswitch"
    PCIE_SWITCH = "pcie_switch"
    CPU = "cpu"
    NIC = "nic"
    LEAF = "leaf"
    SPINE = "spine"


HOST_KINDS = (
    VertexKind.GPU,
    VertexKind.NVSWITCH,
    VertexKind.PCIE_SWITCH,
    VertexKind.CPU,
    VertexKind.NIC,
)


@dataclass(frozen=True, slots=True)
class Vertex:
    """An endpoint of links, the *index*-th of its *kind*."""

    kind: VertexKind
    index: int
    chips: int = 1
    reduces: bool = False

    def __post_init__(self) -> None:
        if self.index < 0 or self.chips < 1:
            raise TopologyError(
                f"vertex {self.name}: index must be 0 or more and chips 1 or more, "
                f"got index {self.index} and {self.chips} chips. Number vertices from 0."
            )
        if self.reduces and self.kind is not VertexKind.NVSWITCH:
            raise TopologyError(
                f"vertex {self.name}: only an nvswitch can reduce, got a {self.kind.value}. "
                "Leave `reduces` out."
            )

    @property
    def name(self) -> str:
        """The name links refer to it by, such as `gpu:3`."""
        return f"{self.kind.value}:{self.index}"
