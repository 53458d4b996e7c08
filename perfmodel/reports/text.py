"""Sentences: what screen and page say in the same words."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from perfmodel.base.units import NS_PER_MS, NS_PER_S, NS_PER_US, format_duration, format_size
from perfmodel.prediction.answer import Interval, MemoryFit, Prediction, RankWait
from perfmodel.prediction.scenario import Interference, JobScenario, Mode, Scenario

TERA = 1e12


@dataclass(frozen=True, slots=True)
class WaitCrowd:
    """Ranks that wait for *awaited_rank* in *label*, and what they lose: mean and most."""

    waiting_ranks: tuple[int, ...]
    awaited_rank: int
    label: str
    mean_ns: float
    longest_ns: int


def gather_waits(waits: Sequence[RankWait]) -> list[WaitCrowd]:
    """*waits* put together by who is awaited and in what; most time lost in all first."""
    together: dict[tuple[int, str], list[RankWait]] = {}
    for wait in waits:
        together.setdefault((wait.awaited_rank, wait.label), []).append(wait)
    crowds = [_gather(members) for members in together.values()]
    return sorted(
        crowds,
        key=lambda crowd: (
            -crowd.mean_ns * len(crowd.waiting_ranks),
            crowd.awaited_rank,
            crowd.label,
        ),
    )


def _gather(members: list[RankWait]) -> WaitCrowd:
    ranks = tuple(sorted(rank for wait in members for rank in wait.waiting_ranks))
    lost_ns = sum(wait.duration_ns * len(wait.waiting_ranks) for wait in members)
    return WaitCrowd(
        waiting_ranks=ranks,
        awaited_rank=members[0].awaited_rank,
        label=members[0].label,
        mean_ns=lost_ns / len(ranks),
        longest_ns=max(wait.duration_ns for wait in members),
    )


_UNITS = (("s", 10 * NS_PER_S, NS_PER_S), ("ms", NS_PER_MS, NS_PER_MS), ("us", 1, NS_PER_US))
"""Name, the shortest whole that is shown in it, and its length."""
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class DurationScale:
    """A unit and a number of decimals: those that show four digits of the whole."""

    unit: str
    unit_ns: int
    decimals: int

    def text(self, duration_ns: float) -> str:
        """*duration_ns* on this scale."""
        return f"{duration_ns / self.unit_ns:,.{self.decimals}f} {self.unit}"


def build_scale(whole_ns: int) -> DurationScale:
    """The scale for *whole_ns* and its parts."""
    unit, _, unit_ns = next(entry for entry in _UNITS if whole_ns >= entry[1] or entry[0] == "us")
    digits_before = len(str(max(whole_ns, 0) // unit_ns))
    return DurationScale(unit, unit_ns, max(_DIGITS - digits_before, 0))


def printable(text: str) -> str:
    """*text* without control letters; those of it become question marks."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def describe_title(prediction: Prediction) -> str:
    """The question in a line."""
    scenario = prediction.scenario
    ranks = f"{prediction.facts.rank_count} rank{'' if prediction.facts.rank_count == 1 else 's'}"
    name = scenario.workload if isinstance(scenario, Scenario) else prediction.facts.job
    if scenario is None or scenario.topology is None:
        return f"{name}, {ranks}"
    hosts = f"{scenario.hosts} host{'' if scenario.hosts == 1 else 's'}"
    topology = scenario.topology.removesuffix(".yaml")
    return f"{name} on {hosts} of {topology}, {ranks}"


def describe_other_time(prediction: Prediction) -> str:
    """Which of the two times the answer is, and the other one; of a recording, its score."""
    if prediction.score is not None:
        error_pct = prediction.score.iteration.error_pct
        return f"recorded; the recording replays itself with an error of {error_pct:+.2f} %"
    assert prediction.isolated_ns is not None
    if prediction.mode is Mode.PERIOD:
        other = format_duration(prediction.isolated_ns)
        return f"steady state; an isolated iteration takes {other}"
    other = format_duration(prediction.period_ns)
    return f"isolated iteration; in steady state one takes {other}"


def describe_speed(prediction: Prediction) -> str:
    """How much is done per second, or how many iterations where that is not known."""
    figures = prediction.yardsticks
    if figures is None:
        return f"{_number(NS_PER_S / max(prediction.iteration_ns, 1))} iterations/s"
    rate = f"{_number(figures.per_s)} {figures.unit}/s"
    if prediction.facts.rank_count > 1:
        rate += f", {_number(figures.per_s_per_gpu)} per GPU"
    return f"{rate}, at a batch of {figures.work.samples:,}"


def describe_utilisation(prediction: Prediction, price_per_gpu_hour: float | None = None) -> str:
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


