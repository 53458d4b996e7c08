"""A search of layouts, shown: table, CSV, JSON, and the flags of public trainers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.documents import load_yaml
from perfmodel.base.errors import InputError
from perfmodel.base.units import NS_PER_MS, NS_PER_S, format_duration, format_size
from perfmodel.planning.layouts.ranking import LayoutRanking, RankedLayout, pareto
from perfmodel.reports.document import interval_ms
from perfmodel.workloads.transformer.spec import ContextKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

SCHEMA_VERSION = 1
HEADINGS = (
    "", "time", "90 % interval", "tokens/s/GPU", "tp", "pp", "cp", "ep", "dp", "micro-batch",
    "runs", "sharding", "recompute", "memory", "beats next",
)  # fmt: skip
FLAGS = Path(__file__).parent / "flags.yaml"
_CONTEXT_WORDS = {ContextKind.RING: "p2p", ContextKind.ALL_GATHER: "all_gather"}


def to_search_document(rankings: Sequence[LayoutRanking]) -> dict[str, Any]:
    """The machine-readable answer."""
    question = rankings[0].question
    front = {one.hosts for one in pareto(rankings)}
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "search",
        "question": {
            "topology": question.topology,
            "workload": question.workload,
            "set": list(question.overrides),
            "hosts": list(question.hosts),
            "stack": question.stack,
            "price_per_gpu_hour": question.price_per_gpu_hour,
        },
        "searches": [
            {
                "hosts": one.hosts,
                "gpus": one.rank_count,
                "on_pareto_front": one.hosts in front,
                "considered": one.tally.considered,
                "too_large": one.tally.too_large,
                "pruned": one.tally.pruned,
                "untried": one.tally.untried,
                "replayed": one.tally.replayed,
                "is_proven": one.tally.is_proven,
                "reasons": list(one.reasons),
                "layouts": [_entry(one, layout) for layout in one.layouts],
            }
            for one in rankings
        ],
    }


def _entry(ranking: LayoutRanking, layout: RankedLayout) -> dict[str, Any]:
    return {
        **_numbers(layout),
        "iteration_time_ms": layout.time_ns / NS_PER_MS,
        "interval_ms": interval_ms(layout.interval),
        "bound_ms": layout.bound_ns / NS_PER_MS,
        "tokens_per_s": _tokens_per_s(ranking, layout),
        "tokens_per_s_per_gpu": _tokens_per_s(ranking, layout) / ranking.rank_count,
        "memory_gib": layout.candidate.peak_bytes / 2**30,
        "beats_next": layout.beats_next,
        "tied_with_next": layout.is_tied_with_next,
        "cost_per_million_tokens": ranking.cost_per_million_tokens(layout),
        "set": dict(layout.candidate.overrides),
        "flags": build_flags(layout),
    }


def _numbers(layout: RankedLayout) -> dict[str, Any]:
    spread, spec = layout.candidate.chosen.layout, layout.candidate.spec
    return {
        "tp": spread.tp,
        "pp": spread.pp,
        "cp": spread.cp,
        "ep": spread.ep,
        "etp": spread.etp,
        "dp": spread.dp,
        "micro_batch": spread.micro_batch,
        "micro_batches": spread.micro_batches,
        "sequence_parallel": spread.is_sequence_parallel,
        "interleaving": spread.interleaving,
        "sharding": spec.parallel.sharding.value,
        "recompute": spec.training.recompute.value,
    }


def _tokens_per_s(ranking: LayoutRanking, layout: RankedLayout) -> float:
    return ranking.tokens * NS_PER_S / layout.time_ns


def build_flags(layout: RankedLayout) -> dict[str, str]:
    """What to type for *layout*, by trainer."""
    spread, spec = layout.candidate.chosen.layout, layout.candidate.spec
    holds = {
        "sequence_parallel": spread.is_sequence_parallel,
        "interleaved": spread.interleaving > 1,
        "pipelined": spread.pp > 1,
        "shares_sequences": spread.cp > 1,
        "has_experts": spec.model.has_experts,
        spec.parallel.sharding.value: True,
        f"recompute_{spec.training.recompute.value}": True,
    }
    numbers = {
        **_numbers(layout),
        "batch": spec.batch,
        "cp_words": _CONTEXT_WORDS[spec.parallel.cp_kind],
        "local_batch": spread.micro_batch * spread.micro_batches,
        "layers_per_run": spec.model.layers // (spread.pp * spread.interleaving),
    }
    said = load_yaml(FLAGS, error_type=InputError)
    return {
        trainer: " ".join(
            text.format(**numbers)
            for when, text in words.items()
            if when == "always" or holds.get(when)
        )
        for trainer, words in said.items()
    }


def to_search_rows(rankings: Sequence[LayoutRanking]) -> list[dict[str, Any]]:
    """A flat row per layout."""
    rows = [
        {"hosts": one.hosts, "gpus": one.rank_count, **_entry(one, layout)}
        for one in rankings
        for layout in one.layouts
    ]
    for row in rows:
        row["low_ms"], row["high_ms"] = row.pop("interval_ms")
        del row["set"], row["flags"]
    return rows


def print_search(rankings: Sequence[LayoutRanking], console: Console) -> None:
    """Tables for people, the winner's reasons and its flags."""
    for one in rankings:
        _print_one(one, console)
    if len(rankings) > 1:
        console.print("\nMore GPUs that pay:", style="bold")
        for sentence in to_front_lines(rankings):
            console.print(f"  {sentence}", markup=False)
    best = min(rankings, key=lambda one: one.best.time_ns).best
    console.print("\nTo run the fastest:", style="bold")
    for trainer, words in build_flags(best).items():
        console.print(f"  {trainer}: {words}", markup=False, soft_wrap=True)


