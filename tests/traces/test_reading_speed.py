"""Reading speed and memory against HTA, in one run: `PERFMODEL_HTA_PYTHON` names its interpreter.

HTA needs pandas below 2.3, so it lives in a virtual environment of its own.
"""

import gzip
import json
import os
import subprocess
import sys

import pytest

# The peak of this process image alone: ru_maxrss would start at that of the process that forked.
PEAK = "int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
OURS = f"""
import sys, time
from traces.kineto import load_kineto
start = time.perf_counter()
trace = load_kineto(sys.argv[1])
print(trace.report.objects / (time.perf_counter() - start), {PEAK})
"""
THEIRS = f"""
import sys, time
from hta.common.trace import Trace
count, rank = int(sys.argv[2]), int(sys.argv[3])
start = time.perf_counter()
trace = Trace(trace_files={{rank: sys.argv[1]}}, trace_dir="")
trace.parse_traces(use_multiprocessing=False)
print(count / (time.perf_counter() - start), {PEAK})
"""
RUNS = 3


def measure(python, code, *arguments):
    """Best events a second and least memory of a few runs."""
    results = []
    for _ in range(RUNS):
        done = subprocess.run(
            [python, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=True
        )
        speed, memory = done.stdout.split()[-2:]
        results.append((float(speed), int(memory)))
    return max(speed for speed, _ in results), min(memory for _, memory in results)


def concatenated(document, count, path):
    """A trace of *count* objects or more, made of copies one after the other."""
    spans = document["traceEvents"]
    stamps = [span["ts"] for span in spans if span.get("ph") == "X"]
    length = max(stamps) - min(stamps) + 100_000
    total = copy = 0
    with gzip.open(path, "wt", compresslevel=1) as stream:
        stream.write('{"distributedInfo": %s, "traceEvents": [' % json.dumps({"rank": 3}))  # noqa: UP031  braces
        while total < count:
            for span in spans:
                moved = {**span, "ts": span["ts"] + copy * length} if "ts" in span else span
                stream.write(("," if total else "") + json.dumps(moved) + "\n")
                total += 1
            copy += 1
        stream.write("]}")
    return total


@pytest.mark.benchmark
def test_reading_is_five_times_as_fast_in_a_third_of_the_memory(shared_data, tmp_path):
    theirs = os.environ.get("PERFMODEL_HTA_PYTHON")
    if theirs is None:
        pytest.skip("PERFMODEL_HTA_PYTHON does not name an interpreter with HTA")
    largest = shared_data / "traces" / "single_rank" / "hta_trace_diff__control__control.json.gz"
    with gzip.open(largest) as stream:
        document = json.loads(stream.read())
    million = tmp_path / "million.json.gz"
    cases = {largest: len(document["traceEvents"])}
    cases[million] = concatenated(document, 1_000_000, million)
    for path, count in cases.items():
        speed, memory = measure(sys.executable, OURS, path)
        their_speed, their_memory = measure(theirs, THEIRS, path, count, 3)
        print(f"{path.name}: {speed:,.0f} events/s against {their_speed:,.0f}, "
              f"{memory:,} KiB against {their_memory:,}")  # fmt: skip
        assert speed >= 5 * their_speed
        assert 3 * memory <= their_memory
