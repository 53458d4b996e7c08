"""Recorded jobs that several tests ask questions of; importing them takes seconds."""

from __future__ import annotations

import functools

import pytest

from perfmodel.extensions.recordings.importing import import_job
from traces.job_trace import load_job_trace


@pytest.fixture(scope="session")
def recorded_traces(shared_data):
    """Read the recorded traces in a folder, once."""
    return functools.cache(lambda name: load_job_trace(shared_data / "traces" / name))


@pytest.fixture(scope="session")
def recorded(recorded_traces):
    """Import the job in a folder of the recorded traces, once."""
    return functools.cache(lambda name: import_job(recorded_traces(name)))


@pytest.fixture(scope="session")
def recorded_ranks(shared_data):
    """Some ranks of a recorded job, imported once."""

    @functools.cache
    def load(name, ranks):
        files = [shared_data / "traces" / name / f"rank{rank}.json.gz" for rank in ranks]
        return import_job(load_job_trace(files))

    return load