def to_front_lines(rankings: Sequence[LayoutRanking]) -> list[str]:
    """The front of time against GPUs, and what each point of it costs where a price is known."""
    lines = []
    for one in pareto(rankings):
        cost = one.cost_per_million_tokens(one.best)
        money = "" if cost is None else f", {cost:.3f} a million tokens"
        time_text = format_duration(one.best.time_ns)
        lines.append(f"{one.rank_count} GPUs: {time_text}{money}, {one.best.name}")
    return lines


def to_tally_line(ranking: LayoutRanking) -> str:
    """What became of the layouts, and whether the first is surely the fastest."""
    tally = ranking.tally
    proof = "no other can be faster"
    if not tally.is_proven:
        proof = f"time was up with {tally.untried} untried: another may be faster"
    return (
        f"{tally.considered} layouts: {tally.too_large} do not fit, {tally.pruned} pruned by a "
        f"bound, {tally.replayed} replayed; {proof}"
    )


def _print_one(ranking: LayoutRanking, console: Console) -> None:
    from rich.table import Table

    console.print(
        f"{ranking.question.workload} on {ranking.hosts} x {ranking.question.topology}, "
        f"{ranking.rank_count} GPUs",
        style="bold",
        markup=False,
    )
    console.print(f"  {to_tally_line(ranking)}", markup=False)
    has_price = ranking.question.price_per_gpu_hour is not None
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for heading in [*HEADINGS, *(["per M tokens"] if has_price else [])]:
        table.add_column(heading, justify="right")
    for number, layout in enumerate(ranking.layouts, 1):
        table.add_row(*to_layout_cells(ranking, layout, number))
    console.print(table)
    for sentence in ranking.reasons:
        console.print(f"  {sentence}", markup=False)


def to_layout_cells(ranking: LayoutRanking, layout: RankedLayout, number: int) -> list[str]:
    """One line of the table."""
    spread, numbers = layout.candidate.chosen.layout, _numbers(layout)
    beats = "" if layout.beats_next is None else f"{100 * layout.beats_next:.0f} %"
    cells = [
        str(number),
        format_duration(layout.time_ns),
        f"{format_duration(layout.interval.low_ns)} to {format_duration(layout.interval.high_ns)}",
        f"{_tokens_per_s(ranking, layout) / ranking.rank_count:,.0f}",
        f"{spread.tp} sp" if spread.is_sequence_parallel and spread.tp > 1 else str(spread.tp),
        str(spread.pp),
        str(spread.cp),
        str(spread.ep),
        str(spread.dp),
        f"{spread.micro_batch} x {spread.micro_batches}",
        str(spread.interleaving),
        numbers["sharding"],
        numbers["recompute"],
        format_size(layout.candidate.peak_bytes),
        f"{beats} tie" if layout.is_tied_with_next else beats,
    ]
    cost = ranking.cost_per_million_tokens(layout)
    return cells if cost is None else [*cells, f"{cost:.3f}"]
