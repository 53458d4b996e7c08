"""Jobs: all ranks of a recording."""

import pytest

from perfmodel.base.errors import TraceError
from tests.traces.builders import kernel, write_trace
from traces.job_trace import (
    TraceFormat,
    detect_format,
    find_recordings,
    load_job_trace,
    load_job_traces,
)


def write_job(folder, ranks, world_size=None):
    folder.mkdir(exist_ok=True)
    for rank in ranks:
        info = {"rank": rank, "world_size": world_size or len(ranks)}
        write_trace(folder / f"r{rank}.json", [kernel(1, rank, 1)], distributedInfo=info)
    return folder


def test_a_folder_with_one_file_a_rank_is_a_job(tmp_path):
    job = load_job_trace(write_job(tmp_path / "run", [1, 0, 2]))

    assert [trace.rank for trace in job.ranks] == [0, 1, 2]
    assert job.missing_ranks == ()


def test_a_folder_of_folders_is_several_jobs(tmp_path):
    write_job(tmp_path / "first", [0, 1])
    write_job(tmp_path / "second", [0, 1])

    assert [job.name for job in load_job_traces(tmp_path)] == ["first", "second"]
    with pytest.raises(TraceError, match="holds 2 recordings"):
        load_job_trace(tmp_path)


def test_a_recording_and_a_folder_of_its_execution_traces_are_one_job(tmp_path):
    recorded = write_job(tmp_path / "kineto", [0])
    executed = tmp_path / "executed"
    executed.mkdir()
    (executed / "rank0.json").write_text('{"schema": "1.1.0-chakra.0.0.4", "nodes": []}')

    [by_name] = find_recordings([recorded, executed])
    [by_folder] = find_recordings(tmp_path)
    assert by_name.executed == by_folder.executed == (executed / "rank0.json",)
    # Two recordings do not share one set of execution traces.
    other = write_job(tmp_path / "other", [0])
    assert len(find_recordings([recorded, other, executed])) == 3


def test_ranks_come_from_file_names_where_the_file_is_silent(tmp_path):
    for rank in (0, 1):
        write_trace(tmp_path / f"kineto_rank{rank}.json.gz", [kernel(1, rank, 1)])
    assert [trace.rank for trace in load_job_trace(tmp_path).ranks] == [0, 1]
    write_trace(tmp_path / "again.json", [kernel(1, 0, 1)])
    with pytest.raises(TraceError, match=r"again\.json: no rank in distributedInfo nor"):
        load_job_trace(tmp_path)


def test_a_missing_rank_is_named_and_two_files_of_one_rank_are_refused(tmp_path):
    folder = write_job(tmp_path / "run", [0, 2], world_size=4)
    assert load_job_trace(folder).missing_ranks == (1, 3)
    info = {"rank": 2, "world_size": 4}
    write_trace(folder / "again.json", [kernel(1, 0, 1)], distributedInfo=info)
    with pytest.raises(TraceError, match="rank 2, but so is"):
        load_job_trace(folder)


def test_all_broken_files_are_reported_at_once(tmp_path):
    folder = write_job(tmp_path / "run", [0, 1])
    for name in ("x.json", "y.json"):
        (folder / name).write_text('{"traceEvents": []}')

    with pytest.raises(TraceError) as caught:
        load_job_trace(folder)
    assert "x.json" in str(caught.value)
    assert "y.json" in str(caught.value)


def test_nothing_to_read_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    cases = {"at least one file": [], "does not exist": ["absent.json"]}
    for message, given in {**cases, "must hold Kineto traces": tmp_path}.items():
        with pytest.raises(TraceError, match=message):
            load_job_trace(given)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("kineto_rank0.json.gz", TraceFormat.KINETO),
        ("pytorch_et_rank0.json.gz", TraceFormat.EXECUTION_TRACE),
        ("chakra_rank0.et.gz", TraceFormat.CHAKRA),
        ("comm.json", TraceFormat.OTHER),
    ],
)
def test_formats_are_told_by_content(shared_data, name, kind):
    assert detect_format(shared_data / "traces" / "gpt_tp2_v100x2" / name) is kind


def test_every_recorded_set_loads(shared_data):
    folder = shared_data / "traces"
    for name, ranks in (("dlrm_param_v100x8", 8), ("resnet_ddp_mi300x4", 4), ("gpt_tp2_v100x2", 2)):
        job = load_job_trace(folder / name)
        assert len(job.ranks) == ranks
        assert all(trace.report.faults == () for trace in job.ranks)
    assert len(load_job_traces(folder / "dlrm_torchrec_v100x4")) == 5
    with pytest.raises(TraceError, match="one by one"):
        load_job_trace(folder / "single_rank")
