"""The trace that Perfetto opens."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

from perfmodel.api import Scenario, predict
from perfmodel.prediction.explain import find_path
from perfmodel.reports.chrome_trace import choose_ranks, write_trace
from tests.reports.predictions import build_evidence, build_prediction


def read_trace(tmp_path, **changes):
    path = tmp_path / "trace.json"
    write_trace(build_prediction(**changes), path)
    return json.loads(path.read_text())


def test_every_task_is_a_span_in_microseconds(tmp_path):
    records = read_trace(tmp_path)["traceEvents"]
    spans = [record for record in records if record["ph"] == "X" and record["cat"] != "wait"]

    # Rank 0: launch 0-1, kernel 1-11, all-reduce 31-36 us; rank 1: kernel 1-31 us.
    assert [(span["pid"], span["name"], span["ts"], span["dur"]) for span in spans] == [
        (0, "launch", 0.0, 1.0),
        (0, "matmul", 1.0, 10.0),
        (0, "all_reduce", 31.0, 5.0),
        (1, "launch", 0.0, 1.0),
        (1, "matmul", 1.0, 30.0),
        (1, "all_reduce", 31.0, 5.0),
    ]


def test_a_wait_is_shown_before_the_collective(tmp_path):
    records = read_trace(tmp_path)["traceEvents"]
    [wait] = [record for record in records if record["ph"] == "X" and record["cat"] == "wait"]

    assert (wait["pid"], wait["ts"], wait["dur"]) == (0, 11.0, 20.0)


def test_arrows_lead_from_launches_to_kernels_and_from_the_late_rank_to_who_waits(tmp_path):
    records = read_trace(tmp_path)["traceEvents"]
    ends: dict[int, list[dict[str, Any]]] = {}
    for record in records:
        if record["ph"] in "sf":
            ends.setdefault(record["id"], []).append(record)
    arrows = [
        (first["cat"], first["pid"], first["tid"], second["pid"], second["tid"])
        for first, second in ends.values()
    ]

    # Lanes: 0 host, 1 compute, 2 network.
    assert arrows == [("launch", 0, 0, 0, 1), ("launch", 1, 0, 1, 1), ("wait", 1, 2, 0, 2)]


def test_lanes_and_ranks_have_names(tmp_path):
    records = read_trace(tmp_path)["traceEvents"]
    names = {record["args"]["name"] for record in records if "name" in record.get("args", {})}

    assert names >= {"rank 0", "rank 1 (represents 1-3)", "host", "compute", "network"}


def test_a_job_too_big_to_look_at_is_cut_and_says_so(tmp_path):
    path = tmp_path / "trace.json"
    write_trace(build_prediction(), path, max_tasks=3)
    trace = json.loads(path.read_text())

    # Rank 1 is the one that is waited for.
    assert {record["pid"] for record in trace["traceEvents"]} == {1}
    assert "1 of 2 classes of ranks are left out" in trace["otherData"]["shown"]


def test_ranks_that_others_wait_for_are_chosen_first():
    assert choose_ranks(build_evidence(), max_tasks=3) == (1,)
    assert choose_ranks(build_evidence(), max_tasks=6) == (0, 1)


def check_format(document):
    """Raise where *document* is not what viewers of the trace event format accept."""
    assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}
    named, spans, flows = set(), {}, {}
    for record in document["traceEvents"]:
        assert isinstance(record["name"], str)
        assert isinstance(record["pid"], int)
        if record["ph"] == "M":
            assert record["name"].removesuffix("_name").removesuffix("_sort_index") in {
                "process",
                "thread",
            }
            assert record["args"]
            named.add((record["pid"], record.get("tid")))
            continue
        assert math.isfinite(record["ts"])
        assert record["ts"] >= 0
        if record["ph"] == "X":
            assert record["dur"] >= 0
            assert record["args"]
            spans.setdefault((record["pid"], record["tid"]), []).append(
                (record["ts"], record["ts"] + record["dur"])
            )
        else:
            assert record["ph"] in {"s", "f"}
            flows.setdefault((record["cat"], record["id"]), []).append(record)
    # Lanes have names, spans of a lane follow one another, arrows have two ends at spans.
    assert set(spans) <= named
    for lane in spans.values():
        lane.sort()
        assert all(end <= start + 1e-6 for (_, end), (start, _) in itertools.pairwise(lane))
    for begin, finish in flows.values():
        assert (begin["ph"], finish["ph"], finish["bp"]) == ("s", "f", "e")
        assert begin["ts"] <= finish["ts"]
        for end in (begin, finish):
            lane = spans[end["pid"], end["tid"]]
            assert any(start <= end["ts"] <= stop for start, stop in lane)


def test_the_file_keeps_to_the_format_with_arguments(tmp_path):
    path = tmp_path / "trace.json"
    scenario = Scenario(topology="dgx_a100", workload="dlrm_mlperf", samples=2)
    prediction = predict(scenario, executor="serial")
    evidence = prediction.evidence
    decisive = evidence.class_ranks[next(iter(find_path(evidence))).at.rank][0]
    shown = {decisive, 3 if decisive == 0 else 0}
    write_trace(prediction, path, only_ranks=sorted(shown))
    document = json.loads(path.read_text())

    check_format(document)
    assert {record["pid"] for record in document["traceEvents"]} == shown
    spans = [one for one in document["traceEvents"] if one["ph"] == "X" and one["cat"] != "wait"]
    assert all({"provenance", "on_critical_path"} <= set(one["args"]) for one in spans)
    assert any(one["args"]["on_critical_path"] for one in spans)
    products = [one["args"] for one in spans if one["args"].get("op") == "Gemm"]
    assert products
    assert all({"m", "n", "k", "dtype"} <= set(one) for one in products)
    exchanges = [one["args"] for one in spans if one["cat"] == "communication"]
    assert all({"size_bytes", "group", "kind"} <= set(one) for one in exchanges)
