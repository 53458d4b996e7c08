"""Questions to recordings whose answer was also recorded."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml
from matplotlib.figure import Figure

from perfmodel.execution.serial import SerialExecutor
from perfmodel.graph.program import PLAIN
from perfmodel.prediction.answering import answer
from perfmodel.prediction.question import Asked, recording_question
from perfmodel.recordings.hold_back import HoldRule, replay_held
from perfmodel.recordings.host_chain import StepKind
from perfmodel.recordings.importing import import_job
from perfmodel.recordings.self_replay import self_replay, step_moments_ns
from perfmodel.whatif import parse_transformation
from traces.job_trace import load_job_trace

HERE = Path(__file__).parent
DATA = Path(os.environ.get("PERFMODEL_SHARED_DATA", HERE.parents[1] / "../shared/data"))
MS = 1_000_000


def periods_ms(job, durations=None):
    table = job.durations() if durations is None else durations
    held = replay_held(job.graph, table, HoldRule(job.hold_ratio, job.can_be_held))
    return (np.diff(step_moments_ns(job, held.end_ns)) / MS).tolist()


def recorded_ms(job):
    return (np.diff(step_moments_ns(job, job.recorded_end_ns)) / MS).tolist()


def sleeps_of_rank_2(job, durations, low_ms, high_ms):
    first, end = job.rank_rows()[2:4]
    is_work = np.array([op.name == StepKind.WORK.value for op in job.graph.ops])
    lengths = durations.values_ns[first:end, 0]
    chosen = (
        is_work[job.graph.program_of(2).op] & (lengths > low_ms * MS) & (lengths < high_ms * MS)
    )
    return first + np.flatnonzero(chosen)


def before_backward_all_to_all(job, a_step):
    program, first = job.graph.program_of(2), int(job.rank_rows()[2])
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
    scenario = yaml.safe_load((HERE / "scenario.yaml").read_text(encoding="utf-8"))
    jobs = {
        key: import_job(load_job_trace(DATA / "traces" / name))
        for key, name in scenario["recordings"].items()
    }
    truth = {key: recorded_ms(job) for key, job in jobs.items()}
    answers = {
        "s2 with the sleeps of n2": (np.mean(one_sleep_to_two(jobs["s2"], scenario)[1:]),
                                     np.mean(truth["n2"][1:])),
        "n2 with the sleep of s2": (np.mean(two_sleeps_to_one(jobs["n2"], scenario)[1:]),
                                    np.mean(truth["s2"][1:])),
    }  # fmt: skip
    for key in ("n2", "n3"):
        question = recording_question(jobs[key], Asked(is_explained=False))
        without = question.changed_to(parse_transformation("no_stalls").apply(question.job))
        first_ns = answer(without, executor=SerialExecutor()).periods_ns[0]
        answers[f"{key}, slow step without its stall"] = (first_ns / MS, truth[key][1])
    hooks = {key: self_replay(jobs[key]).iteration for key in ("before hooks", "after hooks")}
    results = {
        "questions": {
            name: {"answer_ms": round(float(answer), 2), "recorded_ms": round(float(real), 2),
                   "error_pct": round(100 * (float(answer) / float(real) - 1), 2)}
            for name, (answer, real) in answers.items()
        },
        "hooks": {
            name: {"recorded_ms": round(part.recorded_ns / MS, 2),
                   "replayed_ms": round(part.replayed_ns / MS, 2),
                   "self_replay_error_pct": round(part.error_pct, 2)}
            for name, part in hooks.items()
        },
    }  # fmt: skip
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    draw(results["questions"])


def draw(questions) -> None:
    figure = Figure(figsize=(8, 3), layout="constrained")
    axis = figure.subplots()
    places = np.arange(len(questions))
    values = list(questions.values())
    axis.barh(places - 0.2, [value["recorded_ms"] for value in values], 0.4, label="recorded")
    axis.barh(places + 0.2, [value["answer_ms"] for value in values], 0.4, label="answer")
    names = [f"{name} ({value['error_pct']:+.1f} %)" for name, value in questions.items()]
    axis.set_yticks(places, names, fontsize=8)
    axis.set_xscale("log")
    axis.set_xlabel("ms a step")
    axis.invert_yaxis()
    axis.legend()
    figure.savefig(HERE / "questions.png", dpi=150)


if __name__ == "__main__":
    main()
