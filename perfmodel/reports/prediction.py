"""The report of a prediction: verdict, time, where it goes, what decides it, waits, memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from perfmodel.base.provenance import Provenance
from perfmodel.base.units import BYTES_PER_GIB, NS_PER_MS, NS_PER_S, format_duration, format_size
from perfmodel.prediction.answer import Part, PathShare, Prediction, RankWait, TimeParts
from perfmodel.prediction.scenario import Mode, Scenario
from perfmodel.reports.blocks import (
    Bar,
    BarPart,
    Bars,
    Block,
    Headline,
    Look,
    Report,
    Section,
    Sentences,
    Table,
    TimelineBlock,
)
from perfmodel.reports.runs import run_section
from perfmodel.reports.text import (
    ask_again,
    build_scale,
    count_of,
    describe_fit,
    describe_interval,
    format_ranks,
    name_ranks,
    to_command,
)

if TYPE_CHECKING:
    from perfmodel.prediction.whole_run import TrainingRun

TERA = 1e12
FEWER_DRAWN = "Drawn is an iteration with fewer micro-batches; the whole has more of the same."
_DRAWN_WHOLE = 0.98
"""Share of the iteration that the timeline of a whole one covers, at least."""

PART_LOOKS = {
    Part.COMPUTE: (Look.GREEN, "compute"),
    Part.EXPOSED_COMMUNICATION: (Look.BLUE, "exposed communication"),
    Part.EXPOSED_COPIES: (Look.VIOLET, "exposed copies"),
    Part.WAITING_FOR_OTHER_RANKS: (Look.YELLOW, "waiting for other ranks"),
    Part.HOST_BOUND_IDLE: (Look.RED, "idle, host-bound"),
}
"""How a part is drawn and named."""
MEMORY_LOOKS = (
    Look.BLUE, Look.GREEN, Look.YELLOW, Look.RED, Look.VIOLET, Look.TEAL, Look.PINK, Look.GREY,
)  # fmt: skip
PROVENANCE_LOOKS = {
    Provenance.RECORDED: Look.DARK,
    Provenance.MEASURED: Look.GREEN,
    Provenance.INTERPOLATED: Look.TEAL,
    Provenance.EXTRAPOLATED: Look.BLUE,
    Provenance.ANALYTIC: Look.YELLOW,
    Provenance.ASSUMED: Look.RED,
}


def report_prediction(
    prediction: Prediction,
    price_per_gpu_hour: float | None = None,
    whole: TrainingRun | None = None,
) -> Report:
    """*prediction* as blocks; with a price it says what tokens cost, and so a *whole* run."""
    seconds, command = sum(prediction.run.phase_s.values()), None
    if prediction.scenario is not None:
        run = None if whole is None else whole.asked
        command = to_command("predict", prediction.scenario, run=run, price=price_per_gpu_hour)
    return Report(
        title=describe_title(prediction),
        headline=_headline(prediction, price_per_gpu_hour),
        sections=(
            *([] if whole is None else [run_section(whole)]),
            *iter_sections(prediction, command),
        ),
        footer=f"Where it ran: {prediction.run.executor}, {format_duration(seconds * NS_PER_S)}",
        rows=[
            {
                "ranks": format_ranks(entry.ranks),
                "count": len(entry.ranks),
                **{
                    f"{part.value}_ms": entry.time.of_part_ns.get(part, 0) / NS_PER_MS
                    for part in Part
                },
                "memory_gib": entry.memory.total_bytes / BYTES_PER_GIB
                if entry.memory.parts
                else None,
            }
            for entry in prediction.explanation.rank_classes
        ],
    ).warned(prediction.cautions)


def describe_title(prediction: Prediction) -> str:
    """The question in a line."""
    scenario = prediction.scenario
    ranks = count_of(prediction.facts.rank_count, "rank")
    name = scenario.workload if isinstance(scenario, Scenario) else prediction.facts.job
    if scenario is None or scenario.topology is None:
        return f"{name}, {ranks}"
    hosts = count_of(scenario.hosts or 1, "host")
    return f"{name} on {hosts} of {scenario.topology.removesuffix('.yaml')}, {ranks}"


def _headline(prediction: Prediction, price_per_gpu_hour: float | None) -> Headline:
    memory = prediction.memory
    verdict = "" if memory is None else describe_fit(memory)
    bound = (
        f"limited by {prediction.bound.name} ({prediction.bound_ratio:.0%} of the critical path)"
    )
    facts = (
        _speed(prediction),
        _utilisation(prediction, price_per_gpu_hour),
        bound if verdict else "",
        _other_time(prediction),
    )
    return Headline(
        verdict=verdict or bound,
        is_good=memory is None or memory.fits,
        answer=format_duration(prediction.iteration_ns),
        caption=f"per iteration, {describe_interval(prediction.interval)}",
        facts=tuple(fact for fact in facts if fact),
    )


def _speed(prediction: Prediction) -> str:
    """How much is done per second, or how many iterations where that is not known."""
    figures = prediction.yardsticks
    if figures is None:
        return f"{_number(NS_PER_S / max(prediction.iteration_ns, 1))} iterations/s"
    rate = f"{_number(figures.per_s)} {figures.unit}/s"
    if prediction.facts.rank_count > 1:
        rate += f", {_number(figures.per_s_per_gpu)} per GPU"
    return f"{rate}, at a batch of {figures.work.samples:,}"


def _number(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def _utilisation(prediction: Prediction, price_per_gpu_hour: float | None) -> str:
    """Operations per second and shares of the peak, and money where there is a price."""
    figures = prediction.yardsticks
    if figures is None:
        return ""
    words = []
    if figures.model_flops_per_gpu is not None:
        words.append(f"{figures.model_flops_per_gpu / TERA:.4g} model TFLOP/s per GPU")
    if figures.model_utilisation is not None and figures.hardware_utilisation is not None:
        words.append(f"MFU {figures.model_utilisation:.1%}")
        words.append(f"HFU {figures.hardware_utilisation:.1%}")
    if price_per_gpu_hour is not None:
        cost = figures.cost_per_million(price_per_gpu_hour)
        words.append(f"{cost:.4g} per million {figures.unit}")
    return ", ".join(words)


def _other_time(prediction: Prediction) -> str:
    """Which of the two times the answer is, and the other one; of a recording, its score."""
    if prediction.score is not None:
        error_pct, recorded = prediction.score.error_pct, prediction.recorded
        own = "" if recorded is None else f"recorded {format_duration(recorded.iteration_ns)}, "
        return f"{own}without the profiler; replays itself with an error of {error_pct:+.2f} %"
    assert prediction.isolated_ns is not None
    if prediction.mode is Mode.PERIOD:
        return f"in a running loop; a single step takes {format_duration(prediction.isolated_ns)}"
    return f"a single step; in a running loop it takes {format_duration(prediction.period_ns)}"


def iter_sections(
    prediction: Prediction, command: str | None = None, before: Prediction | None = None
) -> Iterator[Section]:
    """The sections of a prediction; *command* asks for it, if not `predict`.

    Above its timeline is the one *before* a change.
    """
    why = prediction.explanation
    named = [] if before is None else [("before", before)]
    named.append(("after" if named else "", prediction))
    yield Section("The question", more=lambda: _question(prediction, command))
    yield Section("Where the time goes", [Bars([parts_bar(why.time)]), *_classes(prediction)])
    yield Section("Timeline", more=lambda: draw_timelines(named))
    yield Section("What decides it: the critical path", _path(prediction))
    yield Section("Who waits for whom", [_waits(prediction)])
    yield Section("Memory", _memory(prediction))
    pieces = [
        BarPart(kind.word, PROVENANCE_LOOKS[kind], "", ratio)
        for kind, ratio in why.provenance_ratio.items()
        if ratio
    ]
    yield Section("How sure we are of each part of the critical path", [Bars([Bar(pieces)])])
    if prediction.narrowed_by:
        yield Section("What would narrow this", [Sentences(_narrowings(prediction))])
    yield Section("Assumptions", [Sentences(prediction.assumptions)])
    path = why.critical_path.by_kind
    yield Section("What to change next", [Sentences(next_changes(path))])


_MOST_CHANGES, _LESS = 3, 0.1


def next_changes(path: Iterable[PathShare]) -> list[str]:
    """What a tenth less of each of the largest parts of the critical *path* saves at most."""
    shares = sorted(path, key=lambda one: -one.duration_ns)
    return [
        f"{_LESS:.0%} less {share.name} saves up to {format_duration(_LESS * share.duration_ns)}"
        for share in shares[:_MOST_CHANGES]
        if share.duration_ns
    ]


def _narrowings(prediction: Prediction) -> list[str]:
    """What each value of a setting that nobody stated would take, and what leaves less unsure."""
    whole = max(prediction.iteration_ns, 1)
    said = [f"±{prediction.interval.half_width_ns / whole:.1%} today."]
    for one in prediction.open_settings:
        times = ", ".join(
            f"{value.value} {format_duration(value.iteration_ns)}"
            f"{'' if value.fits else ' (does not fit)'}, {value.weight:.0%} likely"
            for value in one.values
        )
        said.append(f"{one.setting} is not stated: {times}.")
    said += [
        f"±{one.half_width_ns / whole:.1%} expected: {one.what}" for one in prediction.narrowed_by
    ]
    return said


def _question(prediction: Prediction, command: str | None) -> list[Block]:
    facts = prediction.facts
    rows = [] if facts.batch is None else [("batch", f"{facts.batch:,}")]
    layout = [text for text in prediction.assumptions if text.startswith("Layout: ")]
    rows += [("layout", text.removeprefix("Layout: ")) for text in layout]
    rows += [("GPU", facts.device)] if facts.device else []
    if prediction.scenario is None:
        return [Table((), rows, code=(1,))]
    return ask_again("predict", prediction.scenario, rows, command)


def parts_bar(time: TimeParts, name: str = "", value: str = "") -> Bar:
    """A bar of the parts of *time* that are not empty."""
    total_ns = max(time.total_ns, 1)
    scale = build_scale(total_ns)
    pieces = []
    for part, (look, words) in PART_LOOKS.items():
        duration_ns = time.of_part_ns.get(part, 0)
        if duration_ns:
            pieces.append(BarPart(words, look, scale(duration_ns), duration_ns / total_ns))
    return Bar(pieces, name, value)


def compare_parts(answers: Iterable[tuple[str, Prediction]]) -> Bars:
    """Where the time goes in several *answers*."""
    return Bars(
        [
            parts_bar(found.explanation.time, name, format_duration(found.iteration_ns))
            for name, found in answers
        ],
        "colours",
    )


def draw_timelines(answers: Iterable[tuple[str, Prediction]]) -> list[Block]:
    """What happens when in one or several *answers*."""
    blocks: list[Block] = []
    for name, found in answers:
        blocks.append(TimelineBlock(found.evidence, name))
        if found.evidence.window.length_ns < _DRAWN_WHOLE * found.iteration_ns:
            blocks.append(Sentences([FEWER_DRAWN]))
    return blocks


def _classes(prediction: Prediction) -> list[Block]:
    classes = prediction.explanation.rank_classes
    if len(classes) < 2:
        return []
    bars = []
    for entry in classes:
        size = f"holds {format_size(entry.memory.total_bytes)}" if entry.memory.parts else ""
        bars.append(parts_bar(entry.time, name_ranks(entry.ranks), size))
    mean = f"Mean of {prediction.facts.rank_count} ranks. By class of ranks:"
    return [Sentences([mean]), Bars(bars, "none", most=8)]


def _path(prediction: Prediction) -> list[Block]:
    path = prediction.explanation.critical_path
    times = "once" if path.rank_changes == 1 else f"{path.rank_changes} times"
    crossings = [f"The path crosses to another rank {times}."] if path.rank_changes else []
    return [
        _shares("kind", path.by_kind, path.length_ns),
        _shares("longest on it", path.by_label, path.length_ns),
        Sentences(crossings),
    ]


def _shares(heading: str, shares: Sequence[PathShare], total_ns: int) -> Table:
    scale = build_scale(total_ns)
    rows = [
        (
            share.name,
            scale(share.duration_ns),
            f"{share.duration_ns / max(total_ns, 1):.1%}",
            f"{share.task_count:,}",
        )
        for share in shares
    ]
    is_label = heading != "kind"
    return Table(
        (heading, "time", "share", "tasks"),
        rows,
        numeric=(1, 2, 3),
        finds=(0,) if is_label else (),
        most=6 if is_label else len(rows),
    )


def _waits(prediction: Prediction) -> Block:
    """Waits gathered by who is awaited and in what; most time lost in all first."""
    crowds: dict[tuple[int, str], list[RankWait]] = {}
    for wait in prediction.explanation.waits:
        crowds.setdefault((wait.awaited_rank, wait.label), []).append(wait)
    if not crowds:
        return Sentences(["No rank waits for another."])

    def lost_ns(members: Sequence[RankWait]) -> int:
        return sum(wait.duration_ns * len(wait.waiting_ranks) for wait in members)

    scale = build_scale(prediction.iteration_ns)
    rows = []
    for (awaited, label), members in sorted(
        crowds.items(), key=lambda crowd: (-lost_ns(crowd[1]), crowd[0])
    ):
        ranks = sorted(rank for wait in members for rank in wait.waiting_ranks)
        longest_ns = max(wait.duration_ns for wait in members)
        mean, most = scale(lost_ns(members) / len(ranks)), scale(longest_ns)
        tables = next((wait.tables for wait in members if wait.tables), ())
        because = f": {', '.join(tables)}" if tables else ""
        rows.append((name_ranks(ranks), f"rank {awaited}{because}", label, mean, most))
    headings = ("who", "for", "in", "each loses", "at most")
    return Table(headings, rows, numeric=(3, 4), finds=(2,), wraps=(0, 1, 2), most=4)


def _memory(prediction: Prediction) -> list[Block]:
    memory = prediction.memory
    if memory is None:
        return []
    whole_bytes = max(memory.capacity_bytes, memory.peak_bytes)
    parts = sorted(memory.fullest.memory.parts, key=lambda part: -part.size_bytes)
    pieces = [
        BarPart(part.name, look, format_size(part.size_bytes), part.size_bytes / whole_bytes)
        for part, look in zip(parts, MEMORY_LOOKS * len(parts), strict=False)
        if part.size_bytes
    ]
    sizes = f"{format_size(memory.peak_bytes)} of {format_size(memory.capacity_bytes)}"
    fullest = f"Fullest: {name_ranks(memory.fullest.ranks)}, {sizes}."
    return [Bars([Bar(pieces)]), Sentences([fullest])]
