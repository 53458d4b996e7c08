"""What makes a recording doubtful is said, and the job is not trusted."""

from pathlib import Path

import pytest

from perfmodel.base.errors import TraceError
from perfmodel.extensions.recordings.import_files import ImportedJob, ImportOptions, import_traces
from perfmodel.extensions.recordings.self_replay import with_score
from perfmodel.extensions.recordings.trace_diff import diff_traces
from tests.extensions.recordings.builders import call, import_spans, replay_ms
from tests.traces.builders import kernel, launch, span, write_trace
from traces.job_trace import load_job_trace


def some_steps(name="ncclDevKernel_AllReduce", *, count=4, late=0):
    """Launches of a product and a collective in every step of 1 ms."""
    spans = []
    for number in range(count):
        at, first = 1000 * number, 10 * number
        spans += [
            launch(first + 1, at), kernel(first + 1, at + 20, 300),
            launch(first + 2, at + 30),
            kernel(first + 2, at + 400 + late, 100 - late, 20, name=name),
        ]  # fmt: skip
    return spans


def told_of(job):
    return ImportedJob(Path("job"), with_score(job)).document()


def test_a_sound_recording_is_trusted(tmp_path):
    told = told_of(import_spans(tmp_path, some_steps(), some_steps(late=50)))
    assert told["faults"] == []
    assert told["is_trusted"]


def test_collectives_without_partners_are_a_fault(tmp_path):
    other = some_steps("ncclDevKernel_ReduceScatter")
    try:
        told = told_of(import_spans(tmp_path, some_steps(), other))
    except TraceError as fault:
        assert "different" in str(fault) or "same" in str(fault)  # noqa: PT017  refused is as good
    else:
        assert any("have no partner" in fault for fault in told["faults"])
        assert not told["is_trusted"]


def test_a_rank_without_kernels_is_a_fault(tmp_path):
    copies = [
        call("cudaMemcpyAsync", 0, 5, 1),
        span("gpu_memcpy", "Memcpy HtoD", 10, 5, stream=7, device=0, correlation=1, bytes=4),
    ]
    told = told_of(import_spans(tmp_path, some_steps(), copies))
    assert any("rank 1 runs no kernel" in fault for fault in told["faults"])
    assert not told["is_trusted"]


@pytest.mark.parametrize(
    ("category", "words"),
    [
        ("cuda_runtime", "8 of 8 runtime calls last 0 ns"),
        ("kernel", "8 of 8 device tasks last 0"),
        ("cpu_op", "8 of 8 host operators last 0 ns"),
    ],
)
def test_a_rank_without_durations_is_a_fault(tmp_path, category, words):
    operators = [span("cpu_op", "aten::mm", 100 * number, 30) for number in range(8)]
    ranks = [[*some_steps(late=late), *operators] for late in (99, 100)]
    emptied = [one | {"dur": 0} if one["cat"] == category else one for one in ranks[1]]
    told = told_of(import_spans(tmp_path, ranks[0], emptied))
    assert not told["is_trusted"]
    assert [fault for fault in told["self_replay"]["faults"] if f"rank 1: {words}" in fault]


def jumped(spans, *, after, jump=1e6, categories=("cuda_runtime", "kernel")):
    """*spans* after a moment are later by *jump* microseconds."""
    return [
        one | {"ts": one["ts"] + jump} if one["ts"] > after and one["cat"] in categories else one
        for one in spans
    ]


def long_steps(count=4):
    """Steps of 200 ms, most of it one kernel that was launched early."""
    spans = []
    for number in range(count):
        at, first = 200_000 * number, 10 * number
        spans += [
            launch(first + 1, at), kernel(first + 1, at + 20, 190_000),
            launch(first + 2, at + 30), kernel(first + 2, at + 190_100, 5_000),
            launch(first + 3, at + 40),
            kernel(first + 3, at + 196_000, 2_000, 20, name="ncclDevKernel_AllReduce"),
        ]  # fmt: skip
    return spans


@pytest.mark.parametrize(
    ("categories", "words"),
    [
        (("cuda_runtime", "kernel"), "no rank is active for 1.001 s of 3.798 s"),
        (("kernel",), "the device is idle for 1.001 s although work was launched"),
        (("cuda_runtime",), "the device is idle for 1 s although work was launched"),
    ],
)
def test_a_clock_that_jumps_is_a_fault(tmp_path, categories, words):
    told = told_of(import_spans(tmp_path / "a", long_steps(14), long_steps(14)))
    assert told["is_trusted"]
    ranks = [jumped(long_steps(14), after=1_395_000, categories=categories) for _ in range(2)]
    told = told_of(import_spans(tmp_path / "b", *ranks))
    assert not told["is_trusted"]
    assert [fault for fault in told["self_replay"]["faults"] if words in fault]