def _number(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def describe_verdict(prediction: Prediction) -> str:
    """Whether it fits in memory, with what to change where it does not; nothing if unknown."""
    memory, work = prediction.memory, prediction.facts.work
    if memory is None:
        return ""
    is_transformer = work is not None and work.tokens is not None
    return describe_fit(memory, is_transformer=is_transformer)


def describe_fit(memory: MemoryFit, *, is_transformer: bool) -> str:
    """What the fullest ranks need beside what there is, and what to change if it is too much."""
    sizes = f"{format_size(memory.peak_bytes)} of {format_size(memory.capacity_bytes)}"
    if memory.fits:
        return f"fits in memory: {sizes}"
    largest = memory.fullest.memory.largest
    return (
        f"DOES NOT FIT: needs {sizes}, most of it {largest.name} "
        f"({format_size(largest.size_bytes)}). "
        f"{advise_memory(largest.name, is_transformer=is_transformer)}"
    )


def advise_memory(purpose: str, *, is_transformer: bool) -> str:
    """What to change where *purpose* takes most of the memory."""
    if not is_transformer:
        if "embedding" in purpose:
            return "Take more hosts, split tables by rows, or rank plans: `perfmodel rank`."
        return "Take a smaller batch or more hosts."
    if purpose in ("activations", "logits"):
        return "Try --set training.recompute=full, a smaller parallel.micro_batch or more tp."
    if purpose in ("optimizer state", "gradients", "weights"):
        return (
            "Try --set parallel.sharding=zero3, more tp or pp, or more hosts: `perfmodel search`."
        )
    return "Take more hosts, or ask `perfmodel search` for layouts that fit."


def to_command(scenario: Scenario | JobScenario) -> str:
    """What to type to ask *scenario* again."""
    words = ["perfmodel", "predict"]
    for one in fields(scenario):
        value = getattr(scenario, one.name)
        if (
            value == one.default
            or value is None
            or one.name in ("overrides", "mode", "interference", "calibration")
            # A replay draws nothing, which is not for a person to ask for.
            or (one.name == "samples" and not value)
        ):
            continue
        words.append(f"--{one.name.replace('_', '-')}")
        if value is not True:
            words.append(shlex.quote(str(value)))
    for file in scenario.calibration:
        words += ["--calibration", shlex.quote(file)]
    for change in getattr(scenario, "overrides", ()):
        words += ["--set", shlex.quote(change)]
    if scenario.mode is Mode.ISOLATED:
        words.append("--isolated")
    if scenario.interference is Interference.LEFT_OUT:
        words.append("--no-interference")
    return " ".join(words)


def to_whatif_command(
    scenario: JobScenario, changes: Iterable[str], sweep: str | None = None
) -> str:
    """What to type to ask for *changes* to the job of *scenario* again."""
    words = ["perfmodel", "whatif", shlex.quote(scenario.job)]
    for name in ("topology", "hosts", "stack"):
        value = getattr(scenario, name)
        if value is not None:
            words += [f"--{name}", shlex.quote(str(value))]
    if scenario.mode is Mode.ISOLATED:
        words.append("--isolated")
    for change in changes:
        words += ["--apply", shlex.quote(change)]
    words += [] if sweep is None else ["--sweep", shlex.quote(sweep)]
    return " ".join(words)


MAX_PIECES = 4
"""Of a list of ranks; beyond it stands how many are left out."""


def format_ranks(ranks: Sequence[int], *, max_pieces: int = MAX_PIECES) -> str:
    """*ranks* as ranges, in ascending order."""
    pieces = _split(sorted(ranks))
    shown = [_format_piece(piece) for piece in pieces[:max_pieces]]
    left_out = sum(len(piece) for piece in pieces[max_pieces:])
    if left_out:
        shown.append(f"and {left_out} more")
    return ", ".join(shown)


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 3` or `ranks 0-7`."""
    return f"rank{'' if len(ranks) == 1 else 's'} {format_ranks(ranks)}"


def _split(ranks: list[int]) -> list[list[int]]:
    """Longest runs with one step each; two ranks make a run only if they are neighbours."""
    pieces: list[list[int]] = []
    start = 0
    while start < len(ranks):
        stop = _run_end(ranks, start)
        step = ranks[start + 1] - ranks[start] if stop - start > 1 else 1
        if step > 1 and stop - start < 3:
            stop = start + 1
        pieces.append(ranks[start:stop])
        start = stop
    return pieces


def _run_end(ranks: list[int], start: int) -> int:
    stop = start + 1
    while stop < len(ranks) and ranks[stop] - ranks[stop - 1] == ranks[start + 1] - ranks[start]:
        stop += 1
    return stop


def _format_piece(piece: list[int]) -> str:
    if len(piece) == 1:
        return str(piece[0])
    step = piece[1] - piece[0]
    text = f"{piece[0]}-{piece[-1]}"
    return text if step == 1 else f"{text} step {step}"


def describe_interval(interval: Interval) -> str:
    """The *interval* as it stands beside a time."""
    if not interval.is_known:
        return "interval unknown from one step"
    low, high = format_duration(interval.low_ns), format_duration(interval.high_ns)
    return f"90 % interval {low} to {high}"


def describe_run(prediction: Prediction) -> str:
    """Where the work was done, and how long it took."""
    seconds = sum(prediction.run.phase_s.values())
    return f"{prediction.run.executor}, {format_duration(seconds * NS_PER_S)}"


def describe_rank_changes(count: int) -> str:
    """How often the critical path changes ranks."""
    return f"it goes over to another rank {'once' if count == 1 else f'{count} times'}"
