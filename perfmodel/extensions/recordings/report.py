"""Reports of recordings: imports, replays, what streams did, and what got slower.

An import, stream parts and a difference come as the documents that `--json` writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfmodel.base.units import NS_PER_MS, format_duration
from perfmodel.extensions.recordings.recorded_job import SelfReplay
from perfmodel.reports.blocks import Headline, Report, Section, Sentences, Table, plain_report
from perfmodel.reports.text import NEEDS_FORCE, format_range

MOST_STREAMS = 40
WIDTH = 100
MOST_RANKS = 16


def report_import(document: Mapping[str, Any]) -> Report:
    """What was found in the traces of a job, and how well it replays itself."""
    score, starts = document["self_replay"], document.get("recorded_starts", {})
    is_shapes, headline = score is None, None
    if not is_shapes:
        is_bad = not score["is_trusted"] and not score["faults"]
        headline = Headline(
            verdict=NEEDS_FORCE if is_bad else "",
            is_good=not is_bad,
            answer=format_duration(score["iteration"]["recorded_ms"] * NS_PER_MS),
            caption=f"per iteration, recorded; replayed {score['iteration_error_pct']:+.2f} % "
            f"(worst {score['worst_error_pct']:.2f} %)",
            facts=_without_profiler(document["unprofiled"]),
        )
    faults = [
        f"rank {rank['rank']}: {fault}"
        for rank in document.get("per_rank", ())
        for fault in rank["faults"]
    ]
    rows = [(reason, f"{count:,}") for reason, count in starts.items() if count]
    distrust = "less reliable, because of what follows; --strict refuses it"
    return Report(
        title=f"{document['job']}  ->  {document['folder']}",
        headline=headline,
        sections=(
            Section(
                "",
                [Table((), (_shape_facts if is_shapes else _trace_facts)(document), wraps=(1,))],
            ),
            Section("Steps", [_step_table(document)] if not is_shapes else []),
            Section("Tasks that keep their recorded start", [Table((), rows, numeric=(1,))]),
            Section(
                "Assumptions",
                [Sentences(document["assumptions"])]
                if is_shapes
                else [Sentences([document["unprofiled"]["basis"]])],
            ),
            Section(
                "Faults" if document["is_trusted"] else f"Faults: {distrust}",
                [Sentences([*document["faults"], *faults])],
            ),
        ),
        columns=WIDTH,
    )


def _without_profiler(known: Mapping[str, Any]) -> tuple[str, ...]:
    low_ns, high_ns = (one * NS_PER_MS for one in known["interval_ms"])
    step = format_duration(known["iteration_time_ms"] * NS_PER_MS)
    return (f"without the profiler about {step} ({format_range(low_ns, high_ns)})",)


def _trace_facts(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        ("ranks", str(document["ranks"])),
        ("steps", _steps(document)),
        ("events read", f"{document['events_read']:,}"),
        ("launches linked", f"{document['launches_linked']:,} of {document['device_tasks']:,}"),
        (
            "collectives matched across ranks",
            (
                f"{document['collectives_matched']} of {document['collectives']} "
                f"in {document['rendezvous']} calls"
            ),
        ),
        ("trusted", _trust(document["self_replay"])),
        _known_work(document["known_work"]),
    ]


def _steps(document: Mapping[str, Any]) -> str:
    """How many steps, by which rule, and how many of them repeat together."""
    text, cycle = f"{document['steps']} ({document['step_rule']})", document["cycle"]
    if cycle > 1:
        cycle_ms = cycle * document["self_replay"]["iteration"]["recorded_ms"]
        text += f", a cycle of {cycle} in {format_duration(cycle_ms * NS_PER_MS)}"
    return text


def _step_table(document: Mapping[str, Any]) -> Table:
    """Every step of every rank, and which were chosen."""
    table = document["step_table"]
    first_ns = min((row["end_ns"] for row in table), default=0)
    rows = [
        (
            str(row["step"]),
            str(row["rank"]),
            format_duration(row["host_ns"]),
            format_duration(row["end_ns"] - first_ns),
            f"{row['kernels']:,}",
            "inside" if row["is_inside"] else "before",
            "warm" if row["is_warm"] else "cold",
            "yes" if row["is_chosen"] else "",
        )
        for row in table
    ]
    headings = (
        "step", "rank", "host", "GPU ends after", "kernels", "launched", "", "used"
    )  # fmt: skip
    return Table(headings, rows, numeric=range(5), most=MOST_RANKS)


def _trust(score: Mapping[str, Any]) -> str:
    return "yes" if score["is_trusted"] else f"no: {score['reason']}"


def _shape_facts(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    work = ", ".join(f"{count:,} {kind}" for kind, count in document["work"].items())
    unpriced = ("durations", "none, only shapes: `predict --job` prices them on a --topology")
    has_times = document["known_work"]["device_time_ms"]
    return [
        ("ranks", str(document["ranks"])),
        ("operators read", f"{document['operators_read']:,} from {document['source']}"),
        ("device tasks", f"{document['device_tasks']:,} ({work})"),
        _known_work(document["known_work"]) if has_times else unpriced,
    ]


def _known_work(known: Mapping[str, Any]) -> tuple[str, str]:
    """How much of the device time can be priced on another machine."""
    return (
        "FLOPs and bytes known",
        (
            f"{known['known_pct']:.1f} % of GPU time ({known['counted_pct']:.1f} % counted from "
            f"shapes, {known['estimated_pct']:.1f} % estimated from launches)"
        ),
    )


def compare_lengths(score: SelfReplay) -> tuple[list[dict[str, Any]], Section]:
    """Recorded and replayed lengths of the step, its periods and ranks, as rows and as tables."""
    rows = [one.document() for one in (score.iteration, *score.periods, *score.ranks)]
    cells = [
        (row["name"], f"{row['recorded_ms']:.3f} ms", f"{row['replayed_ms']:.3f} ms",
         f"{row['error_pct']:+.2f} %")
        for row in rows
    ]  # fmt: skip
    headings = ("", "recorded", "replayed", "error")
    tables = [
        Table(headings, cells, numeric=(1, 2, 3), most=MOST_STREAMS),
        Table((), [("trusted", _trust(score.document()))]),
    ]
    return rows, Section("Recorded and replayed", tables)


def report_streams(document: Mapping[str, Any]) -> Report:
    """What every stream spent its time on, in percent."""
    rows, parts = [], list(document["streams"][0]["parts_ms"])
    for stream in document["streams"]:
        window_ms = stream["window_ms"] or 1.0
        shares = [f"{100 * spent_ms / window_ms:.1f} %" for spent_ms in stream["parts_ms"].values()]
        first = (str(stream["rank"]), str(stream["stream"]), str(stream["tasks"]))
        rows.append((*first, f"{window_ms:.2f}", *shares))
    headings = ("rank", "stream", "tasks", "window ms", *parts)
    table = Table(headings, rows, numeric=range(len(headings)), most=MOST_STREAMS)
    known = ": ".join(_known_work(document["known_work"]))
    name = str(document["job"])
    return plain_report(name, table, _idle_table(document), Sentences([known]), columns=WIDTH)


def _idle_table(document: Mapping[str, Any]) -> Table:
    """Why the GPU of every rank was idle, in percent of the window, and its launch queue."""
    rows = []
    for rank in document["idle"]:
        window_ms, causes = rank["window_ms"] or 1.0, rank["causes_ms"]
        spent = [rank["idle_ms"], *causes.values(), rank["waiting_in_collectives_ms"]]
        shares = ["-" if ms is None else f"{100 * ms / window_ms:.1f} %" for ms in spent]
        queue = rank["launch_queue"]
        rows.append((str(rank["rank"]), *shares, f"{queue['mean']:.1f}", f"{queue['most']:,}"))
    headings = (
        "rank", "GPU idle", "host late", "kernel gaps", "not recorded", "waits in collectives",
        "launches queued", "most",
    )  # fmt: skip
    return Table(headings, rows, numeric=range(len(headings)), most=MOST_STREAMS)


def report_diff(document: Mapping[str, Any], *, top: int) -> Report:
    """What takes longer in one recording than in the other, a table for each way to list it."""
    before_ms, after_ms = document["step_ms"]
    change_pct = 100 * document["change_ms"] / max(before_ms, 1e-9)
    return Report(
        title=f"{document['before']}  ->  {document['after']}",
        headline=Headline(
            is_good=after_ms <= before_ms,
            answer=f"{before_ms:.3f} ms -> {after_ms:.3f} ms",
            caption=f"per step ({document['change_ms']:+.3f} ms, {change_pct:+.1f} %)",
            facts=(
                f"{document['same_tasks_pct']:.1f} % of the tasks are the same in the same order",
            ),
        ),
        sections=[
            Section(f"By {kind}", [_diff_table(kind, lines, top)])
            for kind, lines in document["by"].items()
            if lines
        ],
        columns=WIDTH,
    )


def _diff_table(kind: str, lines: Sequence[Mapping[str, Any]], top: int) -> Table:
    rows = [
        (
            f"{line['before_ms']:.3f}",
            f"{line['after_ms']:.3f}",
            f"{line['change_ms']:+.3f}",
            f"{line['before_count']:g}",
            f"{line['after_count']:g}",
            line["name"],
        )
        for line in lines
    ]
    headings = ("ms before", "after", "change", "count before", "after", kind)
    return Table(headings, rows, numeric=range(5), most=top)
