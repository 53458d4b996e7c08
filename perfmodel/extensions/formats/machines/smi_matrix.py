"""The matrix of `nvidia-smi topo -m`: how every two GPUs and NICs are joined.

NV# is # NVLink lanes. PIX and PXB share a PCIe switch, PHB and NODE a socket, SYS neither. NVLink
hides how two GPUs are joined by PCIe, so the NUMA column decides then.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse.csgraph import connected_components

from perfmodel.base.errors import TopologyError
from perfmodel.extensions.formats.machines.host import Host, Place

_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_RELATION = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|PSB")
_SAME_SWITCH = ("PIX", "PXB", "PSB")
_FEWEST_SWITCHED = 3


def is_matrix(text: str) -> bool:
    """Whether *text* is such a matrix."""
    return re.search(r"^\s*GPU0\s+X\b", _ESCAPE.sub("", text), re.MULTILINE) is not None


@dataclass(frozen=True, slots=True)
class Matrix:
    """Names in order, the relation of every two, and the NUMA domain where it is stated."""

    names: tuple[str, ...]
    relation: dict[tuple[str, str], str]
    numa: dict[str, str]

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs."""
        return tuple(name for name in self.names if name.startswith("GPU"))

    @property
    def nics(self) -> tuple[str, ...]:
        """Everything else."""
        return tuple(name for name in self.names if not name.startswith("GPU"))


def parse_matrix(text: str, document: str) -> Matrix:
    """The matrix in *text*."""
    lines = [line for line in _ESCAPE.sub("", text).splitlines() if line.strip()]
    first = next(number for number, line in enumerate(lines) if line.split()[0] == "GPU0")
    heading = lines[first].split()
    if "X" in heading:
        raise TopologyError(f"{document}: the line of names above the matrix is missing.")
    names = heading[: heading.index("CPU")] if "CPU" in heading else heading
    relation: dict[tuple[str, str], str] = {}
    numa: dict[str, str] = {}
    for line in lines[first + 1 :]:
        name, *cells = line.split()
        if name not in names:
            break
        found = cells[: len(names)]
        if len(found) < len(names) or not all(map(_RELATION.fullmatch, found)):
            raise TopologyError(
                f"{document}: line {name} must have one of X, NV#, PIX, PXB, PHB, NODE or SYS for "
                f"each of {len(names)} columns, got {' '.join(found)}."
            )
        if (name, name) in relation:
            raise TopologyError(f"{document}: has two lines for {name}.")
        relation |= {(name, other): word for other, word in zip(names, found, strict=True)}
        rest = cells[len(names) :]
        if rest:
            numa[name] = rest[1] if len(rest) > 1 and "-" in rest[0] else rest[0]
    missing = [name for name in names if (name, name) not in relation]
    if missing:
        raise TopologyError(f"{document}: has no line for {', '.join(missing)}.")
    for (one, other), word in relation.items():
        if relation[other, one] != word or (word == "X") != (one == other):
            raise TopologyError(
                f"{document}: {one} is joined to {other} by {word}, and back by "
                f"{relation[other, one]}. Both must be the same."
            )
    return Matrix(tuple(names), relation, numa)


def to_host(matrix: Matrix, document: str, *, most_lanes: int) -> Host:
    """The host of *matrix*, whose GPUs have at most so many NVLink lanes."""
    gpus, nics = matrix.gpus, matrix.nics
    number = {name: index for group in (gpus, nics) for index, name in enumerate(group)}
    sockets = _groups(matrix, lambda one, other: _is_same_socket(matrix, one, other))
    switches = _groups(matrix, lambda one, other: matrix.relation[one, other] in _SAME_SWITCH)
    host = Host(len(gpus), len(nics), [], [])
    for index, members in enumerate(sockets):
        direct = Place()
        host.sockets.append(direct)
        for group in switches:
            if group[0] not in members:
                continue
            place = Place(socket=index) if len(group) > 1 else direct
            place.gpus += [number[name] for name in group if name in gpus]
            place.nics += [number[name] for name in group if name in nics]
            if place is not direct:
                host.switches.append(place)
    _add_nvlink(host, matrix, document, most_lanes)
    return host


def _groups(matrix: Matrix, is_joined: Callable[[str, str], bool]) -> list[list[str]]:
    """Names in groups, such that any two that are joined are in one."""
    joined = np.array([[is_joined(one, other) for other in matrix.names] for one in matrix.names])
    labels = connected_components(joined, directed=False)[1].tolist()
    groups: dict[int, list[str]] = {}
    for name, label in zip(matrix.names, labels, strict=True):
        groups.setdefault(label, []).append(name)
    return list(groups.values())


def _is_same_socket(matrix: Matrix, one: str, other: str) -> bool:
    word = matrix.relation[one, other]
    if word.startswith("NV"):
        return matrix.numa.get(one) is not None and matrix.numa.get(one) == matrix.numa.get(other)
    return word != "SYS"


def _add_nvlink(host: Host, matrix: Matrix, document: str, most_lanes: int) -> None:
    lanes = {
        (a, b): int(word.removeprefix("NV"))
        for a, one in enumerate(matrix.gpus)
        for b, other in enumerate(matrix.gpus)
        if a < b and (word := matrix.relation[one, other]).startswith("NV")
    }
    of_gpu = [
        sum(count for pair, count in lanes.items() if gpu in pair) for gpu in range(host.gpu_count)
    ]
    if max(of_gpu, default=0) <= most_lanes:
        host.lanes = lanes
        return
    counts = set(lanes.values())
    is_complete = len(lanes) == host.gpu_count * (host.gpu_count - 1) // 2
    if len(counts) > 1 or not is_complete or host.gpu_count < _FEWEST_SWITCHED:
        raise TopologyError(
            f"{document}: a GPU has {max(of_gpu)} NVLink lanes in the matrix, but this GPU has "
            f"{most_lanes}. Name the right one with --gpu."
        )
    # All lanes of a GPU lead to every other one: they end in an NVSwitch.
    host.switched = dict.fromkeys(range(host.gpu_count), counts.pop())
