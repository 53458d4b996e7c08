"""Reports of imports: what became of each field of a file of another program."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from perfmodel.base.reading import quote
from perfmodel.extensions.formats.models import FieldUse, Use
from perfmodel.reports.blocks import Report, Section, Sentences, Table
from perfmodel.reports.text import count_of
from perfmodel.workloads.families import family_of
from perfmodel.workloads.fields import Workload
from topologies import Topology

MOST_SHOWN = 24
"""Characters of a value."""
_TITLES = {
    Use.READ: "Read",
    Use.DEFAULTED: "Not stated, default taken",
    Use.IGNORED: "Without effect on time",
    Use.UNKNOWN: "Unknown, ignored",
}


def report_import(workload: Workload, kind: str, uses: Collection[FieldUse]) -> Report:
    """The model, what was assumed, and every field of its file."""
    sections = [Section("Assumed", [Sentences(workload.assumed)])]
    for use, title in _TITLES.items():
        rows = [_row(one) for one in uses if one.use is use]
        sections.append(Section(title, [Table((), rows, code=(0,), wraps=(2,))]))
    return Report(f"{workload.name}: {kind}, {_size(workload)}", sections=sections)


def report_machine_import(topology: Topology, kind: str) -> Report:
    """The machine, and what its file does not say."""
    nics = count_of(topology.nics_per_host, "NIC") if topology.nics_per_host else "no NIC"
    size = f"{topology.gpus_per_host} x {topology.device.description}, {nics}"
    return Report(
        f"{topology.name}: {kind}, {size}",
        sections=[Section("Assumed", [Sentences(topology.assumed)])],
    )


def import_document(workload: Workload, kind: str, uses: Sequence[FieldUse]) -> Mapping[str, Any]:
    """The same as JSON."""
    return {
        "schema_version": 1,
        "name": workload.name,
        "kind": kind,
        "parameters": family_of(workload).count_parameters(workload),
        "assumed": list(workload.assumed),
        "fields": [
            {"key": one.key, "use": one.use.value, "field": one.target, "value": one.value}
            for one in uses
        ],
    }


def _row(use: FieldUse) -> tuple[str, str, str]:
    value = quote(use.value)
    return use.key, value if len(value) <= MOST_SHOWN else f"{value[: MOST_SHOWN - 1]}…", use.target


def _size(workload: Workload) -> str:
    family = family_of(workload)
    count = family.count_parameters(workload)
    return family.title if count is None else f"{count:,} parameters"
