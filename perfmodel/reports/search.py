"""The report of a search of layouts, its JSON, and the flags of public trainers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.cautions import Cautions, join_cautions
from perfmodel.base.documents import load_yaml
from perfmodel.base.errors import InputError
from perfmodel.base.units import NS_PER_HOUR, NS_PER_MS, NS_PER_S, format_duration, format_size
from perfmodel.planning.layouts.ranking import LayoutRanking, RankedLayout, best_of, pareto
from perfmodel.prediction.scenario import Scenario, overrides_of
from perfmodel.prediction.whole_run import HOURS_PER_DAY
from perfmodel.reports.blocks import (
    Command,
    Headline,
    Look,
    Plot,
    Point,
    Report,
    Section,
    Sentences,
    Table,
    time_bars,
)
from perfmodel.reports.document import interval_ms
from perfmodel.reports.prediction import compare_parts
from perfmodel.reports.runs import format_days, run_cells, run_section
from perfmodel.reports.text import (
    ask_again,
    count_of,
    describe_interval,
    format_range,
    pick,
    to_command,
)
from perfmodel.stacks.schedules import DEFAULT_SCHEDULE, load_schedules
from perfmodel.workloads.transformer.axes import AXES, Divided
from perfmodel.workloads.transformer.words import ContextKind

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA_VERSION = 1
OPTIONAL = ("tokens/s/GPU", "90 % interval", "beats next")
"""Columns that a narrow terminal drops, the last one first."""
TALLIED = (
    "considered",
    "too_large",
    "pruned",
    "untried",
    "replayed",
    "is_proven",
    "is_braked",
    "space",
)
FLAGS = Path(__file__).parent / "flags.yaml"
_CONTEXT_WORDS = {
    ContextKind.RING: "p2p",
    ContextKind.ALL_GATHER: "all_gather",
    ContextKind.ALL_TO_ALL: "a2a",
}


def to_search_document(rankings: Sequence[LayoutRanking]) -> dict[str, Any]:
    """The machine-readable answer."""
    question = rankings[0].question
    front = {one.hosts for one in pareto(rankings)}
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "search",
        "question": {
            **pick(question, "topology", "workload", "stack", "price_per_gpu_hour"),
            "set": list(question.overrides),
            "hosts": list(question.hosts),
            **({} if question.tokens is None else {"tokens": question.tokens}),
        },
        "searches": [
            {
                "hosts": one.hosts,
                "gpus": one.rank_count,
                "on_pareto_front": one.hosts in front,
                **pick(one.tally, *TALLIED),
                "reasons": list(one.reasons),
                "layouts": [_entry(one, layout) for layout in one.layouts],
                **_run_document(one),
            }
            for one in rankings
        ],
        **_cautions(rankings).document(),
    }


def _run_document(ranking: LayoutRanking) -> dict[str, Any]:
    run = ranking.run_of(ranking.best)
    return {} if run is None else {"training_run": run.document()}


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
        **pick(spread, *AXES, "micro_batch", "micro_batches"),
        "sequence_parallel": spread.is_sequence_parallel,
        "interleaving": spread.interleaving,
        "sharding": spec.parallel.sharding.value,
        "recompute": spec.training.recompute.value,
    }


def _tokens_per_s(ranking: LayoutRanking, layout: RankedLayout) -> float:
    return ranking.tokens * NS_PER_S / layout.time_ns


def build_flags(layout: RankedLayout) -> dict[str, str]:
    """What to type for *layout*, by trainer; none for those that do not have its schedule."""
    spread, spec = layout.candidate.chosen.layout, layout.candidate.spec
    parallel = spec.parallel
    schedule = parallel.schedule
    names = load_schedules()[schedule].trainers
    holds = {
        "sequence_parallel": spread.is_sequence_parallel,
        "interleaved": parallel.interleaving > 1,
        "ordered": schedule != DEFAULT_SCHEDULE,
        "pipelined": spread.pp > 1,
        "overlaps_experts": spec.parallel.expert_overlap,
        **({f"dispatcher_{parallel.dispatcher.value}": True} if parallel.dispatcher else {}),
        spec.parallel.sharding.value: True,
        f"recompute_{spec.training.recompute.value}": True,
    }
    numbers = {
        **_numbers(layout),
        "batch": spec.batch,
        "cp_words": _CONTEXT_WORDS[spec.parallel.cp_kind],
        "replicas": spread.replicas,
        "shard": spread.shard_ranks // spread.sharers,
        "local_batch": spread.micro_batch * spread.micro_batches,
        "layers_per_run": spec.model.layers // (spread.pp * spread.interleaving),
    }
    degrees = [
        axis for axis in AXES.values() if axis.is_set(getattr(spread, axis.name), spec.model)
    ]
    trainers = load_yaml(FLAGS, error_type=InputError)
    return {
        trainer: " ".join(
            text.format(**numbers, schedule=names.get(trainer))
            for text in (
                *(axis.flags[trainer] for axis in degrees if trainer in axis.flags),
                *(text for when, text in words.items() if when == "always" or holds.get(when)),
            )
        )
        for trainer, words in trainers.items()
        if schedule == DEFAULT_SCHEDULE or trainer in names
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


def report_search(rankings: Sequence[LayoutRanking]) -> Report:
    """The fastest layouts for every number of hosts."""
    best = best_of(rankings)
    question = best.question
    flags = build_flags(best.best).items()
    interval = describe_interval(best.best.interval)
    fastest = "fastest" if best.tally.is_proven else "the fastest found"
    return Report(
        title=f"Layouts of {question.workload} on {question.topology}",
        headline=Headline(
            verdict=f"{best.best.name} fits and is {fastest}",
            answer=format_duration(best.best.time_ns),
            caption=f"per iteration on {best.rank_count} GPUs, {interval}",
            facts=_goals(best, rankings),
        ),
        sections=(
            Section("The question", more=lambda: ask_again("search", question)),
            *_whole_run(best),
            *(section for one in rankings for section in (_layouts(one), _parts(one))),
            Section(
                "Time by number of GPUs",
                [Sentences(_front(rankings))] if len(rankings) > 1 else [],
                more=lambda: [_scaling(rankings)],
            ),
            Section("Time and money of whole runs", _money_front(rankings)),
            Section("To run the fastest", [Command(text, trainer) for trainer, text in flags]),
            Section("To predict the fastest again", [Command(predict_again(best))]),
        ),
        rows=to_search_rows(rankings),
        columns=160,
    ).warned(_cautions(rankings))


def _cautions(rankings: Sequence[LayoutRanking]) -> Cautions:
    """Those of all layouts that are listed."""
    return join_cautions(one.found.cautions for ranking in rankings for one in ranking.layouts)


def predict_again(ranking: LayoutRanking) -> str:
    """The command that predicts the best layout of *ranking*, with all that it was asked with."""
    question, best = ranking.question, ranking.best.candidate
    # A stack that a file leaves open follows from its layout, which the search changed.
    stack = question.stack or (best.stack.name if best.stack.name != best.spec.stack else None)
    chosen = overrides_of(best.overrides)
    fixed = {text.partition("=")[0].strip() for text in chosen}
    kept = [one for one in question.overrides if one.partition("=")[0].strip() not in fixed]
    scenario = Scenario(
        topology=question.topology,
        workload=question.workload,
        overrides=(*kept, *chosen),
        hosts=ranking.hosts,
        ranks_per_host=question.ranks_per_host,
        stack=stack,
        calibration=question.calibration,
    )
    return to_command("predict", scenario, run=question.whole, price=question.price_per_gpu_hour)


def _goals(best: LayoutRanking, rankings: Sequence[LayoutRanking]) -> tuple[str, ...]:
    """Why this number of hosts, where a whole run was asked for."""
    question, run = best.question, best.run_of(best.best)
    if run is None:
        return ()
    facts = [f"{format_days(run.expected_days)} for {run.count:,.0f} tokens"]
    if question.finish_in_ns is not None:
        days = question.finish_in_ns / NS_PER_HOUR / HOURS_PER_DAY
        if best.is_in_time:
            facts.append(f"the fewest GPUs of those tried that finish within {format_days(days)}")
        else:
            # Twice as many hosts take half as long at best.
            more = best.hosts * 2 ** math.ceil(math.log2(run.expected_days / days))
            late = f"none of those tried finishes within {format_days(days)}; this is the fastest"
            facts.append(f"{late}, try --hosts {more},{2 * more}")
    elif len(rankings) > 1:
        facts.append(f"the fastest of {len(rankings)} numbers of hosts")
    return tuple(facts)


def _whole_run(best: LayoutRanking) -> list[Section]:
    run = best.run_of(best.best)
    return [] if run is None else [run_section(run)]


def _scaling(rankings: Sequence[LayoutRanking]) -> Plot:
    """The fastest layout of every number of GPUs; those that pay are green."""
    front = {one.hosts for one in pareto(rankings)}
    points = [
        Point(
            one.rank_count,
            one.best.time_ns / NS_PER_S,
            f"{one.rank_count} GPUs: {one.best.name}, {format_duration(one.best.time_ns)}",
            (one.best.interval.low_ns / NS_PER_S, one.best.interval.high_ns / NS_PER_S),
            Look.GREEN if one.hosts in front else Look.GREY,
        )
        for one in sorted(rankings, key=lambda one: one.rank_count)
    ]
    note = "Green where no smaller number is as fast. The thin line is the 90 % interval."
    return Plot(points, "GPUs", "seconds per iteration", note=note, are_log=True, are_joined=True)


def _money_front(rankings: Sequence[LayoutRanking]) -> list[Table]:
    """Days and money of every number of hosts; a star where no other has less of both."""
    runs = [one.run_of(one.best) for one in rankings]
    known = [(run.expected_days, run.cost or run.gpu_hours) for run in runs if run is not None]
    if len(known) < 2:
        return []
    rows = []
    for one, run in zip(rankings, runs, strict=True):
        if run is not None:
            own = run.expected_days, run.cost or run.gpu_hours
            is_beaten = any(a <= own[0] and b <= own[1] and (a, b) != own for a, b in known)
            rows.append([str(one.rank_count), *run_cells(run).values(), "" if is_beaten else "*"])
    headings = ["GPUs", *run_cells(next(run for run in runs if run is not None)), "front"]
    return [Table(headings, rows, numeric=range(len(headings)))]


def _layouts(ranking: LayoutRanking) -> Section:
    """The layouts on one number of hosts."""
    tally = ranking.tally
    proof = "no other of these can be faster"
    if not tally.is_proven:
        limit = "--seconds" if tally.is_braked else "--work"
        proof = f"{limit} ended it with {tally.untried} untried: another may be faster"
    counts = (
        f"{tally.considered} layouts: {tally.too_large} do not fit, {tally.pruned} pruned by a "
        f"bound, {tally.replayed} replayed; {proof}."
    )
    times = [(name, one.time_ns, one.interval) for name, one in _named(ranking)]
    return Section(
        f"On {count_of(ranking.rank_count, 'GPU')}, {count_of(ranking.hosts, 'host')}",
        [Sentences([counts]), _table(ranking), Sentences(ranking.reasons)],
        more=lambda: [time_bars(times, ranking.best.time_ns)],
    )


def _named(ranking: LayoutRanking) -> list[tuple[str, RankedLayout]]:
    return [(f"{place}. {_full_name(one)}", one) for place, one in enumerate(ranking.layouts, 1)]


def _parts(ranking: LayoutRanking) -> Section:
    """Where the time goes in the best layout, and in the next with another split."""
    found = [(name, one.explained) for name, one in _named(ranking) if one.explained is not None]
    title = f"Where the time goes on {count_of(ranking.rank_count, 'GPU')}"
    return Section(title, more=lambda: [compare_parts(found)])


def _table(ranking: LayoutRanking) -> Table:
    """One line per layout; columns that are 1 everywhere are left out."""
    often_one = {"runs"} | {axis.name for axis in AXES.values() if not axis.is_always_told}
    rows = [_cells(ranking, layout, place) for place, layout in enumerate(ranking.layouts, 1)]
    shown = [
        heading
        for heading in rows[0]
        if heading not in often_one or any(row[heading] != "1" for row in rows)
    ]
    return Table(
        shown,
        [[row[heading] for heading in shown] for row in rows],
        numeric=range(len(shown)),
        optional=[shown.index(heading) for heading in OPTIONAL],
    )


def _cells(ranking: LayoutRanking, layout: RankedLayout, place: int) -> dict[str, str]:
    """One line of the table, by heading."""
    spread, spec = layout.candidate.chosen.layout, layout.candidate.spec
    beats = "" if layout.beats_next is None else f"{100 * layout.beats_next:.0f} %"
    is_split = spread.is_sequence_parallel and spread.tp > 1
    cells = {
        "": str(place),
        "time": format_duration(layout.time_ns),
        "90 % interval": format_range(layout.interval.low_ns, layout.interval.high_ns),
        "tokens/s/GPU": f"{_tokens_per_s(ranking, layout) / ranking.rank_count:,.0f}",
        **{
            axis.name: str(getattr(spread, axis.name))
            + (" sp" if is_split and axis.divided is Divided.WIDTHS else "")
            for axis in AXES.values()
            if axis.is_always_told or axis.values is not None
        },
        "micro-batch": f"{spread.micro_batch} x {spread.micro_batches}",
        "runs": " ".join((str(spread.interleaving), *_schedule_words(layout))),
        "sharding": spec.parallel.sharding.value,
        "recompute": spec.training.recompute.value,
        **({"tokens by": _exchange_words(layout)} if spec.model.has_experts else {}),
        "memory": format_size(layout.candidate.peak_bytes),
        "beats next": f"{beats}, a tie" if layout.is_tied_with_next else beats,
    }
    cost = ranking.cost_per_million_tokens(layout)
    return cells if cost is None else {**cells, "per M tokens": f"{cost:.3f}"}


def _exchange_words(layout: RankedLayout) -> str:
    """What takes tokens to experts, and whether another micro-batch computes meanwhile."""
    candidate = layout.candidate
    if candidate.chosen.layout.ranks_of(Divided.EXPERTS) == 1:
        return ""
    dispatcher = candidate.spec.parallel.dispatcher or candidate.stack.dispatchers[0]
    return dispatcher.value + (", overlapped" if candidate.spec.parallel.expert_overlap else "")


def _schedule_words(layout: RankedLayout) -> list[str]:
    """The order of micro-batches, where it is not that of 1F1B."""
    schedule = layout.candidate.spec.parallel.schedule
    return [schedule] if schedule != DEFAULT_SCHEDULE else []


def _full_name(layout: RankedLayout) -> str:
    """The split, and what else distinguishes layouts of one split."""
    numbers = _numbers(layout)
    words = [
        layout.name,
        "sp" if numbers["sequence_parallel"] else "",
        f"runs={numbers['interleaving']}" if numbers["interleaving"] > 1 else "",
        *_schedule_words(layout),
        numbers["sharding"].replace("none", ""),
        f"recompute {numbers['recompute']}" if numbers["recompute"] != "none" else "",
        _exchange_words(layout),
    ]
    return " ".join(word for word in words if word)


def _front(rankings: Sequence[LayoutRanking]) -> list[str]:
    """The front of time against GPUs, and what each point of it costs where a price is known."""
    lines = []
    for one in pareto(rankings):
        cost = one.cost_per_million_tokens(one.best)
        money = "" if cost is None else f", {cost:.3f} per million tokens"
        time_text = format_duration(one.best.time_ns)
        lines.append(f"{one.rank_count} GPUs: {time_text}{money}, {one.best.name}")
    return lines
