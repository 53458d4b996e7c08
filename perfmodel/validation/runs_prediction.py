"""Predicting a measured run: the question that `predict` would be asked, and its answer."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.errors import InputError
from perfmodel.execution.executor import SerialExecutor
from perfmodel.prediction.predict import predict
from perfmodel.prediction.question import PredictOptions, Question, build_question
from perfmodel.validation.runs_question import read_setting
from perfmodel.validation.runs_table import RunRow


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """The prediction of a run in nanoseconds, or the *reason* why there is none."""

    predicted_ns: float = 0.0
    low_ns: float = 0.0
    high_ns: float = 0.0
    reason: str = ""
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunAsked:
    """What is asked of every run, and files of constants that were measured on its machine."""

    asked: PredictOptions
    calibration: tuple[str, ...] = ()


def predict_run(shared: RunAsked, row: RunRow) -> RunAnswer:
    """Answer for *row*; what cannot be asked gets the reason instead."""
    if row.measured_s is None and not row.faults:
        return RunAnswer(reason="no time was measured")
    try:
        setting = read_setting(row, shared.asked, calibration=shared.calibration)
        return answer_run(build_question(setting))
    except InputError as fault:
        return RunAnswer(reason=" ".join(str(fault).split()))


def answer_run(question: Question) -> RunAnswer:
    """The answer that `predict` gives to *question*."""
    found = predict(question, executor=SerialExecutor())
    return RunAnswer(
        predicted_ns=float(found.iteration_ns),
        low_ns=float(found.interval.low_ns),
        high_ns=float(found.interval.high_ns),
        assumptions=found.assumptions,
    )
