"""Laws: how an answer must move when one thing of a scenario changes.

More work is never faster and needs no less memory, faster hardware is never slower, and names and
order change nothing. Each law makes a second case from a first one; it does not apply where it
gives None. `agreements.py` has the laws about several commands.
"""

from __future__ import annotations

import copy
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


def factor_of(case: Case, part: str) -> float:
    """By how much *part* of *case* changes: barely or much, drawn from the case itself."""
    return random.Random(f"{case} {part}").choice((1.03, 1.1, 1.25, 1.5, 2, 3, 4))


def _links(*kinds: str) -> Callable[[Case], Case | None]:
    def change(case: Case) -> Case | None:
        links = case.machine.get("links", [])
        if not any(link["kind"] in kinds for link in links):
            return None
        faster = [
            {**link, "bandwidth": _scaled(link["bandwidth"], factor_of(case, link["kind"]))}
            if link["kind"] in kinds
            else link
            for link in links
        ]
        return replace(case, machine={**case.machine, "links": faster})

    return change


def _network(case: Case) -> Case | None:
    if not case.machine.get("fabric") or case.hosts == 1:
        return None
    rate = _scaled(case.machine["fabric"]["nic"]["bandwidth"], factor_of(case, "network"))
    return replace(case, machine=changed(case.machine, "fabric.nic.bandwidth", rate))


def _all_links(case: Case) -> Case | None:
    """All links and the network faster, each kind by its own factor, as far as there are some."""
    faster = _links("nvlink", "pcie", "cpu", "nvlink_c2c")(case) or case
    return _network(faster) or (faster if faster is not case else None)


def _better_chip(case: Case) -> Case | None:
    """A chip of another name that is better in everything, in each by its own factor."""
    better = replace(case, device={**case.device, "name": "better"})
    for path in ("memory.bandwidth", "memory.size", "l2.bandwidth", "l2.size", "clock", "peak",
                 "vector_fp32", "multiprocessors.count", "power"):  # fmt: skip
        better = _device(path, factor=min(factor_of(case, path), 2.0))(better) or better
    return better


def _experts(case: Case) -> Case:
    """Every layer has eight experts, of which two work on a token."""
    if case.is_recommendation:
        return case
    model = {**case.workload["model"], "experts": 8, "top_k": 2}
    return replace(case, workload={**case.workload, "model": model}, stack=None).with_workload(
        "parallel.ep", 1
    )


def _one_expert(case: Case) -> Case | None:
    if case.is_recommendation:
        return None
    experts = case.workload["model"].get("experts", 8)
    return _experts(case).with_workload("model.experts", experts + 1)


def _one_layer(case: Case) -> Case | None:
    if case.is_recommendation:
        return None
    return case.with_workload("model.layers", case.workload["model"]["layers"] + 1)


def _one_table(case: Case) -> Case | None:
    if not case.tables:
        return None
    added = {**copy.deepcopy(case.tables[-1]), "name": "added"}
    return replace(case, tables=[*case.tables, added])


def _replicas(case: Case) -> Case:
    """Replicas that share nothing but gradients."""
    return case if case.is_recommendation else case.with_workload("parallel.sharding", "none")


def _one_host(case: Case) -> Case | None:
    """A host more, with the same work for every rank."""
    per_host = case.rank_count // case.hosts
    if case.is_recommendation or case.hosts == 1 or per_host % case.workload["parallel"]["tp"]:
        return None
    more = replace(case, hosts=case.hosts + 1)
    return more.with_workload("batch", case.workload["batch"] * more.hosts // case.hosts)


def _recomputed(case: Case) -> Case | None:
    if case.is_recommendation:
        return None
    return case.with_workload("training.recompute", "full")


def _device(*paths: str, factor: float | None = None) -> Callable[[Case], Case | None]:
    """Each of *paths* larger by *factor*, or by one that the case draws."""

    def change(case: Case) -> Case | None:
        device = case.device
        by = factor or factor_of(case, paths[0])
        for path in paths:
            place: Any = device
            for name in path.split("."):
                place = place.get(name)
                if place is None:
                    return None
            device = changed(device, path, _larger(place, by))
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
    """What memory decides is stated: tables by rows, nothing recomputed."""
    if case.tables:
        return case.with_workload("sharding.sharder", "row_wise")
    return case.with_workload("training.recompute", "none")


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
    Law("one table more", MORE, _one_table),
    Law("twice the layers", MORE, _LAYERS, exemptions=(PROTOCOLS,)),
    Law("one layer more", MORE, _one_layer, exemptions=(PROTOCOLS,)),
    Law("one expert more", MORE, _one_expert, start=_experts),
    Law("one host more, as much for each", MORE, _one_host, start=_replicas),
    Law("everything recomputed", MORE, _recomputed, start=_placed),
    Law("sequences twice as long", MORE, _SEQUENCE),
    Law("wider feed-forward", MORE, _FEED_FORWARD, exemptions=(PROTOCOLS,)),
    Law("faster NVLink", FASTER, _links("nvlink"), start=_unmeasured, exemptions=(TUNER,)),
    Law("faster PCIe", FASTER, _links("pcie"), start=_unmeasured),
    Law("faster NICs", FASTER, _network, start=_unmeasured, exemptions=(TUNER,)),
    Law("all links faster", FASTER, _all_links, start=_unmeasured, exemptions=(TUNER,)),
    Law("faster memory", FASTER, _device("memory.bandwidth")),
    Law("faster L2", FASTER, _device("l2.bandwidth")),
    Law("higher peaks", FASTER, _device("peak")),
    Law("a chip better in everything", FASTER, _better_chip),
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
    Law("memory of more layers", MORE, _LAYERS, Quantity.MEMORY, start=_placed),
    Law("memory of longer sequences", MORE, _SEQUENCE, Quantity.MEMORY, start=_placed),
    Law(
        "memory where all is recomputed", FASTER, _recomputed, Quantity.MEMORY,
        start=_placed,
    ),
)  # fmt: skip
