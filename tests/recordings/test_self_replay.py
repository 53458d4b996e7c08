"""Every recorded multi-rank job, replayed with its own durations."""

import pytest

from perfmodel.recordings.importing import import_job
from perfmodel.recordings.self_replay import self_replay
from traces.job_trace import load_job_trace, load_job_traces


def check(traces, *, collective_limit_ns=None):
    job = import_job(traces)
    result = self_replay(job)
    for part in result.periods or result.ranks:
        assert abs(part.error_pct) <= 1.5, (traces.name, part)
    limit_ns = collective_limit_ns or 0.01 * result.iteration.recorded_ns
    assert result.collective_start_median_error_ns <= limit_ns
    # Only what must be is pinned to the recording.
    assert set(job.report.recorded_starts) == {
        "first call of a chain", "work launched before the window",
    }  # fmt: skip
    assert job.report.recorded_starts["first call of a chain"] == len(job.report.ranks)
    return result


def test_torchrec_runs_replay_within_one_and_a_half_percent(shared_data):
    for traces in load_job_traces(shared_data / "traces" / "dlrm_torchrec_v100x4"):
        result = check(traces)
        assert len(result.periods) == (2 if traces.name[:2] in ("s0", "s1") else 3)
        assert result.unsettled == 0


def test_the_param_dlrm_replays_within_one_and_a_half_percent(shared_data):
    result = check(
        load_job_trace(shared_data / "traces" / "dlrm_param_v100x8"), collective_limit_ns=100_000
    )
    assert result.periods == ()
    assert result.host_path_ratio > 0.9


def test_the_resnet_replays_within_one_and_a_half_percent(shared_data):
    result = check(
        load_job_trace(shared_data / "traces" / "resnet_ddp_mi300x4"), collective_limit_ns=100_000
    )
    assert [round(period.recorded_ns / 1e6, 1) for period in result.periods] == [44.7, 45.3]


def test_a_time_sliced_gpu_is_not_trusted(shared_data):
    result = self_replay(import_job(load_job_trace(shared_data / "traces" / "gpt_tp2_v100x2")))
    assert not result.is_trusted


@pytest.mark.parametrize(
    ("name", "period_ms"), [("before", 122.0), ("after", 120.9)]
)  # per two iterations
def test_the_hooks_of_the_nanogpt_rank_show_in_size_and_direction(shared_data, name, period_ms):
    path = shared_data / "traces" / "single_rank" / f"nanogpt_h100x8_rank0_{name}_hooks.json.gz"
    result = self_replay(import_job(load_job_trace(path)))

    assert result.iteration.recorded_ns / 1e6 == pytest.approx(period_ms, abs=0.05)
    assert abs(result.iteration.error_pct) < 1.5
