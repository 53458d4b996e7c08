"""Jobs of Chakra files."""

import pytest

from perfmodel.extensions.recordings.linked_trace_jobs import build_linked_job
from traces.chakra import load_chakra


def test_durations_of_operators_without_their_children_are_kept(shared_data):
    files = [shared_data / "traces" / "gpt_tp2_v100x2" / f"chakra_rank{n}.et.gz" for n in (0, 1)]
    job = build_linked_job("gpt", [load_chakra(path) for path in files], "Chakra traces").graph
    program = job.program_of(0)
    host = [job.ops[op].duration_ns for op in program.op[~program.is_on_device()].tolist()]
    # The Kineto trace of rank 0 has 55.01 ms inside operators, and 1.4 ms in the data loader.
    assert sum(host) / 1e6 == pytest.approx(55.01 + 1.42, rel=0.01)
