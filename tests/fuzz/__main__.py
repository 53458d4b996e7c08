"""`make fuzz`: damaged files for every reader; each is refused in words, or understood.

Half of them go through whole commands, which must not answer differently without a word.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.fuzz.cases import Outcome, run_batch, run_doors

BATCH = 250


def main() -> int:
    """Run all cases, print classes and defects; exit 1 where there are defects."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--commands", type=int, help="how many are whole commands")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    started = time.monotonic()
    commands = asked.count // 2 if asked.commands is None else asked.commands
    parts = [(run_doors, commands), (run_batch, asked.count - commands)]
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(asked.workers, mp_context=get_context("spawn")) as pool:
        jobs = [
            pool.submit(run, asked.seed, first, min(BATCH, count - first))
            for run, count in parts
            for first in range(0, count, BATCH)
        ]
        for job in jobs:
            outcomes += job.result()
            if len(outcomes) % 1000 < BATCH:
                print(f"{len(outcomes)} cases, {time.monotonic() - started:.0f} s", flush=True)
    for (reader, word), count in sorted(Counter((o.reader, o.word) for o in outcomes).items()):
        print(f"{reader:<16} {word:<28} {count}")
    defects = [one for one in outcomes if one.word.startswith("DEFECT")]
    for one in {(one.reader, one.word, one.detail): one for one in defects}.values():
        print(f"seed {asked.seed} case {one.number} {one.reader}: {one.word} {one.detail}")
    print(f"{len(defects)} defects in {len(outcomes)} cases")
    return int(bool(defects))


if __name__ == "__main__":
    sys.exit(main())
