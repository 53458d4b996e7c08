"""The driver of a fault drill: joins a cluster, replays, loses what it is told to lose.

    python -m tests.faults.driver ADDRESS WORKERS FAULT ROUND [PID ...]

FAULT is none, worker, driver, or raylet or gcs with the PIDs to kill. Prints a line of JSON: the
digest of the answer, and the raylets that had a worker. ADDRESS `here` starts a local Ray.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
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


def main(address: str, workers: int, fault: str, number: int, pids: list[int]) -> int:
    raylets: set[str] = set()

    def lose(status: RoundStatus) -> None:
        if status.number == 0:
            raylets.update(place.raylet_id for place in status.places)
        if status.number == number and fault != "none":
            doomed = {"worker": [status.places[-1].pid], "driver": [os.getpid()]}.get(fault, pids)
            for pid in doomed:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    job, durations = alternating_job(ranks=6, meetings=MEETINGS)
    try:
        with open_executor(
            "ray",
            workers=workers,
            address=None if address == "here" else address,
            on_round=lose,
        ) as executor:
            answer = {
                "digest": digest(executor.replay(job, durations, ITERATIONS)),
                "raylets": len(raylets),
            }
    except PerfModelError as error:
        print(f"perfmodel: {error}", file=sys.stderr)
        return 1
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    address, workers, fault, number, *pids = sys.argv[1:]
    sys.exit(main(address, int(workers), fault, int(number), [int(pid) for pid in pids]))
