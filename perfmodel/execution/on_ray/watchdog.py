"""The watchdog: a small process that outlives the driver of a replay.

Ray terminates its driver when the raylet is gone, and a killed process cannot report
anything. The watchdog notices that its pipe to the driver closed without a goodbye,
reports what happened, and cleans up a local Ray.

    python watchdog.py FOLDER

It reads sentences, one per line, from standard input; `bye` is the goodbye. FOLDER
is that of the local Ray, or `-`. It imports only the standard library, so that it starts
at once.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

MARK = "PERFMODEL_RAY_FOLDER"
"""Every process of a local Ray inherits this with the name of its folder."""
_OF_RAYLET = b"RAY_RAYLET_PID="
"""Every process that a raylet starts inherits this."""
GOODBYE = "bye"
UNSAID = (
    "ray: the driver of the replay ended unexpectedly: it was killed, or Ray ended it "
    "because the raylet of this machine is gone. There is no answer. Ask again, or use "
    "--executor serial."
)
PATIENCE_S = 5.0


def main(folder: str) -> int:
    """Wait for the end of the driver, and clean up."""
    said = UNSAID
    for line in sys.stdin:
        if line.strip() == GOODBYE:
            return 0
        said = line.strip()
    print(said, file=sys.stderr, flush=True)
    if folder != "-":
        clear(Path(folder))
    return 1


def clear(folder: Path) -> None:
    """End all processes of the local Ray in *folder*, and remove it.

    Processes that are being killed may still write to it, so it is removed in a loop.
    """
    until_s = time.monotonic() + PATIENCE_S
    while folder.exists() and time.monotonic() < until_s:
        end_processes(str(folder))
        shutil.rmtree(folder, ignore_errors=True)


def end_processes(folder: str) -> None:
    """End all processes of the local Ray in *folder*, at once."""
    until_s = time.monotonic() + PATIENCE_S
    while found := marked_processes(folder):
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > until_s:
            return
        time.sleep(0.05)


def marked_processes(folder: str) -> list[int]:
    """The processes of the local Ray in *folder*; none on systems without /proc.

    What another thread of the driver has started carries the mark too, but is not Ray's: those
    name the folder, or were started by a raylet.
    """
    mark = f"{MARK}={folder}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            values = (entry / "environ").read_bytes().split(b"\0")
            if mark in values and not _is_gone(entry):
                is_rays = any(value.startswith(_OF_RAYLET) for value in values)
                if is_rays or folder.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def _is_gone(entry: Path) -> bool:
    """Whether a process has ended and waits for its parent to notice."""
    return (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
