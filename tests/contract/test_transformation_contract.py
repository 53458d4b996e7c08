"""What every what-if must do, on a job that was built and on one with a slow rank."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from perfmodel.costs.priced_job import stated_durations
from perfmodel.extensions.whatif import load_recipes, parse_transformation
from perfmodel.graph.audit import check_job
from perfmodel.graph.job import with_own_origins
from perfmodel.graph.program import NO_ORIGIN
from perfmodel.prediction.saved_jobs import is_pinned
from tests.extensions.whatif.jobs import EXAMPLES, alone, span_ns, training_job


@pytest.fixture(params=sorted(load_recipes()))
def name(request):
    return request.param


@pytest.fixture
def change(name):
    words = EXAMPLES[name]
    if name == "blueconnect":
        # The jobs name no GPU.
        words = ",".join(filter(None, (words, "topology=quad_a100")))
    return parse_transformation(f"{name}:{words}" if words else name)


@pytest.fixture(params=[None, 1], ids=["even", "slow rank"])
def job(request, name):
    # One GPU is made many, and levels need four ranks.
    if name == "data_parallel":
        return with_own_origins(alone(slow_rank=None if request.param is None else 0))
    ranks = 4 if name == "blueconnect" else 2
    return with_own_origins(training_job(slow_rank=request.param, ranks=ranks))


def shown(job):
    """Everything that a job is, to be compared."""
    columns = [
        {name: column.tolist() for name, column in program.columns().items()}
        for program in job.programs
    ]
    return job.ops, job.labels, job.origins, columns, job.rank_program.tolist(), job.facts


def test_it_is_a_value_that_another_process_can_read(change):
    assert pickle.loads(pickle.dumps(change)) == change


def test_it_leaves_a_job_that_can_run_and_states_its_durations(job, change):
    changed = change.apply(job)

    check_job(changed)
    assert is_pinned(changed)
    assert (stated_durations(changed).values_ns >= 0).all()
    assert span_ns(changed) > 0


def test_the_job_it_is_applied_to_stays_as_it_is(job, change):
    before = shown(job)

    change.apply(job)

    assert shown(job) == before


def test_it_gives_the_same_job_every_time(job, change):
    assert shown(change.apply(job)) == shown(change.apply(job))


def test_its_assumptions_are_sentences_and_go_with_the_job(job, change):
    changed = change.apply(job)

    assert change.assumptions
    for sentence in change.assumptions:
        assert not sentence[0].islower()
        assert sentence.endswith(".")
        assert sentence in changed.facts.assumptions


def test_what_it_leaves_of_a_job_keeps_its_origin(job, change):
    kept = [origin for origin in _origins(change.apply(job)) if origin != NO_ORIGIN]

    assert kept
    assert set(kept) <= set(_origins(job))


def _origins(job):
    return np.concatenate([program.origin for program in job.programs]).tolist()
