"""The driver of a fault drill: joins a cluster, works, and may kill parts of it at a round.

    python -m tests.faults.driver ADDRESS WORKERS WORK [ROUND FAULT PAUSE [PID ...]]

WORK is replay or questions. At ROUND of a replay FAULT is killed: worker, driver, or the PIDs. Then
nothing is said for PAUSE seconds, as if blocks computed that long. Without ROUND the caller kills
what it likes, and the replay takes a few seconds. ADDRESS `here` starts a local Ray.

Every line of output is JSON: when joining begins, the raylets with a worker, when parts were
killed, and the digest of the answer.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from contextlib import suppress

from perfmodel.base.errors import PerfModelError
from perfmodel.execution import RoundStatus, open_executor
from tests.execution.jobs import alternating_job
from tests.faults.field import blow_of

ITERATIONS = 2
MEETINGS = 20
ROUNDS = ITERATIONS * MEETINGS
QUESTIONS = 60
PACE_S = 0.1
"""How long a round or a question takes if the caller kills."""


def digest(replay) -> str:
    """All that a replay found out, in one word."""
    said = hashlib.sha256(replay.lane_now_ns.tobytes())
    for timeline in replay.timelines:
        said.update(timeline.end_ns.tobytes())
        said.update(timeline.member_ready_ns.tobytes())
    return said.hexdigest()


def square_slowly(pace_s: float, value: int) -> int:
    time.sleep(pace_s)
    return value * value


def say(**facts) -> None:
    print(json.dumps(facts), flush=True)


def work_on(executor, work: str) -> str:
    """The digest of the answer."""
    if work == "questions":
        return str(sum(executor.map(square_slowly, PACE_S, range(QUESTIONS))))
    job, durations = alternating_job(ranks=6, members=MEETINGS)
    return digest(executor.replay(job, durations, ITERATIONS))


def main(address: str, workers: int, work: str, number=None, fault="", pause_s=0.0, pids=()) -> int:
    def observe(status: RoundStatus) -> None:
        if status.number == 0:
            say(raylets=len({place.raylet_id for place in status.places}))
        if number is None:
            time.sleep(PACE_S)
        elif status.number == number:
            doomed = {"worker": [status.places[-1].pid], "driver": [os.getpid()]}.get(fault, pids)
            say(lost_s=time.monotonic())
            for pid in doomed:
                with suppress(ProcessLookupError):
                    os.kill(pid, blow_of(fault))
            time.sleep(pause_s)

    say(joining=address)
    place = None if address == "here" else address
    try:
        with open_executor("ray", workers=workers, address=place, on_round=observe) as executor:
            answer = work_on(executor, work)
    except PerfModelError as error:
        print(f"perfmodel: {error}", file=sys.stderr)
        return 1
    say(digest=answer)
    return 0


if __name__ == "__main__":
    address, workers, work, *killing = sys.argv[1:]
    at = ()
    if killing:
        number, fault, pause, *pids = killing
        at = (int(number), fault, float(pause), [int(pid) for pid in pids])
    sys.exit(main(address, int(workers), work, *at))
