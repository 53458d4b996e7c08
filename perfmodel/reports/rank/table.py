"""A ranking on the screen: one line a plan, then what stands behind the first."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from perfmodel.base.units import BYTES_PER_GIB, NS_PER_MS, format_duration
from perfmodel.planning.ranking import RankedPlan, Ranking


def print_ranking(ranking: Ranking, console: Console) -> None:
    """Show *ranking* on *console*."""
    table = Table(box=None, pad_edge=False)
    for heading in ("", "plan", "time ms", "90 % interval", "beats next", "bound by"):
        table.add_column(heading, justify="left" if heading in ("plan", "bound by") else "right")
    for heading in ("straggler", "memory GiB"):
        table.add_column(heading, justify="left" if heading == "straggler" else "right")
    has_spread = any(plan.spread for plan in ranking.plans)
    if has_spread:
        table.add_column("batches p5-p95 ms", justify="right")
    for line in ranking.facts:
        console.print(line)
    console.print()
    above = 0
    for plan in ranking.plans:
        table.add_row(*_cells("=" if plan.place == above else str(plan.place), plan, has_spread))
        above = plan.place
    console.print(table)
    _print_rest(ranking, console)


def _cells(place: str, plan: RankedPlan, has_spread: bool) -> list[str]:
    low, high = plan.answer.interval.low_ns / NS_PER_MS, plan.answer.interval.high_ns / NS_PER_MS
    cells = [
        place,
        plan.plan.name,
        f"{plan.answer.iteration_ns / NS_PER_MS:.3f}",
        f"{low:.2f}-{high:.2f}",
        "" if plan.beats_next is None else f"{100 * plan.beats_next:.0f} %",
        plan.bound.value,
        f"{plan.straggler.rank}: {', '.join(plan.straggler.tables) or 'no table'}",
        f"{plan.loads.peak_bytes / BYTES_PER_GIB:.1f}{'' if plan.fits else ' too much'}",
    ]
    if has_spread:
        spread = plan.spread
        cells.append(
            ""
            if spread is None
            else f"{spread.low_ns / NS_PER_MS:.2f}-{spread.high_ns / NS_PER_MS:.2f}"
        )
    return cells


def _print_rest(ranking: Ranking, console: Console) -> None:
    best = ranking.plans[0]
    console.print()
    console.print(ranking.verdict)
    console.print(
        f"{best.plan.name}: the others wait {format_duration(best.straggler.waited_ns)} for rank "
        f"{best.straggler.rank} on average; a tenth less of each would save: "
        + ", ".join(
            f"{bound.value} {format_duration(gain)}" for bound, gain in best.gains_ns.items()
        )
        + "."
    )
    for refusal in ranking.refusals:
        console.print(f"not ranked: {refusal}")
    console.print(f"{ranking.plans_judged} plans judged.")
