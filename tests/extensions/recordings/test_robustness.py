"""Five hundred damaged recordings: each imports with its fault named, or is refused in words."""

import copy
import gzip
import json
import random

import pytest

from perfmodel.base.errors import PerfModelError, TraceError
from perfmodel.extensions.recordings.import_files import import_traces
from perfmodel.extensions.recordings.importing import import_job
from perfmodel.extensions.recordings.self_replay import self_replay
from traces.job_trace import load_job_trace

SMALL = (
    "hta_critical_path__alexnet__benchmark_result_2869224_1695835535_trace.json.gz",
    "hta_critical_path__cuda_event_sync__event_sync_trace.json.gz",
    "hta_critical_path__cuda_event_sync_multi_stream__event_sync_trace.json.gz",
)
FIELDS = ("ph", "cat", "name", "ts", "dur", "tid", "args")
ARGUMENTS = ("correlation", "External id", "stream", "device")
WRONG = (None, "soon", [], {}, True, 2**80, -1, 1e300, "\u0000", "0x12")


def some(events, rng, share=None):
    spans = [event for event in events if event.get("ph") == "X"]
    return rng.sample(spans, max(1, int(len(spans) * (share or rng.choice((0.01, 0.1, 0.5))))))


def drop_fields(document, rng):
    field = rng.choice(FIELDS)
    for event in some(document["traceEvents"], rng):
        event.pop(field, None)


def drop_arguments(document, rng):
    argument = rng.choice(ARGUMENTS)
    for event in some(document["traceEvents"], rng):
        event.get("args", {}).pop(argument, None)


def change_types(document, rng):
    field = rng.choice(FIELDS)
    for event in some(document["traceEvents"], rng, 0.02):
        event[field] = rng.choice(WRONG)


def change_argument_types(document, rng):
    argument = rng.choice(ARGUMENTS)
    for event in some(document["traceEvents"], rng, 0.1):
        if isinstance(event.get("args"), dict):
            event["args"][argument] = rng.choice(WRONG)


def negate_durations(document, rng):
    for event in some(document["traceEvents"], rng):
        event["dur"] = -abs(event.get("dur", 1)) - 1


def repeat_correlations(document, rng):
    calls = [e for e in document["traceEvents"] if e.get("cat") == "cuda_runtime"]
    for event in rng.sample(calls, min(len(calls), 8)):
        event["args"]["correlation"] = calls[0]["args"]["correlation"]


