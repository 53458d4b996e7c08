"""Every recorded multi-rank job, replayed with its own durations."""

import pytest

from perfmodel.extensions.recordings.self_replay import self_replay, with_score

TORCHREC = {
    "s0_sst_sleep_pl_dense_after_backward_2": 2,
    "s1_sst_long_a2a_optimizer": 2,
    "s2_a2a_opt_2_runA": 2,
    "n2_a2a_opt_2_runB": 2,
    "n3_a2a_opt_3": 2,
}


def check(job):
    result = self_replay(job)
    for part in result.periods or result.ranks:
        assert abs(part.error_pct) <= 1.5, part
    # Only what must be is pinned to the recording.
    assert set(job.report.recorded_starts) == {
        "first call of a chain", "work launched before the window",
    }  # fmt: skip
    assert job.report.recorded_starts["first call of a chain"] == len(job.report.ranks)
    return result


@pytest.mark.parametrize(("name", "periods"), TORCHREC.items())
def test_torchrec_runs_replay_within_one_and_a_half_percent(recorded, name, periods):
    result = check(recorded(f"dlrm_torchrec_v100x4/{name}"))
    assert len(result.periods) == periods
    assert result.unsettled == 0


def test_the_param_dlrm_replays_within_one_and_a_half_percent(recorded):
    result = check(recorded("dlrm_param_v100x8"))
    assert result.periods == ()


def test_the_resnet_replays_within_one_and_a_half_percent(recorded):
    result = check(recorded("resnet_ddp_mi300x4"))
    assert [round(period.recorded_ns / 1e6, 1) for period in result.periods] == [44.7, 45.3]


@pytest.mark.parametrize("ranks", [(0,), (5,), (0, 1)])
def test_without_the_profiler_a_job_takes_what_its_publisher_logged(recorded_ranks, ranks):
    # 33.6 ms; alone, a rank waits for ranks whose hosts are profiled too.
    found = with_score(recorded_ranks("nanogpt_h100x8", ranks)).unprofiled

    assert found.iteration_ns / 1e6 == pytest.approx(33.6, rel=0.06)
    assert found.low_ns / 1e6 < 33.6 < found.high_ns / 1e6


def test_a_host_that_keeps_its_lead_costs_its_gpu_and_other_ranks_nothing(recorded):
    job = with_score(recorded("single_rank/nanogpt_h100x8_rank0_after_hooks.json.gz"))

    assert job.unprofiled.iteration_ns == pytest.approx(job.score.iteration.recorded_ns, rel=0.01)


def test_a_time_sliced_gpu_is_not_trusted(recorded):
    assert not self_replay(recorded("gpt_tp2_v100x2")).is_trusted


@pytest.mark.parametrize(
    ("name", "period_ms"), [("before", 61.06), ("after", 60.41)]
)  # half of what two steps take, because they differ in turn
def test_the_hooks_of_the_nanogpt_rank_show_in_size_and_direction(recorded, name, period_ms):
    result = self_replay(recorded(f"single_rank/nanogpt_h100x8_rank0_{name}_hooks.json.gz"))

    assert result.iteration.recorded_ns / 1e6 == pytest.approx(period_ms, abs=0.05)
    assert abs(result.iteration.error_pct) < 1.5
