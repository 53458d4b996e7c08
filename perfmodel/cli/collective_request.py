"""What was asked of `perfmodel collective`: machine, group, software, from the words typed."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from collectives.collective import Collective, CollectiveKind, parse_kind
from collectives.pricing import CollectiveCall
from collectives.software import (
    CollectiveSoftware,
    parse_algorithm,
    parse_nccl_version,
    parse_protocol,
)
from perfmodel.base.dtypes import DType, parse_dtype
from perfmodel.base.errors import InputError
from perfmodel.base.reading import check_end, read_packed_text
from perfmodel.base.units import parse_size
from topologies import Cluster, build_cluster, load_topology

MAX_LISTED_RANKS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRequest:
    """A group on a cluster, the collective it makes, and the library."""

    cluster: Cluster
    ranks: tuple[int, ...]
    kind: CollectiveKind
    software: CollectiveSoftware
    dtype: DType

    def call(self, size_bytes: int, byte_matrix: Path | None = None) -> CollectiveCall:
        """The call of *size_bytes*, or of an uneven byte matrix."""
        matrix = None if byte_matrix is None else load_byte_matrix(byte_matrix)
        return CollectiveCall(
            Collective(self.kind, size_bytes, self.dtype, byte_matrix=matrix), self.ranks
        )


def build_request(
    *,
    topology: str,
    hosts: int,
    ranks: str | None,
    kind: CollectiveKind,
    software: tuple[str, str | None, str | None],
    dtype: str,
    calibration: tuple[str, ...] = (),
) -> CollectiveRequest:
    """Understand the words; *software* is NCCL's version, forced algorithm and protocol."""
    machine = load_topology(topology, calibrations=calibration).idle
    version, algorithm, protocol = software
    is_count = ranks is not None and ranks.strip().isdecimal()
    count = int(ranks) if ranks is not None and is_count else None
    cluster = build_cluster(machine, hosts=hosts, ranks=count)
    listed = tuple(range(cluster.rank_count))
    if ranks is not None and not is_count:
        listed = parse_ranks(ranks)
    return CollectiveRequest(
        cluster=cluster,
        ranks=listed,
        kind=kind,
        software=CollectiveSoftware(
            nccl_version=parse_nccl_version(version),
            algorithm=None if algorithm is None else parse_algorithm(algorithm),
            protocol=None if protocol is None else parse_protocol(protocol),
        ),
        dtype=parse_dtype(dtype),
    )


def parse_ranks(text: str) -> tuple[int, ...]:
    """Read a list of ranks such as `0-3,8-11`."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise InputError(f"ranks: must be like 0-3,8-11, got {text!r}.")
        low, high = int(first), int(last or first)
        if high < low or high - low > MAX_LISTED_RANKS:
            raise InputError(f"ranks: {part!r} must run upwards, at most {MAX_LISTED_RANKS} ranks.")
        found.extend(range(low, high + 1))
    return tuple(found)


def parse_beside(text: str, dtype: DType) -> CollectiveCall:
    """Read `KIND:SIZE:LIST`, another collective at the same time."""
    parts = text.split(":")
    if len(parts) != 3:
        raise InputError(
            f"--with: must be KIND:SIZE:LIST such as all_reduce:1GiB:1,9, got {text!r}."
        )
    kind = parse_kind(parts[0])
    return CollectiveCall(Collective(kind, parse_size(parts[1]), dtype), parse_ranks(parts[2]))


def load_byte_matrix(path: Path) -> tuple[tuple[int, ...], ...]:
    """Read a byte matrix: one line a sender, bytes to each receiver, separated by commas."""
    text = read_packed_text(path, InputError)
    check_end(text, document=str(path), error_type=InputError)
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
        return tuple(tuple(int(cell) for cell in row) for row in rows)
    except (csv.Error, ValueError) as fault:
        raise InputError(
            f"{path}: must hold whole numbers of bytes, one line a sender. {str(fault)[:200]}"
        ) from None
