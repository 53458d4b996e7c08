"""Recorded jobs as Chakra traces and back."""

import pytest

from collectives.collective import CollectiveKind
from perfmodel.extensions.recordings.linked_trace_jobs import build_linked_job
from perfmodel.extensions.recordings.storage import write_chakra_job
from perfmodel.graph.ops import Communication, Fixed
from tests.extensions.recordings.builders import import_spans
from tests.traces.builders import kernel, launch
from traces.chakra import ChakraKind, load_chakra


def test_a_written_job_has_operations_in_microseconds_and_what_they_wait_for(tmp_path):
    job = import_spans(tmp_path, [launch(1, 0), kernel(1, 20, 300)])

    (path,) = write_chakra_job(job, tmp_path / "chakra")

    operations = load_chakra(path).operations
    (found,) = [one for one in operations if not one.attributes["is_cpu_op"]]
    assert (found.kind, found.duration_us) == (ChakraKind.COMPUTE, 300)
    # It waits for its launch.
    assert [operations[source].attributes["is_cpu_op"] for source in found.data] == [True]


def test_a_written_job_reads_back_with_its_collectives_and_device_time(recorded, tmp_path):
    job = recorded("dlrm_torchrec_v100x4/s0_sst_sleep_pl_dense_after_backward_2")
    paths = write_chakra_job(job, tmp_path)

    back = build_linked_job("back", [load_chakra(path) for path in paths], "Chakra traces").graph

    def of(graph):
        work = [op.work if isinstance(op, Fixed) else op for op in graph.ops]
        program = graph.program_of(0)
        on_device = program.op[program.is_on_device()].tolist()
        kinds = [
            work[op].collective.kind for op in on_device if isinstance(work[op], Communication)
        ]
        return len(on_device), kinds.count(CollectiveKind.ALL_TO_ALL)

    assert of(back) == of(job.graph)


def test_durations_of_operators_without_their_children_are_kept(shared_data):
    files = [shared_data / "traces" / "gpt_tp2_v100x2" / f"chakra_rank{n}.et.gz" for n in (0, 1)]
    job = build_linked_job("gpt", [load_chakra(path) for path in files], "Chakra traces").graph
    program = job.program_of(0)
    host = [job.ops[op].duration_ns for op in program.op[~program.is_on_device()].tolist()]
    # The Kineto trace of rank 0 has 55.01 ms inside operators, and 1.4 ms in the data loader.
    assert sum(host) / 1e6 == pytest.approx(55.01 + 1.42, rel=0.01)
