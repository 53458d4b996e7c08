"""The report of `perfmodel fits`: peaks by ranks, what takes them, verdict and odds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfmodel.base.units import format_size
from perfmodel.reports.blocks import Headline, Report, Section, Sentences, Table
from perfmodel.reports.document import SCHEMA_VERSION, parts_gib, ranks_document, to_gib
from perfmodel.reports.text import format_ranks

if TYPE_CHECKING:
    from perfmodel.graph.job import RankMemory
    from perfmodel.planning.fits import MemoryAnswer

MOST_LISTED = 8


def to_fits_document(answer: MemoryAnswer) -> dict[str, Any]:
    """*answer* as plain values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "fits",
        "fits": answer.fits,
        "fits_probability": round(answer.probability, 6),
        "capacity_gib": to_gib(answer.capacity_bytes),
        "memory_gib": to_gib(answer.peak_bytes),
        "parts": {} if answer.fullest is None else parts_gib(answer.fullest.memory),
        "by_rank": [
            {
                **ranks_document(one.ranks),
                "memory_gib": to_gib(one.memory.total_bytes),
                "parts": parts_gib(one.memory),
            }
            for one in answer.peaks
        ],
        "layouts": [
            {"gpus": one.gpus, "set": list(one.overrides), "memory_gib": to_gib(one.peak_bytes)}
            for one in answer.layouts
        ],
        "layouts_tried": answer.tried,
        "remedy": list(answer.remedy),
        **answer.cautions.document(),
    }


def report_fits(answer: MemoryAnswer) -> Report:
    """The verdict and its odds, then what takes the memory or which layouts fit."""
    verdict = "fits" if answer.fits else "DOES NOT FIT"
    facts = []
    if answer.remedy:
        facts.append(f"would fit with --set {' --set '.join(answer.remedy)}")
    if not answer.peaks:
        facts.append(f"{len(answer.layouts)} of {answer.tried} layouts tried fit")
    return Report(
        title=f"{answer.scenario.workload} on {answer.scenario.topology}",
        headline=Headline(
            verdict=verdict,
            is_good=answer.fits,
            answer=format_size(answer.peak_bytes) if answer.peak_bytes else "no layout fits",
            caption=f"of {format_size(answer.capacity_bytes)}; fits in {answer.probability:.0%} "
            "of cases",
            facts=facts,
        ),
        sections=(Section("Memory by rank", _by_rank(answer)), Section("Layouts", _list(answer))),
        columns=120,
    ).warned(answer.cautions)


def _by_rank(answer: MemoryAnswer) -> list[Table]:
    if not answer.peaks:
        return []
    names = [part.name for part in answer.peaks[0].memory.parts]
    kept = [name for name in names if any(_size(one.memory, name) for one in answer.peaks)]
    columns = [format_ranks(one.ranks) for one in answer.peaks]
    rows = [
        [name, *(format_size(_size(one.memory, name)) for one in answer.peaks)] for name in kept
    ]
    total = ["peak", *(format_size(one.memory.total_bytes) for one in answer.peaks)]
    numeric = range(1, len(columns) + 1)
    return [Table(("part, of ranks", *columns), [*rows, total], numeric=tuple(numeric))]


def _list(answer: MemoryAnswer) -> list[Table | Sentences]:
    if answer.peaks:
        return []
    if not answer.layouts:
        return [Sentences(["Use more hosts, shorter sequences or a smaller batch."])]
    rows = [
        [str(one.gpus), format_size(one.peak_bytes), " ".join(one.overrides)]
        for one in answer.layouts[:MOST_LISTED]
    ]
    return [Table(("GPUs", "peak", "--set"), rows, numeric=(0, 1), wraps=(2,))]


def _size(memory: RankMemory, name: str) -> int:
    return sum(part.size_bytes for part in memory.parts if part.name == name)
