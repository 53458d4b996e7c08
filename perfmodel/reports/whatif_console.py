"""What-if console: a comparison for a person at a terminal of 80 columns.

Labels come from traces, so everything is printed as plain text, never as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfmodel.base.units import format_duration
from perfmodel.prediction.comparison import Comparison, SweepAnswer
from perfmodel.prediction.outcome import Outcome
from perfmodel.reports.duration_text import build_scale
from perfmodel.reports.plain_text import printable
from perfmodel.reports.rank_text import format_ranks
from perfmodel.reports.whatif_document import change_pct

TOP_WAITS = 4
BAR_WIDTH = 30


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print *comparison*, most important first."""
    parts: list[RenderableType] = [*_heading(comparison)]
    parts += _section("Step by step", _steps(comparison))
    if comparison.sweep is not None:
        parts += _section(_sweep_title(comparison.sweep), _sweep(comparison))
    parts += _section("Where the time goes", [_time_parts(comparison)])
    parts += _section("What decides it: the critical path", [_paths(comparison)])
    parts += _section("Who waits for whom", _waits(comparison))
    sentences = (*comparison.own_assumptions, *comparison.assumptions)
    parts += _section("Assumptions", [_sentences(sentences)] if sentences else [])
    console.print(Group(*parts))


def _heading(comparison: Comparison) -> Iterable[RenderableType]:
    before, after, score = comparison.before, comparison.after, comparison.score
    yield Text(printable(f"What if: {comparison.job}"), style="bold")
    line = Text(f"\n  {format_duration(before.iteration_ns)}")
    line.append(" -> ").append(format_duration(after.iteration_ns), style="bold green")
    line.append(f" an iteration, {_change(before, after)}")
    yield line
    if score is not None:
        words = (
            f"  the recording replays itself with an error of {score.iteration.error_pct:+.2f} %"
        )
        yield Text(words, style="dim" if score.is_trusted else "bold red")


def _change(before: Outcome, after: Outcome) -> str:
    if before.iteration_ns == after.iteration_ns:
        return "no change"
    factor = before.iteration_ns / max(after.iteration_ns, 1)
    return f"{change_pct(before, after):+.1f} % ({factor:.3g} times as fast)"


def _steps(comparison: Comparison) -> list[RenderableType]:
    if len(comparison.steps) < 2:
        return []
    table = _table("after", "iteration", "change")
    for step in comparison.steps:
        table.add_row(
            _one_line(step.text),
            format_duration(step.outcome.iteration_ns),
            f"{change_pct(comparison.before, step.outcome):+.1f} %",
        )
    return [table]


def _sweep_title(sweep: SweepAnswer) -> str:
    return f"Sweep of {sweep.key} in {sweep.name}"


def _sweep(comparison: Comparison) -> list[RenderableType]:
    assert comparison.sweep is not None
    sweep, base = comparison.sweep, comparison.after
    longest_ns = max([base.iteration_ns, *(step.outcome.iteration_ns for step in sweep.steps), 1])
    table = _table(sweep.key, "iteration", "change")
    table.add_column()
    for value, step in zip(sweep.values, sweep.steps, strict=True):
        iteration_ns = step.outcome.iteration_ns
        table.add_row(
            _one_line(value),
            format_duration(iteration_ns),
            f"{change_pct(base, step.outcome):+.1f} %",
            Text("█" * round(BAR_WIDTH * iteration_ns / longest_ns), style="green"),
        )
    return [table]


def _time_parts(comparison: Comparison) -> Table:
    before, after = comparison.before.explanation.time, comparison.after.explanation.time
    return _side_by_side(
        {part.value.replace("_", " "): ns for part, ns in before.of_part_ns.items()},
        {part.value.replace("_", " "): ns for part, ns in after.of_part_ns.items()},
        comparison,
    )


def _paths(comparison: Comparison) -> Table:
    return _side_by_side(
        comparison.before.path_by_kind_ns(), comparison.after.path_by_kind_ns(), comparison
    )


def _side_by_side(
    before: Mapping[str, int], after: Mapping[str, int], comparison: Comparison
) -> Table:
    scale = build_scale(max(comparison.before.iteration_ns, comparison.after.iteration_ns))
    table = _table("", "before", "after")
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) or after.get(name):
            table.add_row(
                _one_line(name), scale.text(before.get(name, 0)), scale.text(after.get(name, 0))
            )
    return table


def _waits(comparison: Comparison) -> list[RenderableType]:
    before, after = _waits_of(comparison.before), _waits_of(comparison.after)
    names = sorted(
        {*before, *after}, key=lambda name: -max(before.get(name, 0), after.get(name, 0))
    )
    if not names:
        return [Text("no rank waits for another", style="dim")]
    shown = names[:TOP_WAITS]
    rows: list[RenderableType] = [
        _side_by_side(
            {name: before.get(name, 0) for name in shown},
            {name: after.get(name, 0) for name in shown},
            comparison,
        )
    ]
    if len(names) > len(shown):
        rows.append(Text(f"and {len(names) - len(shown)} more; all are in --json", style="dim"))
    return rows


def _waits_of(outcome: Outcome) -> dict[str, int]:
    """How long ranks wait in an iteration, by who waits for whom."""
    totals: dict[str, int] = {}
    for wait in outcome.explanation.waits:
        name = f"rank {format_ranks(wait.waiting_ranks)} for rank {wait.awaited_rank}"
        totals[name] = totals.get(name, 0) + wait.duration_ns
    return totals


def _sentences(sentences: Iterable[str]) -> Table:
    table = Table.grid(padding=(0, 1))
    for sentence in sentences:
        table.add_row("-", Text(printable(sentence)))
    return table


def _section(title: str, body: Iterable[RenderableType]) -> list[RenderableType]:
    parts = list(body)
    if not parts:
        return []
    return [Text(f"\n{title}", style="bold"), *(Padding(part, (0, 0, 0, 2)) for part in parts)]


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first, max_width=40)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _one_line(words: str) -> Text:
    return Text(printable(words), overflow="ellipsis", no_wrap=True)
