"""The fault drill: parts of a cluster of three raylets are killed or stopped while a driver works.

    python -m tests.faults [--runs 100] [--seed 1] [--first 0] [--fault KIND]

In half of the runs the kill comes at a drawn round of a replay, in the other half at a drawn time
after the driver began to join. Every run must end within 60 s of the loss, with the bytes of one
process or with a sentence, and leave no process and no folder. Prints a line per run and a
table, and exits with 1 if a run did not. A seed and the number of a run name a case.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from perfmodel.engine.replay import replay
from perfmodel.execution.on_ray import surroundings, watchdog
from tests.execution.jobs import alternating_job
from tests.faults.driver import ITERATIONS, MEETINGS, QUESTIONS, ROUNDS, digest
from tests.faults.field import MARK, Field, blow_of, wait_gone

CHECKOUT = Path(__file__).resolve().parents[2]
FAULTS = (
    *("worker", "raylet", "driver", "gcs", "raylet", "head raylet"),
    *("stopped raylet", "stopped gcs", "stopped head raylet"),
)
NODES = 3
MOST_S = 60.0
"""From the loss to the end of the driver."""
MOST_START_S = 600.0
"""From the start to the loss, where eight others want to run: nothing is lost yet."""
GOOD_ENDS = ("same bytes", "sentence", "killed")


@dataclass(frozen=True, slots=True)
class Case:
    """What is killed, and when: at a *round* of a replay, or *delay_s* after joining began."""

    fault: str
    work: str
    round: int | None
    delay_s: float
    seed: int

    @property
    def moment(self) -> str:
        where = f"round {self.round}" if self.round else f"{self.delay_s:.1f} s"
        return f"{self.work}, {where}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended, *seconds* after the loss; *raylets* had workers, None if it is not known."""

    end: str
    seconds: float
    raylets: int | None
    said: str

    @property
    def is_good(self) -> bool:
        return self.end in GOOD_ENDS


def draw_case(seed: int, run: int, fault: str | None = None) -> Case:
    source = random.Random(seed * 1_000_003 + run)
    fault = fault or FAULTS[run % len(FAULTS)]
    if source.random() < 0.5:
        # Rounds take milliseconds, and it takes seconds to notice a loss: now and then there is
        # time for it.
        pause_s = source.choice((0.0, source.uniform(0.5, 5.0)))
        return Case(fault, "replay", source.randint(1, ROUNDS - 1), pause_s, run)
    work = source.choice(("replay", "questions"))
    return Case(fault, work, None, source.uniform(0.0, 10.0), run)


class Driver:
    """A driver that runs: what it has said, and how it ended."""

    def __init__(self, field: Field, case: Case, output: IO[str], errors: IO[str]) -> None:
        self.case, self._field, self.lost_s = case, field, 0.0
        self._output, self._errors = output, errors
        self.mark = f"driver {os.getpid()} {case.seed}"
        self._source = random.Random(case.seed)
        words = [field.address, str(field.nodes), case.work]
        if case.round is not None:
            pids = field.doomed_pids(case.fault, self._source)
            words += [str(case.round), case.fault, str(case.delay_s), *map(str, pids)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.driver", *words],
            cwd=CHECKOUT,
            stdout=self._output,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), MARK: self.mark},
        )

    def facts(self) -> dict:
        self._output.seek(0)
        return {key: value for line in self._output for key, value in json.loads(line).items()}

    def run(self) -> None:
        """Until it has ended, or the time since the loss or the start is up."""
        until_s = time.monotonic() + MOST_START_S
        while self._process.poll() is None and time.monotonic() < until_s:
            time.sleep(0.05)
            if self.lost_s:
                continue
            facts = self.facts()
            if "lost_s" in facts:
                self.lost_s = facts["lost_s"]
            elif self.case.round is None and "joining" in facts:
                self._kill()
            if self.lost_s:
                until_s = self.lost_s + MOST_S
        self._facts = self.facts()

    def _kill(self) -> None:
        time.sleep(self.case.delay_s)
        if self._process.poll() is None:
            self.lost_s = time.monotonic()
            is_driver = self.case.fault == "driver"
            pids = self._field.doomed_pids(self.case.fault, self._source)
            for pid in [self._process.pid] if is_driver else pids:
                os.kill(pid, blow_of(self.case.fault))

    def judge(self, wanted: dict[str, str]) -> Outcome:
        """How it ended, and what it left."""
        seconds = time.monotonic() - (self.lost_s or time.monotonic())
        is_over = self._process.poll() is not None
        if not is_over:
            self._process.kill()
        code = self._process.wait()
        left = wait_gone(self.mark, 15.0)
        self._errors.seek(0)
        said = self._errors.read().strip()
        end = self._end(code, said, wanted) if is_over else "HANG"
        if left:
            end = f"LEFT {len(left)} PROCESSES"
        return Outcome(end, seconds, self._facts.get("raylets"), said)

    def _end(self, code: int, said: str, wanted: dict[str, str]) -> str:
        if not self.lost_s:
            return "not hit" if code == 0 else "FAILED BEFORE THE LOSS"
        if code == 0:
            is_same = self._facts.get("digest") == wanted[self.case.work]
            return "same bytes" if is_same else "OTHER BYTES"
        if "Traceback" in said:
            return "TRACEBACK"
        if self.case.fault == "driver" and (not said or "ended unexpectedly" in said):
            # Before it has a watchdog, it can leave nothing, and nothing can report it.
            return "killed"
        is_sentence = "ray: " in said
        return "sentence" if is_sentence else f"EXIT {code} WITHOUT A SENTENCE"


