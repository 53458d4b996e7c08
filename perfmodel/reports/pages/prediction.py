"""The page of a prediction: verdict, answer, timeline, critical path, waits, memory, question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from perfmodel.base.provenance import Provenance
from perfmodel.base.units import format_duration, format_size
from perfmodel.prediction.answer import Part, PathShare, Prediction, TimeParts
from perfmodel.reports.document import to_scenario_document
from perfmodel.reports.pages.links import build_links
from perfmodel.reports.pages.page import (
    Bars,
    Block,
    Command,
    Grid,
    Headline,
    Lines,
    Matrix,
    Page,
    Piece,
    Section,
)
from perfmodel.reports.pages.timeline import build_timeline
from perfmodel.reports.text import (
    build_scale,
    describe_interval,
    describe_other_time,
    describe_rank_changes,
    describe_run,
    describe_speed,
    describe_title,
    describe_utilisation,
    describe_verdict,
    gather_waits,
    name_ranks,
    to_command,
)

MAX_CLASSES = 16
MAX_LABELS = 12
MAX_WAITS = 20
MAX_COLUMNS = 12

PART_COLOURS = {
    Part.COMPUTE: ("#3f9a54", "compute"),
    Part.EXPOSED_COMMUNICATION: ("#3b74c4", "exposed communication"),
    Part.EXPOSED_COPIES: ("#8d63b5", "exposed copies"),
    Part.WAITING_FOR_OTHER_RANKS: ("#e0b43a", "waiting for other ranks"),
    Part.HOST_BOUND_IDLE: ("#c8553d", "idle, host-bound"),
}
MEMORY_COLOURS = (
    "#3b74c4", "#3f9a54", "#e0b43a", "#c8553d", "#8d63b5", "#4aa3a2", "#b0668f", "#7b8894",
)  # fmt: skip
PROVENANCE_COLOURS = {
    Provenance.RECORDED: "#22713a",
    Provenance.MEASURED: "#3f9a54",
    Provenance.INTERPOLATED: "#4aa3a2",
    Provenance.EXTRAPOLATED: "#3b74c4",
    Provenance.ANALYTIC: "#e0b43a",
    Provenance.ASSUMED: "#c8553d",
}


def build_page(prediction: Prediction, price_per_gpu_hour: float | None = None) -> str:
    """The page as text; with a price it says what tokens cost."""
    return Page(
        title=describe_title(prediction),
        headline=_headline(prediction, price_per_gpu_hour),
        sections=tuple(iter_sections(prediction)),
        footer=f"Where it ran: {describe_run(prediction)}.",
    ).render()


def _headline(prediction: Prediction, price_per_gpu_hour: float | None) -> Headline:
    memory = prediction.memory
    bound = f"bound by {prediction.bound.name}, {prediction.bound_ratio:.0%} of the critical path"
    verdict = describe_verdict(prediction)
    facts = (
        describe_speed(prediction),
        describe_utilisation(prediction, price_per_gpu_hour),
        bound if verdict else "",
        describe_other_time(prediction),
    )
    return Headline(
        verdict=verdict or bound,
        is_good=memory is None or memory.fits,
        answer=format_duration(prediction.iteration_ns),
        beside=f"per iteration, {describe_interval(prediction.interval)}",
        facts=tuple(fact for fact in facts if fact),
    )


def iter_sections(prediction: Prediction, command: str | None = None) -> Iterator[Section]:
    """What stands under the headline of a prediction; *command* asks for it, if not `predict`."""
    why = prediction.explanation
    yield Section("The question", _question(prediction, command))
    yield Section("Where the time goes", [build_parts_block(why.time), *_classes(prediction)])
    yield Section("Timeline", [build_timeline(prediction.evidence)])
    yield Section("What decides it: the critical path", _path(prediction))
    yield Section("Who waits for whom", _waits(prediction))
    yield Section("Memory", _memory(prediction))
    yield Section("The machine and its busiest links", build_links(prediction))
    yield Section("How we know: shares of the critical path", [_provenance(prediction)])
    yield Section("What we assume", [Lines(prediction.assumptions)])


def _question(prediction: Prediction, command: str | None) -> list[Block]:
    scenario = prediction.scenario
    rows = [] if scenario is None else _words(to_scenario_document(scenario))
    facts = prediction.facts
    if facts.batch is not None:
        rows.append(("batch", f"{facts.batch:,}"))
    layout = [text for text in prediction.assumptions if text.startswith("Layout: ")]
    rows += [("layout", text.removeprefix("Layout: ")) for text in layout]
    rows += [("GPU", facts.device)] if facts.device else []
    blocks: list[Block] = [Grid((), rows, code=(1,))] if rows else []
    if command is None and scenario is not None:
        command = to_command(scenario)
    return blocks if command is None else [*blocks, Command(command)]


def _provenance(prediction: Prediction) -> Bars:
    pieces, done = [], 0.0
    for kind, ratio in prediction.explanation.provenance_ratio.items():
        if ratio:
            colour = PROVENANCE_COLOURS[kind]
            pieces.append(Piece(kind.word, colour, "", f"{ratio:.1%}", done, ratio))
            done += ratio
    return Bars([("", pieces, "")])


def _words(document: dict[str, object]) -> list[tuple[str, str]]:
    return [
        (key.replace("_", " "), ", ".join(value) if isinstance(value, list) else str(value))
        for key, value in document.items()
        if value not in (None, [])
    ]


def build_parts_block(time: TimeParts) -> Bars:
    """One bar of *time*, its parts spelt out."""
    return Bars([("", build_pieces(time), "")])


def build_pieces(time: TimeParts) -> list[Piece]:
    """The parts of *time* that are not empty."""
    total_ns = max(time.total_ns, 1)
    scale = build_scale(total_ns)
    pieces, done_ns = [], 0
    for part, duration_ns in time.of_part_ns.items():
        if not duration_ns:
            continue
        colour, words = PART_COLOURS[part]
        share = duration_ns / total_ns
        start = done_ns / total_ns
        pieces.append(Piece(words, colour, scale.text(duration_ns), f"{share:.1%}", start, share))
        done_ns += duration_ns
    return pieces


def _classes(prediction: Prediction) -> list[Block]:
    classes = prediction.explanation.rank_classes
    if len(classes) < 2:
        return []
    bars = [
        (
            name_ranks(entry.ranks),
            build_pieces(entry.time),
            f"holds {format_size(entry.memory.total_bytes)}" if entry.memory.parts else "",
        )
        for entry in classes[:MAX_CLASSES]
    ]
    left_out = len(classes) - MAX_CLASSES
    more = [Lines([f"{left_out} more classes of ranks are in the JSON."])] if left_out > 0 else []
    return [Bars(bars, is_spelt_out=False), *more]


def _path(prediction: Prediction) -> list[Block]:
    path = prediction.explanation.critical_path
    blocks: list[Block] = [_shares("kind", path.by_kind, path.length_ns)]
    if path.by_label:
        blocks.append(_shares("longest on it", path.by_label[:MAX_LABELS], path.length_ns))
    if path.rank_changes:
        blocks.append(Lines([f"{describe_rank_changes(path.rank_changes).capitalize()}."]))
    return blocks


def _shares(heading: str, shares: Sequence[PathShare], total_ns: int) -> Grid:
    scale = build_scale(total_ns)
    rows = [
        (
            share.name,
            scale.text(share.duration_ns),
            f"{share.duration_ns / max(total_ns, 1):.1%}",
            f"{share.task_count:,}",
        )
        for share in shares
    ]
    finds = () if heading == "kind" else (0,)
    return Grid((heading, "time", "share", "tasks"), rows, numeric=(1, 2, 3), finds=finds)


def _waits(prediction: Prediction) -> list[Block]:
    waits = prediction.explanation.waits
    if not waits:
        return [Lines(["No rank waits for another."])]
    scale = build_scale(prediction.iteration_ns)
    rows = [
        (
            name_ranks(crowd.waiting_ranks),
            f"rank {crowd.awaited_rank}",
            crowd.label,
            scale.text(crowd.mean_ns),
            scale.text(crowd.longest_ns),
        )
        for crowd in gather_waits(waits)[:MAX_WAITS]
    ]
    grid = Grid(("who", "for", "in", "each loses", "at most"), rows, numeric=(3, 4), finds=(2,))
    return [_matrix(prediction), grid]


def _matrix(prediction: Prediction) -> Matrix:
    """Who waits (rows) for whom (columns); those who lose and cost most come first."""
    lost_ns: dict[tuple[tuple[int, ...], int], int] = {}
    for wait in prediction.explanation.waits:
        key = (wait.waiting_ranks, wait.awaited_rank)
        lost_ns[key] = lost_ns.get(key, 0) + wait.duration_ns
    waiting = _by_total(lost_ns, 0)
    awaited = _by_total(lost_ns, 1)
    most_ns, scale = max(lost_ns.values(), default=1), build_scale(prediction.iteration_ns)
    rows = [
        (
            name_ranks(who),
            [
                (scale.text(lost_ns[who, whom]) if (who, whom) in lost_ns else "",
                 0.7 * lost_ns.get((who, whom), 0) / max(most_ns, 1))
                for whom in awaited[:MAX_COLUMNS]
            ],
        )
        for who in waiting[:MAX_WAITS]
    ]  # fmt: skip
    left_out = max(len(waiting) - MAX_WAITS, 0) + max(len(awaited) - MAX_COLUMNS, 0)
    note = f"{left_out} more rows and columns are in the JSON." if left_out else ""
    columns = [f"rank {whom}" for whom in awaited[:MAX_COLUMNS]]
    return Matrix("who \\ for whom", columns, rows, note)


def _by_total(lost_ns: dict[tuple[tuple[int, ...], int], int], side: int) -> list[Any]:
    totals: dict[Any, int] = {}
    for key, duration_ns in lost_ns.items():
        totals[key[side]] = totals.get(key[side], 0) + duration_ns
    return sorted(totals, key=lambda name: (-totals[name], str(name)))


def _memory(prediction: Prediction) -> list[Block]:
    memory = prediction.memory
    if memory is None:
        return []
    whole_bytes = max(memory.capacity_bytes, memory.peak_bytes)
    parts = sorted(memory.fullest.memory.parts, key=lambda part: -part.size_bytes)
    pieces, done = [], 0.0
    for number, part in enumerate(part for part in parts if part.size_bytes):
        share = part.size_bytes / whole_bytes
        colour = MEMORY_COLOURS[number % len(MEMORY_COLOURS)]
        size, percent = format_size(part.size_bytes), f"{share:.1%}"
        pieces.append(Piece(part.name, colour, size, percent, done, share))
        done += share
    verdict = f"{name_ranks(memory.fullest.ranks)}: {describe_verdict(prediction)}"
    return [Bars([("", pieces, "")]), Lines([verdict[0].upper() + verdict[1:]])]
