"""Laws: how an answer must move when one thing of a scenario changes.

More work is never faster, faster hardware never slower, and names and order change nothing. Each
law makes a second case from a first one; it does not apply where it gives None.
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
"""Relative; rounding to tiles, waves and whole nanoseconds."""


class Relation(Enum):
    """How the time of the second case relates to that of the first."""

    NOT_FASTER = "not faster"
    NOT_SLOWER = "not slower"
    EQUAL = "equal"

    def holds(self, before_ns: float, after_ns: float) -> bool:
        """Whether the two times keep the law."""
        change = after_ns / before_ns - 1
        if self is Relation.EQUAL:
            return before_ns == after_ns
        return change >= -TOLERANCE if self is Relation.NOT_FASTER else change <= TOLERANCE


@dataclass(frozen=True)
class Law:
    """A change and what it may do."""

    name: str
    relation: Relation
    change: Callable[[Case], Case | None]


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


def _device(path: str, factor: float) -> Callable[[Case], Case | None]:
    def change(case: Case) -> Case | None:
        place: Any = case.device
        for name in path.split("."):
            place = place.get(name)
            if place is None:
                return None
        if isinstance(place, dict):
            value: Any = {key: _scaled(one, factor) for key, one in place.items()}
        elif isinstance(place, int):
            value = round(place * factor)
        else:
            value = _scaled(place, factor)
        return replace(case, device=changed(case.device, path, value))

    return change


def _renamed(case: Case) -> Case:
    return replace(case, machine={**case.machine, "name": "another_name"})


def _permuted(case: Case) -> Case | None:
    if not case.tables:
        return None
    tables = list(case.tables)
    random.Random(len(tables)).shuffle(tables)
    return replace(case, tables=tables)


def _renamed_tables(case: Case) -> Case | None:
    if not case.tables:
        return None
    renamed = [{**table, "name": f"x{table['name']}"} for table in case.tables]
    return replace(case, tables=renamed)


MORE, FASTER, SAME = Relation.NOT_FASTER, Relation.NOT_SLOWER, Relation.EQUAL
LAWS = (
    Law("batch twice as large", MORE, _batch),
    Law("tables twice as wide", MORE, _tables("width", 2)),
    Law("tables with twice the rows", MORE, _tables("rows", 2)),
    Law("twice the lookups", MORE, _tables("pooling_factor", 2)),
    Law("twice the layers", MORE, _workload("model.layers", 2, "transformer")),
    Law("sequences twice as long", MORE, _workload("sequence_length", 2, "transformer")),
    Law("wider feed-forward", MORE, _workload("model.ffn", 2, "transformer")),
    Law("NVLink twice as fast", FASTER, _links("nvlink")),
    Law("PCIe twice as fast", FASTER, _links("pcie")),
    Law("NICs twice as fast", FASTER, _network),
    Law("memory faster by half", FASTER, _device("memory.bandwidth", 1.5)),
    Law("L2 faster by half", FASTER, _device("l2.bandwidth", 1.5)),
    Law("peaks higher by half", FASTER, _device("peak", 1.5)),
    Law("a quarter more multiprocessors", FASTER, _device("multiprocessors.count", 1.25)),
    Law("another name of the machine", SAME, _renamed),
    Law("tables in another order", SAME, _permuted),
    Law("other names of tables", SAME, _renamed_tables),
)

OPEN = {
    "tables twice as wide": "the default placement may suit the larger tables better",
    "tables with twice the rows": "the default placement may suit the larger tables better",
    "twice the lookups": "the default placement may suit the larger tables better",
    "a quarter more multiprocessors": "tiles fill fewer whole waves, up to 3.3 %",
    "another name of the machine": "measured constants are found by the name of the machine",
    "other names of tables": "the hottest row of a skewed table is drawn from its name",
}
"""Laws that are known to be broken at times, and why; all others hold."""
