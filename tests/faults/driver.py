"""The driver of a fault drill: joins a cluster, replays, loses what it is told to lose.

    python -m tests.faults.driver ADDRESS WORKERS FAULT ROUND PAUSE [PID ...]

FAULT is none, worker, driver, or raylet or gcs with the PIDs to kill. Prints a line of JSON with
the number of raylets that have a worker before anything is lost, and one with the digest of the
answer. After the loss nothing is said for PAUSE seconds, as if blocks walked that long. ADDRESS
`here` starts a local Ray.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from contextlib import suppress

from perfmodel.base.errors import PerfModelError
from perfmodel.execution import RoundStatus, open_executor
from tests.execution.jobs import alternating_job

ITERATIONS = 2
MEETINGS = 20
ROUNDS = ITERATIONS * MEETINGS


def digest(replay) -> str:
    """All that a replay found out, in one word."""
    said = hashlib.sha256(replay.lane_now_ns.tobytes())
    for timeline in replay.timelines:
        said.update(timeline.end_ns.tobytes())
        said.update(timeline.member_ready_ns.tobytes())
    return said.hexdigest()


def main(
    address: str, workers: int, fault: str, number: int, pause_s: float, pids: list[int]
) -> int:
    def lose(status: RoundStatus) -> None:
        if status.number == 0:
            raylets = {place.raylet_id for place in status.places}
            print(json.dumps({"raylets": len(raylets)}), flush=True)
        if status.number == number and fault != "none":
            doomed = {"worker": [status.places[-1].pid], "driver": [os.getpid()]}.get(fault, pids)
            for pid in doomed:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(pause_s)

    job, durations = alternating_job(ranks=6, members=MEETINGS)
    try:
        with open_executor(
            "ray",
            workers=workers,
            address=None if address == "here" else address,
            on_round=lose,
        ) as executor:
            answer = {"digest": digest(executor.replay(job, durations, ITERATIONS))}
    except PerfModelError as error:
        print(f"perfmodel: {error}", file=sys.stderr)
        return 1
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    address, workers, fault, number, pause, *pids = sys.argv[1:]
    numbers = (int(number), float(pause), [int(pid) for pid in pids])
    sys.exit(main(address, int(workers), fault, *numbers))
