"""Make the figures of the index again: python -m experiments [--quick] [--out FOLDER] [NAME...].

Each is a script of its own, run in a process of its own, two at a time. Full runs write beside
the scripts, quick ones to `build/figures`. Exits 1 if one fails or a picture is missing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from experiments.index import Entry, read_index

CHECKOUT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Run all scripts that the index names, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="folders; all if none")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, help="each script gets a folder of it")
    parser.add_argument("--ray-address")
    words = parser.parse_args()
    folders = {entry.folder: entry for entry in read_index() if entry.is_made}
    unknown = set(words.names) - set(folders)
    if unknown:
        parser.error(f"not in the index: {', '.join(sorted(unknown))}")
    chosen = [name for name in folders if not words.names or name in words.names]
    # What choosing among measured layouts reads must be written before.
    first = [name for name in chosen if name == "runs_scoreboard"]
    rest = [name for name in chosen if name not in first]
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        waited = [pool.submit(make, name, words) for name in [*first, *rest]]
        faults = [fault for one in waited if (fault := one.result())]
    print(f"{len(chosen)} figures in {time.monotonic() - began:.0f} s")
    sys.exit("\n".join(faults) or 0)


def make(name: str, words: argparse.Namespace) -> str:
    """Run the script of a folder; what went wrong, or nothing."""
    out = words.out / name if words.out else None
    options = [
        *(["--quick"] if words.quick else []),
        *(["--out", str(out)] if out else []),
        *(["--ray-address", words.ray_address] if words.ray_address else []),
    ]
    script = CHECKOUT / "experiments" / name / "run.py"
    began = time.monotonic()
    threads = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        [sys.executable, script, *options], env={**os.environ, **threads},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(f"{name:24} {time.monotonic() - began:6.0f} s", flush=True)
    if done.returncode:
        return f"{name}: {done.stderr.strip().splitlines()[-1] if done.stderr else 'failed'}"
    place = out or (CHECKOUT / "build/figures" / name if words.quick else script.parent)
    missing = [
        picture
        for entry in read_index()
        if entry.folder == name
        for picture in entry.pictures
        if not (place / picture).is_file()
    ]
    return f"{name}: did not write {', '.join(missing)}" if missing else ""


__all__ = ["Entry", "main"]

if __name__ == "__main__":
    main()