def run_once(field: Field, case: Case, wanted: dict[str, str]) -> Outcome:
    field.prepare()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        driver = Driver(field, case, output, errors)
        driver.run()
        outcome = driver.judge(wanted)
    field.recover(case.fault)
    return outcome


def expected() -> dict[str, str]:
    """The digests of what one process answers."""
    job, durations = alternating_job(ranks=6, members=MEETINGS)
    return {
        "replay": digest(replay(job, durations, iterations=ITERATIONS)),
        "questions": str(sum(number * number for number in range(QUESTIONS))),
    }


def leftovers() -> list[str]:
    """What local Rays have left, once a start has cleared up after those that were killed."""
    surroundings.clear_leftovers()
    folders = Path(tempfile.gettempdir()).glob(f"{surroundings.FOLDER_PREFIX}*")
    return [str(folder) for folder in folders if not watchdog.marked_processes(str(folder))]


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill parts of Ray and see what becomes of it.")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--fault", choices=sorted(set(FAULTS)))
    words = parser.parse_args()
    os.environ.setdefault("RAY_worker_niceness", "0")
    wanted, before = expected(), set(leftovers())
    counts: Counter[tuple[str, str]] = Counter()
    slowest_s, is_good = 0.0, True
    mark = f"cluster {os.getpid()}"
    field = Field(NODES, mark)
    print(
        f"seed {words.seed}, runs {words.first} to {words.first + words.runs - 1}, {NODES} raylets"
    )
    try:
        for run in range(words.first, words.first + words.runs):
            case = draw_case(words.seed, run, words.fault)
            outcome = run_once(field, case, wanted)
            counts[case.fault, outcome.end] += 1
            slowest_s = max(slowest_s, outcome.seconds)
            is_good = is_good and (outcome.is_good or outcome.end == "not hit")
            print(
                f"{run:>3} {case.fault:<19} {case.moment:<18} raylets {outcome.raylets or '-'}: "
                f"{outcome.end:<10} {outcome.seconds:4.1f} s  {outcome.said[:110]}",
                flush=True,
            )
    finally:
        field.close()
    left = [*wait_gone(mark, 15.0), *sorted(set(leftovers()) - before)]
    print("\nhit                 end          runs")
    for (fault, end), count in sorted(counts.items()):
        print(f"{fault:<19} {end:<12} {count:>4}")
    kills = sum(count for (_, end), count in counts.items() if end != "not hit")
    print(f"{kills} kills, the slowest end {slowest_s:.1f} s after the loss (limit {MOST_S:.0f} s)")
    print(f"left behind: {left or 'nothing'}")
    return 0 if is_good and not left else 1


if __name__ == "__main__":
    sys.exit(main())