def test_a_slow_loader_is_no_fault(tmp_path):
    spans = [one | {"ts": one["ts"] + one["ts"] // 1000 * 3e5} for one in some_steps()]
    loads = [span("cpu_op", "enumerate(DataLoader)", 301e3 * n + 600, 3e5) for n in range(3)]
    told = told_of(import_spans(tmp_path / "a", spans + loads, spans))
    assert told["is_trusted"]
    told = told_of(import_spans(tmp_path / "b", spans, spans))
    assert "no rank is active for 901.5 ms of 903.5 ms" in told["faults"][0]


def test_missing_ranks_and_cut_files_are_refused_by_strict(tmp_path):
    write_trace(tmp_path / "rank0.json", some_steps(), distributedInfo={"rank": 0, "world_size": 2})
    [found] = import_traces([tmp_path / "rank0.json"], tmp_path / "job")
    assert "1 of 2 ranks are not recorded (1)" in found.faults[0]
    with pytest.raises(TraceError, match="Nothing was written"):
        import_traces([tmp_path / "rank0.json"], tmp_path / "b", ImportOptions(is_strict=True))
    assert not (tmp_path / "b").exists()


def test_a_diff_finds_the_kernel_that_got_slower(tmp_path):
    steps = [span("user_annotation", f"ProfilerStep#{n}", 1000 * n - 5, 990) for n in range(4)]
    steps += [span("python_function", "nn.Module: Net_0", 1000 * n - 5, 980) for n in range(4)]
    slow = some_steps()
    for event in slow:
        if event["name"] == "gemm":
            event["dur"] += 50
    write_trace(tmp_path / "a.json", steps + some_steps())
    write_trace(tmp_path / "b.json", steps + slow)

    found = diff_traces(load_job_trace(tmp_path / "a.json"), load_job_trace(tmp_path / "b.json"))

    line = found["by"]["kernel"][0]
    assert (line["name"], round(line["change_ms"], 6)) == ("gemm", 0.05)
    # One in each of the three steps between four marks.
    assert (line["before_count"], line["after_count"]) == (1, 1)
    assert found["by"]["module"][0]["name"] == "Net_0"
    assert found["same_tasks_pct"] == 100


def with_noise(spans, *, numbers, earlier):
    """*spans* in which the kernels at some *numbers* begin *earlier*, in microseconds."""
    kernels = [one for one in spans if one["cat"] == "kernel"]
    noisy = [id(kernels[number]) for number in numbers]
    return [one | {"ts": one["ts"] - earlier} if id(one) in noisy else one for one in spans]


def test_a_few_kernels_before_their_launch_are_mended_and_widen_the_interval(tmp_path):
    sound = some_steps(count=200)
    clean = import_spans(tmp_path / "clean", sound, sound)
    noisy = with_noise(sound, numbers=[300, 320, 352], earlier=2_000)
    job = import_spans(tmp_path / "noisy", noisy, sound)

    told = told_of(job)
    assert told["is_trusted"]
    # Three of 400 tasks of rank 0, on a clock by which a launch takes 6 us.
    assert [rank.mended for rank in job.report.ranks] == [3, 0]
    moved_ns = 1_000 * (2_000 - 6)
    assert job.report.ranks[0].mended_ns == round(moved_ns * 3**0.5)
    assert any("3 of 800 device tasks began before" in one for one in job.graph.facts.assumptions)
    assert told["self_replay"]["clock_noise_pct"] == pytest.approx(
        100 * moved_ns * 3**0.5 / 199_500_000, rel=0.01
    )
    assert replay_ms(job) == pytest.approx(replay_ms(clean), rel=1e-3)


def test_a_kernel_that_ran_before_the_first_call_was_launched_before_the_window(tmp_path):
    # The product of the second step, from 1,020 to 1,320 us, ends 280 us before the first call.
    early = with_noise(some_steps(count=200), numbers=[2], earlier=1_600)
    job = import_spans(tmp_path, early, some_steps(count=200))
    assert [rank.launched_before for rank in job.report.ranks] == [1, 0]
    assert told_of(job)["is_trusted"]


def test_many_kernels_before_their_launch_are_a_fault(tmp_path):
    noisy = with_noise(some_steps(count=200), numbers=range(100, 300, 10), earlier=2_000)
    job = import_spans(tmp_path, noisy, some_steps(count=200))
    assert not told_of(job)["is_trusted"]
    assert [rank.mended for rank in job.report.ranks] == [0, 0]


def test_a_kernel_inside_the_one_ahead_of_it_is_cut_to_its_end(tmp_path):
    sound = some_steps(count=200)
    for number, one in enumerate(sound):
        # The product of one step lasts until 150 us into the next one.
        if number == 401:
            one["dur"] = 1_150
    job = import_spans(tmp_path, sound, some_steps(count=200))
    assert [rank.mended for rank in job.report.ranks] == [1, 0]
    assert told_of(job)["is_trusted"]


def test_missing_kernels_and_unlike_gpus_are_faults(tmp_path):
    spans = some_steps()
    kernels = [one for one in spans if one["cat"] == "kernel"]
    fewer = [one for one in spans if one["cat"] != "kernel" or one in kernels[::2]]
    whole, half = (import_spans(tmp_path / str(len(of)), of) for of in (spans, fewer))

    assert not any("kernels are missing" in fault for fault in whole.report.all_faults)
    assert any("kernels are missing" in fault for fault in half.report.all_faults)


def test_kernels_shorter_than_any_gpu_runs_are_a_fault(tmp_path):
    spans = some_steps()
    for one in spans:
        one["ts"], one["dur"] = one["ts"] / 1e5, one["dur"] / 1e5
    job = import_spans(tmp_path, spans)
    assert any("must be in microseconds" in fault for fault in job.report.all_faults)
