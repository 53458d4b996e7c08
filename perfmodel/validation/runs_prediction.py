"""Predicting a measured run: workload, costs and engine, as for any scenario.

An iteration of many equal micro-batches is built with two smaller numbers of
them and continued in a straight line: once the pipeline is full, each further
micro-batch adds the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from perfmodel.base.errors import InputError
from perfmodel.costs.pricing import price_job
from perfmodel.costs.stacks import SoftwareStack
from perfmodel.engine.steady import find_period
from perfmodel.execution.serial import SerialExecutor
from perfmodel.graph.job import JobGraph
from perfmodel.prediction.folded_costs import FoldedCosts, fold_costs
from perfmodel.prediction.sampling import build_interval, replay_samples
from perfmodel.validation.runs_dlrm import build_dlrm_spec
from perfmodel.validation.runs_machines import build_machine
from perfmodel.validation.runs_software import find_rule, read_precision, with_precision
from perfmodel.validation.runs_table import RunFamily, RunRow
from perfmodel.validation.runs_transformer import build_transformer_spec
from perfmodel.workloads.dlrm.job import build_dlrm_job
from perfmodel.workloads.transformer.job import build_transformer_job
from perfmodel.workloads.transformer.layout import ChosenLayout, choose_layout
from perfmodel.workloads.transformer.spec import TransformerSpec
from topologies import Cluster

SAMPLES = 64
SEED = 0
_FILL = 2
_STRIDE = 2
"""Micro-batches beyond the stages of the smaller job, and from there to the larger."""


@dataclass(frozen=True, slots=True)
class RunSetting:
    """What all rows share: the kind of table and the software stacks by name."""

    family: RunFamily
    stacks: Mapping[str, SoftwareStack]


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """The prediction of a run in nanoseconds, or the *reason* why there is none."""

    predicted_ns: float = 0.0
    low_ns: float = 0.0
    high_ns: float = 0.0
    reason: str = ""
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Continuation:
    """A job and the larger one that shows what *stride* more micro-batches add."""

    job: JobGraph
    larger: JobGraph | None = None
    steps: float = 0.0


def predict_run(setting: RunSetting, row: RunRow) -> RunAnswer:
    """Answer for *row*; what cannot be asked gets the reason instead."""
    if row.measured_s is None:
        return RunAnswer(reason="no time was measured")
    try:
        return _predict(setting, row)
    except InputError as fault:
        return RunAnswer(reason=" ".join(str(fault).split()))


def _predict(setting: RunSetting, row: RunRow) -> RunAnswer:
    rule = find_rule(row)
    machine = build_machine(row)
    stack = with_precision(setting.stacks[rule.profile], read_precision(row))
    sentences = list(machine.assumptions)
    if setting.family is RunFamily.DLRM:
        spec = build_dlrm_spec(row, rule, sentences)
        job = build_dlrm_job(spec, rank_count=machine.cluster.rank_count)
        question = _Continuation(job)
    else:
        question = _continuation(build_transformer_spec(row, rule, sentences), machine.cluster)
    if question.larger is not None:
        sentences.append("Equal micro-batches are continued in a straight line.")
    return _answer(question, machine.cluster, stack, tuple(sentences))


def _continuation(spec: TransformerSpec, cluster: Cluster) -> _Continuation:
    chosen = choose_layout(
        spec,
        rank_count=cluster.rank_count,
        ranks_per_host=cluster.ranks_per_host,
        memory_bytes=cluster.device.memory_bytes,
    )
    count, fewer = chosen.layout.micro_batches, chosen.layout.pp + _FILL
    more = fewer + _STRIDE
    if count <= more:
        return _Continuation(build_transformer_job(spec, chosen))
    return _Continuation(
        job=build_transformer_job(spec, _with_count(chosen, fewer)),
        larger=build_transformer_job(spec, _with_count(chosen, more)),
        steps=(count - fewer) / _STRIDE,
    )


def _with_count(chosen: ChosenLayout, micro_batches: int) -> ChosenLayout:
    return replace(chosen, layout=replace(chosen.layout, micro_batches=micro_batches))


def _answer(
    question: _Continuation, cluster: Cluster, stack: SoftwareStack, sentences: tuple[str, ...]
) -> RunAnswer:
    folded = _price(question.job, cluster, stack)
    period_ns, iterations = _period(folded)
    predicted_ns = float(period_ns)
    if question.larger is not None:
        larger_ns, _ = _period(_price(question.larger, cluster, stack))
        predicted_ns += question.steps * (larger_ns - period_ns)
    samples = folded.priced.sample(SAMPLES, seed=SEED)
    times_ns = replay_samples(
        SerialExecutor().replay, folded.priced.job, samples, iterations=iterations
    )
    interval = build_interval(times_ns, nominal_ns=period_ns)
    return RunAnswer(
        predicted_ns=predicted_ns,
        low_ns=predicted_ns * interval.low_ns / period_ns,
        high_ns=predicted_ns * interval.high_ns / period_ns,
        assumptions=sentences,
    )


def _price(job: JobGraph, cluster: Cluster, stack: SoftwareStack) -> FoldedCosts:
    return fold_costs(price_job(job, cluster=cluster, stack=stack))


def _period(folded: FoldedCosts) -> tuple[int, int]:
    """The period, and how many iterations it took to find it."""
    steady = find_period(SerialExecutor().replay, folded.priced.job, folded.priced.durations)
    return int(steady.period_ns[0]), steady.replay.iteration_count