def jump_device_clock(document, rng):
    jump = rng.choice((-1, 1)) * rng.choice((5e3, 1e6, 1e9))
    kernels = [e for e in document["traceEvents"] if e.get("cat") == "kernel"]
    for event in kernels[len(kernels) // 2 :]:
        event["ts"] += jump


def shuffle(document, rng):
    rng.shuffle(document["traceEvents"])


def change_surroundings(document, rng):
    key = rng.choice(("distributedInfo", "deviceProperties", "baseTimeNanoseconds"))
    document[key] = rng.choice(WRONG)


STRUCTURED = (
    drop_fields, drop_arguments, change_types, change_argument_types, negate_durations,
    repeat_correlations, jump_device_clock, shuffle, change_surroundings,
)  # fmt: skip


def cut(text, rng):
    return text[: rng.randrange(len(text))]


def flip(text, rng):
    letters = bytearray(text)
    for _ in range(rng.choice((1, 20))):
        letters[rng.randrange(len(letters))] = rng.randrange(256)
    return bytes(letters)


def splice(text, rng):
    place, end = sorted(rng.sample(range(len(text)), 2))
    return text[:place] + rng.choice((b"\xff\xfe", b'"', b"}", b"{", b"inf,")) + text[end:]


RAW = (cut, flip, splice)


def outcome(paths):
    """Import and replay; anything but our own errors fails the test."""
    try:
        job = import_job(load_job_trace(paths))
        score = self_replay(job)
    except PerfModelError as fault:
        return "refused" if len(str(fault)) > 20 else "refused without a reason"
    assert score.iteration.replayed_ns >= 0
    faults = job.report.all_faults
    return "reported" if faults else "clean"


@pytest.fixture(scope="module")
def documents(shared_data):
    folder = shared_data / "traces" / "single_rank"
    return [json.loads(gzip.open(folder / name).read()) for name in SMALL]


@pytest.mark.parametrize("seed", range(3))
def test_structured_damage_is_reported_or_refused(documents, tmp_path, seed):
    rng = random.Random(seed)
    seen = set()
    for number in range(90):
        document = copy.deepcopy(documents[rng.choice((0, 1, 1, 2, 2, 2))])
        change = STRUCTURED[number % len(STRUCTURED)]
        change(document, rng)
        path = tmp_path / "rank0.json"
        path.write_text(json.dumps(document))
        seen.add((change.__name__, outcome(path)))
    assert ("shuffle", "clean") in seen
    assert ("negate_durations", "clean") not in seen
    assert ("repeat_correlations", "clean") not in seen


def test_damaged_text_is_reported_or_refused(documents, tmp_path):
    rng = random.Random(7)
    seen = set()
    for number in range(210):
        text = json.dumps(rng.choice(documents[1:])).encode()
        path = tmp_path / "rank0.json"
        change = RAW[number % len(RAW)]
        path.write_bytes(change(text, rng))
        seen.add((change.__name__, outcome(path)))
    # A byte inside a name may change without anybody being able to tell; a missing end may not.
    assert ("cut", "clean") not in seen
    assert {word for _, word in seen} == {"clean", "refused", "reported"}


def test_a_cut_file_never_imports_clean(documents, tmp_path):
    rng = random.Random(8)
    text = json.dumps(documents[0]).encode()
    for _ in range(20):
        path = tmp_path / "rank0.json"
        path.write_bytes(text[: rng.randrange(len(text) // 4, len(text) - 1000)])
        assert outcome(path) != "clean"


@pytest.fixture(scope="module")
def two_ranks(shared_data):
    folder = shared_data / "traces" / "dlrm_param_v100x8" / "kineto"
    return [json.loads(gzip.open(folder / f"rank{rank}.json.gz").read()) for rank in (0, 2)]


def write_ranks(folder, ranks):
    for number, document in enumerate(ranks):
        document["distributedInfo"]["world_size"] = len(ranks)
        document["distributedInfo"]["rank"] = number
        (folder / f"r{number}.json").write_text(json.dumps(document))
    return folder


def collectives(document):
    spans = [e for e in document["traceEvents"] if e.get("cat") == "kernel"]
    return sorted((e for e in spans if "nccl" in e["name"]), key=lambda e: e["ts"])


def test_a_collective_missing_on_one_rank_is_refused_or_counted(two_ranks, tmp_path):
    for number in range(8):
        folder = tmp_path / str(number)
        folder.mkdir()
        ranks = copy.deepcopy(two_ranks)
        lost = collectives(ranks[1])[number]
        ranks[1]["traceEvents"].remove(lost)
        write_ranks(folder, ranks)
        if number == 0:
            # At the beginning of a window a partner may be missing; it is counted.
            report = import_job(load_job_trace(folder)).report
            assert [rank.collectives for rank in report.ranks] == [8, 7]
            assert report.rendezvous == 7
        else:
            assert outcome(folder) in ("refused", "reported"), number


def test_a_clock_that_jumps_on_one_rank_is_refused(two_ranks, tmp_path):
    ranks = copy.deepcopy(two_ranks)
    spans = [event for event in ranks[1]["traceEvents"] if "ts" in event]
    middle = sorted(event["ts"] for event in spans)[len(spans) // 2]
    for event in spans:
        if event["ts"] > middle:
            event["ts"] += 50_000
    assert outcome(write_ranks(tmp_path, ranks)) == "refused"


def test_a_clock_that_goes_back_is_reported(shared_data, tmp_path):
    for rank in range(2):
        path = shared_data / "traces" / "gpt_tp2_v100x2" / f"kineto_rank{rank}.json.gz"
        document = json.loads(gzip.decompress(path.read_bytes()))
        spans = [event for event in document["traceEvents"] if event["ph"] == "X"]
        work = [
            e["ts"] for e in spans if e["cat"].startswith(("cuda_runtime", "kernel", "gpu_mem"))
        ]
        late = sorted(work)[int(0.95 * len(work))]
        for event in spans if rank == 0 else ():
            event["ts"] -= 1e6 * (event["ts"] > late)
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    assert outcome(tmp_path) == "reported"


def test_ranks_of_different_jobs_are_refused(two_ranks, documents, tmp_path):
    ranks = [copy.deepcopy(two_ranks[0]), copy.deepcopy(two_ranks[1])]
    for number, event in enumerate(collectives(ranks[1])):
        event["name"] = "ncclDevKernel_AllGather_RING_LL" if number % 2 else "ncclKernel_Reduce"
    assert outcome(write_ranks(tmp_path, ranks)) == "refused"


def test_swapped_and_missing_ranks_are_told(two_ranks, tmp_path):
    write_ranks(tmp_path, copy.deepcopy(two_ranks)[::-1])
    assert outcome(tmp_path) == "clean"

    alone = copy.deepcopy(two_ranks[0])
    alone["distributedInfo"]["world_size"] = 2
    (tmp_path / "r1.json").unlink()
    (tmp_path / "r0.json").write_text(json.dumps(alone))
    assert outcome(tmp_path) == "reported"


def test_permuted_correlations_are_refused_with_what_is_wrong_with_them(shared_data, tmp_path):
    path = shared_data / "traces" / "resnet50_loader_v100" / "num_workers_4.json.gz"
    document = json.loads(gzip.decompress(path.read_bytes()))
    linked = [one for one in document["traceEvents"] if "correlation" in (one.get("args") or {})]
    source = random.Random(0)
    chosen = source.sample(linked, len(linked) // 50)
    numbers = [one["args"]["correlation"] for one in chosen]
    source.shuffle(numbers)
    for one, number in zip(chosen, numbers, strict=True):
        one["args"]["correlation"] = number
    (tmp_path / "rank0.json").write_text(json.dumps(document))

    with pytest.raises(TraceError, match="calls repeat the correlation of an earlier call"):
        import_traces([tmp_path], tmp_path / "job")
