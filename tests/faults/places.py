"""The same question in many places: executors, hash seeds, locales, time zones, threads.

    python -m tests.faults.places [--every 1] [--first 0]

Asks a question of the command line in each of 64 places, or in every so many of them, and compares
the bytes of the JSON but for its key `run`, which says how it was computed. Exits with 1 where two
differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from hashlib import sha256
from itertools import product

from tests.conftest import CHECKOUT

EXECUTORS = (
    ("--executor", "serial"),
    *(("--executor", "ray", "--workers", str(count)) for count in (1, 2, 3)),
)
SURROUNDINGS = (
    ({"PYTHONHASHSEED": "0"}, {"PYTHONHASHSEED": "4711"}),
    ({"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8"}),
    ({"TZ": "UTC"}, {"TZ": "Asia/Kathmandu"}),
    ({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"}),
)
PLACES = [
    (words, {name: value for part in parts for name, value in part.items()})
    for *parts, words in product(*SURROUNDINGS, EXECUTORS)
]
QUESTION = ("predict", "--topology", "quad_a100", "--set", "batch=1024", "--samples", "8")
RUN = "import sys; from perfmodel.cli import main; sys.exit(main())"


def ask(words: tuple[str, ...], surroundings: dict[str, str]) -> str:
    """A word for the answer to the question in one place."""
    threads = {f"{name}_NUM_THREADS": surroundings["OMP_NUM_THREADS"] for name in ("NUMBA", "MKL")}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *QUESTION, *words, "--quiet", "--json", "-"],
        cwd=CHECKOUT,
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), **surroundings, **threads},
    )
    if done.returncode:
        return f"exit {done.returncode}: {done.stderr.decode().strip()[-300:]}"
    assert list(json.loads(done.stdout))[-1] == "run"
    return sha256(done.stdout.rpartition(b'"run":')[0]).hexdigest()[:16]


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask the same question in many places.")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    words = parser.parse_args()
    found: dict[str, int] = {}
    for executor, surroundings in PLACES[words.first :: words.every]:
        began_s = time.monotonic()
        answer = ask(executor, surroundings)
        found[answer] = found.get(answer, 0) + 1
        place = " ".join((*executor[1::2], *(f"{k}={v}" for k, v in surroundings.items())))
        print(f"{answer}  {time.monotonic() - began_s:5.1f} s  {place}", flush=True)
    print(f"{sum(found.values())} places, {len(found)} answer(s)")
    return 0 if len(found) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
