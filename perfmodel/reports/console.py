"""Console: a prediction for a person at a terminal of 80 columns.

Parts of a bar differ in pattern as well as in colour, so that the picture
survives a log file and a reader who does not see the colours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfmodel.base.units import format_duration, format_size
from perfmodel.prediction.answer import Part, PathShare, Prediction, RankClass, TimeParts
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
    printable,
)

WIDTH = 80
BAR_WIDTH = 72
TOP_LABELS = 6
TOP_WAITS = 4
TOP_CLASSES = 8
TOP_PURPOSES = 4

PART_LOOKS = {
    Part.COMPUTE: ("█", "green", "compute"),
    Part.EXPOSED_COMMUNICATION: ("▓", "blue", "exposed communication"),
    Part.EXPOSED_COPIES: ("▚", "magenta", "exposed copies"),
    Part.WAITING_FOR_OTHER_RANKS: ("▒", "yellow", "waiting for other ranks"),
    Part.HOST_BOUND_IDLE: ("░", "red", "idle, host-bound"),
}
"""How a part is drawn: pattern, colour, words."""


def print_prediction(
    prediction: Prediction, console: Console, price_per_gpu_hour: float | None = None
) -> None:
    """Print *prediction*, most important first; with a price, what tokens cost."""
    console.print(
        Group(
            *_heading(prediction, price_per_gpu_hour),
            *section("Where the time goes", _time_parts(prediction)),
            *section("What decides it: the critical path", _critical_path(prediction)),
            *section("Who waits for whom", _waits(prediction)),
            *section("Memory", _memory(prediction)),
            *section("How we know", _provenance(prediction)),
            *section("Assumptions", _assumptions(prediction)),
        )
    )
    console.print(Text(f"\nWhere it ran: {describe_run(prediction)}", style="dim"))


def section(title: str, body: Iterable[RenderableType]) -> list[RenderableType]:
    """*body* under its *title*, set in; nothing where there is none."""
    parts = list(body)
    if not parts:
        return []
    return [Text(f"\n{title}", style="bold"), *(Padding(part, (0, 0, 0, 2)) for part in parts)]


def _heading(prediction: Prediction, price_per_gpu_hour: float | None) -> list[RenderableType]:
    title = Text(printable(describe_title(prediction)), style="bold")
    answer = Text()
    lead = "" if prediction.memory is not None else "\n"
    answer.append(f"{lead}  {format_duration(prediction.iteration_ns)}", style="bold green")
    answer.append(" per iteration")
    answer.append(f"    {describe_interval(prediction.interval)}", style="cyan")
    utilisation = describe_utilisation(prediction, price_per_gpu_hour)
    return [
        title,
        *_verdict(prediction),
        answer,
        Text(f"  {describe_speed(prediction)}"),
        *([Text(f"  {utilisation}")] if utilisation else []),
        Text(f"  {describe_other_time(prediction)}", style="dim"),
    ]


def _verdict(prediction: Prediction) -> list[RenderableType]:
    words, memory = describe_verdict(prediction), prediction.memory
    style = "green" if memory is None or memory.fits else "bold red"
    return [Padding(Text(words, style=style), (1, 0, 0, 2))] if words else []


def _time_parts(prediction: Prediction) -> list[RenderableType]:
    table = _grid(3)
    total_ns = max(prediction.explanation.time.total_ns, 1)
    scale = build_scale(total_ns)
    for part, duration_ns in prediction.explanation.time.of_part_ns.items():
        if not duration_ns:
            continue
        glyph, colour, words = PART_LOOKS[part]
        table.add_row(
            Text(f"{glyph} ", style=colour).append(words, style="default"),
            scale.text(duration_ns),
            f"{duration_ns / total_ns:.1%}",
        )
    rows: list[RenderableType] = [draw_bar(prediction.explanation.time, BAR_WIDTH), table]
    classes = prediction.explanation.rank_classes
    if len(classes) > 1:
        rows.append(
            Text(f"mean of {prediction.facts.rank_count} ranks; by class of ranks:", style="dim")
        )
        rows.append(_class_table(classes[:TOP_CLASSES]))
        rows.extend(_left_out(len(classes) - TOP_CLASSES, ("class of ranks", "classes of ranks")))
    return rows


def _class_table(classes: Sequence[RankClass]) -> Table:
    table = _grid(2, left=2)
    for entry in classes:
        table.add_row(one_line(name_ranks(entry.ranks)), draw_bar(entry.time, 40))
    return table


def draw_bar(time: TimeParts, width: int) -> Text:
    """The parts of *time* side by side on *width* characters."""
    bar = Text()
    total_ns = max(time.total_ns, 1)
    done_ns, drawn = 0, 0
    for part, duration_ns in time.of_part_ns.items():
        glyph, colour, _ = PART_LOOKS[part]
        done_ns += duration_ns
        stop = round(done_ns * width / total_ns)
        bar.append(glyph * (stop - drawn), style=colour)
        drawn = stop
    return bar


def _critical_path(prediction: Prediction) -> list[RenderableType]:
    path = prediction.explanation.critical_path
    rows: list[RenderableType] = [_share_table(path.by_kind, path.length_ns)]
    if path.by_label:
        rows.append(Text("longest on it:", style="dim"))
        rows.append(_share_table(path.by_label[:TOP_LABELS], path.length_ns))
    if path.rank_changes:
        rows.append(Text(describe_rank_changes(path.rank_changes), style="dim"))
    return rows


def _share_table(shares: Sequence[PathShare], total_ns: int) -> Table:
    table = _grid(4)
    scale = build_scale(total_ns)
    for share in shares:
        table.add_row(
            one_line(share.name),
            scale.text(share.duration_ns),
            f"{share.duration_ns / max(total_ns, 1):.1%}",
            f"{share.task_count} task{'' if share.task_count == 1 else 's'}",
        )
    return table


def _waits(prediction: Prediction) -> list[RenderableType]:
    if not prediction.explanation.waits:
        return [Text("no rank waits for another", style="dim")]
    crowds = gather_waits(prediction.explanation.waits)
    scale = build_scale(prediction.iteration_ns)
    table = _grid(4, left=2)
    table.add_row(*(Text(words, style="dim") for words in ("in", "who", "each loses", "at most")))
    for crowd in crowds[:TOP_WAITS]:
        table.add_row(
            one_line(crowd.label),
            f"{_few_words(crowd.waiting_ranks)} for rank {crowd.awaited_rank}",
            scale.text(crowd.mean_ns),
            scale.text(crowd.longest_ns),
        )
    return [table, *_left_out(len(crowds) - TOP_WAITS, ("wait", "waits"))]


def _few_words(ranks: Sequence[int]) -> str:
    exact = name_ranks(ranks)
    return exact if len(exact) <= 12 else f"{len(ranks)} ranks"


def _memory(prediction: Prediction) -> list[RenderableType]:
    memory = prediction.memory
    if memory is None:
        return []
    filled = min(round(30 * memory.peak_bytes / memory.capacity_bytes), 30)
    style = "green" if memory.fits else "bold red"
    line = Text("█" * filled, style=style).append("░" * (30 - filled), style="dim")
    sizes = f" {format_size(memory.peak_bytes)} of {format_size(memory.capacity_bytes)}: "
    line.append(sizes, style="default")
    line.append("fits" if memory.fits else "DOES NOT FIT", style=style)
    largest_first = sorted(memory.fullest.memory.parts, key=lambda part: -part.size_bytes)
    parts = [f"{part.name} {format_size(part.size_bytes)}" for part in largest_first]
    most = ", ".join(parts[:TOP_PURPOSES])
    return [line, Text(f"fullest: {name_ranks(memory.fullest.ranks)}; {most}, ...", style="dim")]


def _provenance(prediction: Prediction) -> list[RenderableType]:
    shares = [
        f"{ratio:.0%} {kind.word}" if ratio >= 0.005 else f"under 1 % {kind.word}"
        for kind, ratio in prediction.explanation.provenance_ratio.items()
    ]
    return [Text(" · ".join(shares) + " of the path")]


def _assumptions(prediction: Prediction) -> list[RenderableType]:
    return [sentences(prediction.assumptions)] if prediction.assumptions else []


def sentences(lines: Iterable[str]) -> Table:
    """A list of sentences."""
    table = Table.grid(padding=(0, 1))
    for line in lines:
        table.add_row("-", Text(printable(line)))
    return table


def one_line(words: str) -> Text:
    """*words*, cut where the line ends."""
    return Text(printable(words), overflow="ellipsis", no_wrap=True)


def _left_out(count: int, words: tuple[str, str]) -> list[RenderableType]:
    """How many are not shown; *words* are for one of them and for several."""
    what = words[count > 1]
    return [Text(f"and {count} more {what}; all are in --json", style="dim")] if count > 0 else []


def _grid(columns: int, *, left: int = 1) -> Table:
    """A table without lines; its first *left* columns hold words, the others numbers."""
    table = Table.grid(padding=(0, 2))
    for column in range(columns):
        table.add_column(
            justify="left" if column < left else "right", max_width=40 if column == 0 else None
        )
    return table
