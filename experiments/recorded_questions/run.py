"""Questions to recordings whose answer was also recorded: what-ifs against the truth.

python experiments/recorded_questions/run.py [--quick] [--out FOLDER] [--ray-address ADDRESS]
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from experiments.figures import (
    MEASURED,
    Wishes,
    legend_below,
    new_figure,
    plot_bars,
    read_wishes,
)
from perfmodel.extensions.recordings.host_chain import StepKind
from perfmodel.extensions.recordings.recording_info import recording_question
from perfmodel.extensions.recordings.storage import load_recorded_job
from perfmodel.extensions.recordings.stream_holds import HoldRule, hold_ratios, replay_with_holds
from perfmodel.extensions.whatif import parse_transformation
from perfmodel.graph.program import PLAIN
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import PredictOptions

MS = 1_000_000


def periods_ms(job, durations=None):
    table = job.durations() if durations is None else durations
    held = replay_with_holds(job.graph, table, HoldRule(hold_ratios(job.graph), job.can_be_held))
    return (np.diff(job.step_moments_ns(held.end_ns)) / MS).tolist()


def recorded_ms(job):
    return (np.diff(job.step_moments_ns(job.recorded_end_ns)) / MS).tolist()


def sleeps_of_rank_2(job, durations, low_ms, high_ms):
    first, end = job.graph.rank_rows()[2:4]
    is_work = np.array([op.name == StepKind.WORK.value for op in job.graph.ops])
    lengths = durations.values_ns[first:end, 0]
    chosen = (
        is_work[job.graph.program_of(2).op] & (lengths > low_ms * MS) & (lengths < high_ms * MS)
    )
    return first + np.flatnonzero(chosen)


def before_backward_all_to_all(job, a_step):
    program, first = job.graph.program_of(2), int(job.graph.rank_rows()[2])
    members = np.flatnonzero(program.slot != PLAIN)
    rows = []
    for task in members[np.argsort(program.sequence[members])][3::a_step]:
        deps = program.dep_task[program.dep_start[task] : program.dep_start[task + 1]]
        labels = [job.graph.labels[int(program.label[dep])] for dep in deps]
        rows += [first + int(dep) - 1 for dep, text in zip(deps, labels, strict=True)
                 if "cudaLaunch" in text]  # fmt: skip
    return rows


def one_sleep_to_two(job, scenario):
    durations = replace(job.durations(), values_ns=job.durations().values_ns.copy())
    change = scenario["short_ms"] - scenario["long_ms"]
    durations.values_ns[sleeps_of_rank_2(job, durations, 900, 1100), 0] += round(change * MS)
    rows = before_backward_all_to_all(job, scenario["collectives_a_step"])
    durations.values_ns[rows, 0] += round(scenario["short_ms"] * MS)
    return periods_ms(job, durations)


def two_sleeps_to_one(job, scenario):
    durations = replace(job.durations(), values_ns=job.durations().values_ns.copy())
    sleeps = sleeps_of_rank_2(job, durations, 19, 23)
    half = len(sleeps) // 2
    change = scenario["long_ms"] - scenario["short_ms"]
    durations.values_ns[sleeps[:half], 0] += round(change * MS)
    durations.values_ns[sleeps[half:], 0] -= round(scenario["short_ms"] * MS)
    return periods_ms(job, durations)


def main() -> None:
    """Ask, compare, draw."""
    wishes = read_wishes(__file__, __doc__)
    scenario = wishes.scenario()
    jobs = {
        key: load_recorded_job(MEASURED / "recordings" / name)
        for key, name in scenario["recordings"].items()
    }
    truth = {key: recorded_ms(job) for key, job in jobs.items()}
    answers: dict[str, tuple[float, float]] = {
        "one sleep becomes two": (
            np.mean(one_sleep_to_two(jobs["one"], scenario)[1:]),
            np.mean(truth["two"][1:]),
        ),
        "two sleeps become one": (
            np.mean(two_sleeps_to_one(jobs["two"], scenario)[1:]),
            np.mean(truth["one"][1:]),
        ),
    }
    with wishes.executor() as executor:
        for key, label in scenario["stalled"].items():
            question = recording_question(jobs[key], PredictOptions(is_explained=False))
            without = question.changed_to(parse_transformation("no_stalls").apply(question.job))
            first_ns = predict(without, executor=executor).periods_ns[0]
            answers[f"no stall, {label}"] = (first_ns / MS, truth[key][1])
    results = {
        name: {
            "answer_ms": float(found),
            "recorded_ms": float(real),
            "error_pct": 100 * float(found / real - 1),
        }
        for name, (found, real) in answers.items()
    }
    wishes.write_results(results)
    draw(wishes, results)


def draw(wishes: Wishes, questions: dict[str, Any]) -> None:
    """Answers against what was recorded."""
    figure, axes = new_figure(height=1.7)
    names = [f"{name} ({one['error_pct']:+.1f} %)" for name, one in questions.items()]
    series = {
        "measured": [one["recorded_ms"] for one in questions.values()],
        "what-if": [one["answer_ms"] for one in questions.values()],
    }
    plot_bars(axes, names, series, horizontal=True)
    axes.set(xscale="log", xlabel="ms a step", xlim=(50, None))
    legend_below(figure, axes)
    wishes.save(figure, "questions.png")


if __name__ == "__main__":
    main()
