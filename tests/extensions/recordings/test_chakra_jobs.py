"""Recorded jobs as Chakra traces and back."""

import json
from dataclasses import replace

import numpy as np
import pytest

from perfmodel.base.errors import PerfModelError, TraceError
from perfmodel.extensions.recordings.import_files import import_traces
from perfmodel.extensions.recordings.linked_jobs import build_linked_job
from perfmodel.extensions.recordings.self_replay import self_replay
from perfmodel.extensions.recordings.storage import assemble_chakra_job, write_chakra_job
from tests.extensions.recordings.builders import held_of, import_spans
from tests.traces.builders import kernel, launch
from traces.chakra import load_chakra, write_chakra


def load_chakra_job(paths):
    return assemble_chakra_job([load_chakra(path) for path in paths], paths[0].parent)


def test_out_and_in_again_gives_the_same_replay(recorded, tmp_path):
    job = recorded("dlrm_torchrec_v100x4/s0_sst_sleep_pl_dense_after_backward_2")

    back = load_chakra_job(write_chakra_job(job, tmp_path))

    assert np.array_equal(held_of(job).end_ns, held_of(back).end_ns)
    assert self_replay(job) == self_replay(back)
    assert back.report == job.report


def test_a_missing_rank_is_refused(tmp_path):
    spans = [launch(1, 0), kernel(1, 20, 300)]
    paths = write_chakra_job(import_spans(tmp_path, spans, spans), tmp_path / "chakra")
    with pytest.raises(TraceError, match=r"each of 2 ranks, has those of \[0\]"):
        load_chakra_job(paths[:-1])


def test_files_of_perfmodel_and_of_others_are_not_mixed(shared_data):
    with pytest.raises(TraceError, match="cannot be mixed"):
        load_chakra_job([shared_data / "traces" / "gpt_tp2_v100x2" / "chakra_rank0.et.gz"])


def test_durations_of_operators_without_their_children_are_kept(shared_data):
    files = [shared_data / "traces" / "gpt_tp2_v100x2" / f"chakra_rank{n}.et.gz" for n in (0, 1)]
    job = build_linked_job("gpt", [load_chakra(path) for path in files], "Chakra traces").graph
    program = job.program_of(0)
    host = [job.ops[op].duration_ns for op in program.op[~program.is_on_device()].tolist()]
    # The Kineto trace of rank 0 has 55.01 ms inside operators, and 1.4 ms in the data loader.
    assert sum(host) / 1e6 == pytest.approx(55.01 + 1.42, rel=0.01)


@pytest.mark.parametrize(
    ("key", "value"), [("slots", 0), ("lane_start", 5), ("lane_start", [0, 0.5]), ("lanes", [])]
)
def test_a_forged_header_is_refused(key, value, tmp_path):
    spans = [launch(1, 0), kernel(1, 20, 300), launch(2, 400), kernel(2, 420, 300)]
    (path,) = write_chakra_job(import_spans(tmp_path, spans), tmp_path / "chakra")
    trace = load_chakra(path)
    header = json.loads(trace.attributes["perfmodel"])
    assert key in header
    forged = json.dumps(header | {key: value})
    write_chakra(replace(trace, attributes={"perfmodel": forged}), path)
    with pytest.raises(PerfModelError):
        import_traces([path], tmp_path / "job")
