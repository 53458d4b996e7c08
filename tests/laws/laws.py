"""Laws: how an answer must move when one thing of a scenario changes.

More work is never faster and needs no less memory, faster hardware is never slower, and names and
order change nothing. Each law makes a second case from a first one; it does not apply where it
gives None. `agreements.py` has the laws about several commands.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from tests.laws.drawing import Case, changed

TOLERANCE = 0.002
"""Relative; rounding to whole nanoseconds, and contention, which settles to about as much."""


class Relation(Enum):
    """How the second of two answers relates to the first."""

    NOT_LESS = "not less"
    NOT_MORE = "not more"
    EQUAL = "equal"

    def holds(self, before: float, after: float) -> bool:
        """Whether the two answers keep the law."""
        change = after / before - 1
        if self is Relation.EQUAL:
            return before == after
        return change >= -TOLERANCE if self is Relation.NOT_LESS else change <= TOLERANCE


class Quantity(Enum):
    """What is compared."""

    TIME = "time"
    MEMORY = "memory"


@dataclass(frozen=True)
class Exemption:
    """Something true of real systems that breaks a law, by *bound* at most, where it *applies*."""

    name: str
    reason: str
    source: str
    bound: float
    applies: Callable[[Case], bool]


WAVES = Exemption(
    "tiles and waves",
    "With the same peak more multiprocessors are slower ones. Tiles that filled whole waves before "
    "leave some of them idle in the last wave.",
    "NVIDIA, Matrix Multiplication Background User's Guide: tile and wave quantization",
    0.035,
    lambda case: True,
)
PROTOCOLS = Exemption(
    "NCCL's protocol switch",
    "Below about 2 MB NCCL reduces with a protocol that is many times slower on this network: a "
    "larger all-reduce takes less time.",
    "measured on the machine: `collectives/calibrations/nccl.yaml`, `nccl_tuner.yaml`",
    0.35,
    lambda case: case.machine["name"] == "alps_gh200" and case.hosts > 1,
)

TUNER = Exemption(
    "NCCL's choice of algorithm",
    "NCCL chooses algorithm and protocol by constants of its own, not by the time they take. A "
    "faster link may make it choose another one that is a little slower.",
    "`collectives/calibrations/nccl_tuner.yaml`; on 2 x A100 an all-reduce of 256 KiB takes 15 us, "
    "one of 1 MiB 41 us",
    0.01,
    lambda case: case.hosts > 1,
)


@dataclass(frozen=True)
class Law:
    """A change and what it may do to a quantity. *start* is the case that is changed."""

    name: str
    relation: Relation
    change: Callable[[Case], Case | None]
    quantity: Quantity = Quantity.TIME
    exemptions: tuple[Exemption, ...] = ()
    start: Callable[[Case], Case] = lambda case: case


def _scaled(text: str, factor: float) -> str:
    """A quantity such as `25 GB/s` times *factor*."""
    number, unit = re.fullmatch(r"\s*([\d._]+)\s*(.*)", text).groups()
    return f"{float(number.replace('_', '')) * factor:.10g} {unit}"


def _workload(path: str, factor: int, family: str) -> Callable[[Case], Case | None]:
    def change(case: Case) -> Case | None:
        if case.workload["family"] != family:
            return None
        place: Any = case.workload
        for name in path.split("."):
            place = place[name]
        return case.with_workload(path, place * factor)

    return change


def _batch(case: Case) -> Case:
    return case.with_workload("batch", 2 * case.workload["batch"])


def _tables(key: str, factor: int) -> Callable[[Case], Case | None]:
    def change(case: Case) -> Case | None:
        if not case.tables:
            return None
        wider = replace(case, tables=[{**table, key: table[key] * factor} for table in case.tables])
        if key != "width":
            return wider
        *inner, last = case.workload["dense"]["bottom_mlp"]
        wider = wider.with_workload("embedding.width", last * factor)
        return wider.with_workload("dense.bottom_mlp", [*inner, last * factor])

    return change


def _links(kind: str) -> Callable[[Case], Case | None]:
    def change(case: Case) -> Case | None:
        links = case.machine.get("links", [])
        if not any(link["kind"] == kind for link in links):
            return None
        faster = [
            {**link, "bandwidth": _scaled(link["bandwidth"], 2)} if link["kind"] == kind else link
            for link in links
        ]
        return replace(case, machine={**case.machine, "links": faster})

    return change


def _network(case: Case) -> Case | None:
    if not case.machine.get("fabric") or case.hosts == 1:
        return None
    nic = case.machine["fabric"]["nic"]
    faster = changed(case.machine, "fabric.nic.bandwidth", _scaled(nic["bandwidth"], 2))
    return replace(case, machine=faster)


def _device(*paths: str, factor: float) -> Callable[[Case], Case | None]:
    def change(case: Case) -> Case | None:
        device = case.device
        for path in paths:
            place: Any = device
            for name in path.split("."):
                place = place.get(name)
                if place is None:
                    return None
            device = changed(device, path, _larger(place, factor))
        return replace(case, device=device)

    return change


def _larger(value: Any, factor: float) -> Any:
    if isinstance(value, dict):
        return {key: _scaled(one, factor) for key, one in value.items()}
    return round(value * factor) if isinstance(value, int) else _scaled(value, factor)


def _unmeasured(case: Case) -> Case:
    """The machine without the constants of a measured one, which it loses with another link."""
    kept = {key: value for key, value in case.machine.items() if key != "measured"}
    return replace(case, machine={**kept, "name": "unmeasured"})


def _placed(case: Case) -> Case:
    """Tables by rows, so that memory does not depend on which placement is fastest."""
    return case.with_workload("sharding.sharder", "row_wise") if case.tables else case


def _renamed(case: Case) -> Case:
    return replace(case, machine={**case.machine, "name": "another_name"})


def _permuted(case: Case) -> Case | None:
    if not case.tables:
        return None
    tables = list(case.tables)
    random.Random(len(tables)).shuffle(tables)
    return replace(case, tables=tables)


def _stated(case: Case) -> Case:
    """The plan is stated: whole tables on some of the ranks."""
    ranks = random.Random(len(case.tables)).choices(range(case.rank_count), k=len(case.tables))
    return replace(case, table_ranks=tuple(ranks))


def _other_hosts(case: Case) -> Case | None:
    """The last host does what the first did, and so on."""
    if not case.tables or case.hosts == 1:
        return None
    per_host = case.rank_count // case.hosts
    moved = [
        rank + (case.hosts - 1 - 2 * (rank // per_host)) * per_host for rank in case.table_ranks
    ]
    return replace(case, table_ranks=tuple(moved))


def _other_ranks(case: Case) -> Case | None:
    """Every rank does what the next one did. All GPUs of one host reach each other alike."""
    if not case.tables or case.hosts > 1:
        return None
    moved = [(rank + 1) % case.rank_count for rank in case.table_ranks]
    return replace(case, table_ranks=tuple(moved))


def _other_links(case: Case) -> Case | None:
    links = case.machine.get("links", [])
    if len(links) < 2:
        return None
    return replace(case, machine={**case.machine, "links": links[::-1]})


def _renamed_tables(case: Case) -> Case | None:
    if not case.tables:
        return None
    renamed = [{**table, "name": f"x{table['name']}"} for table in case.tables]
    return replace(case, tables=renamed)


MORE, FASTER, SAME = Relation.NOT_LESS, Relation.NOT_MORE, Relation.EQUAL
_LAYERS = _workload("model.layers", 2, "transformer")
_SEQUENCE = _workload("sequence_length", 2, "transformer")
_FEED_FORWARD = _workload("model.ffn", 2, "transformer")
_CORES = "multiprocessors.count"
_MORE_CORES = _device(_CORES, factor=1.25)
LAWS = (
    Law("batch twice as large", MORE, _batch),
    Law("tables twice as wide", MORE, _tables("width", 2), exemptions=(PROTOCOLS,)),
    Law("tables with twice the rows", MORE, _tables("rows", 2)),
    Law("twice the lookups", MORE, _tables("pooling_factor", 2)),
    Law("twice the layers", MORE, _LAYERS, exemptions=(PROTOCOLS,)),
    Law("sequences twice as long", MORE, _SEQUENCE),
    Law("wider feed-forward", MORE, _FEED_FORWARD, exemptions=(PROTOCOLS,)),
    Law("NVLink twice as fast", FASTER, _links("nvlink"), start=_unmeasured, exemptions=(TUNER,)),
    Law("PCIe twice as fast", FASTER, _links("pcie"), start=_unmeasured),
    Law("NICs twice as fast", FASTER, _network, start=_unmeasured, exemptions=(TUNER,)),
    Law("memory faster by half", FASTER, _device("memory.bandwidth", factor=1.5)),
    Law("L2 faster by half", FASTER, _device("l2.bandwidth", factor=1.5)),
    Law("peaks higher by half", FASTER, _device("peak", factor=1.5)),
    Law("a quarter more multiprocessors", FASTER, _MORE_CORES, exemptions=(WAVES,)),
    Law("a quarter more of equal multiprocessors", FASTER, _device(_CORES, "peak", factor=1.25)),
    Law("another name of the machine", SAME, _renamed),
    Law("tables in another order", SAME, _permuted),
    Law("other names of tables", SAME, _renamed_tables),
    Law("hosts in another order", SAME, _other_hosts, start=_stated),
    Law("ranks of a host in another order", SAME, _other_ranks, start=_stated),
    Law("links in another order", SAME, _other_links),
    Law("memory of a larger batch", MORE, _batch, Quantity.MEMORY, start=_placed),
    Law("memory of wider tables", MORE, _tables("width", 2), Quantity.MEMORY, start=_placed),
    Law("memory of more rows", MORE, _tables("rows", 2), Quantity.MEMORY, start=_placed),
    Law("memory of more layers", MORE, _LAYERS, Quantity.MEMORY),
    Law("memory of longer sequences", MORE, _SEQUENCE, Quantity.MEMORY),
)
