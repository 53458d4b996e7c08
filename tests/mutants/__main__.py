"""`make mutants`: how many small wrong turns the tests of a folder notice.

Mutations are drawn by seed over the rooms below, each is applied to a copy of
the project, and the tests of its folder must fail. Survivors are printed: each
is a rule that no test states, or code that makes no difference.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.mutations import Mutation, find_mutations

PACKAGES = ("perfmodel", "collectives", "embeddings", "topologies", "traces")
ROOMS = {
    "perfmodel/engine": ("tests/engine", "tests/golden", "tests/execution/test_serial.py"),
    "perfmodel/prediction": ("tests/prediction", "tests/contract"),
    "perfmodel/planning": ("tests/planning",),
    "collectives": ("tests/collectives",),
    "embeddings": ("tests/embeddings",),
    "perfmodel/stacks": ("tests/stacks",),
}
TIMEOUT_S = 300


def draw(seed: int, count: int, rooms: list[str]) -> list[Mutation]:
    """*count* mutations, rooms in turn, each file as likely as its number of mutations."""
    chooser = random.Random(seed)
    pools = {
        room: [one for path in sorted(Path(room).rglob("*.py")) for one in find_mutations(path)]
        for room in rooms
    }
    return [chooser.choice(pools[rooms[number % len(rooms)]]) for number in range(count)]


def survives(mutation: Mutation) -> bool:
    """Whether the tests of the folder pass although *mutation* is in it."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as place:
        copy = Path(place)
        for name in (*PACKAGES, "tests", "experiments"):
            shutil.copytree(name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy("pyproject.toml", copy)
        target = copy / mutation.path
        target.write_text(mutation.apply(target.read_text(encoding="utf-8")), encoding="utf-8")
        room = next(room for room in ROOMS if mutation.path.is_relative_to(room))
        folders = [folder for folder in ROOMS[room] if (copy / folder).exists()]
        near = [
            str(p.relative_to(copy)) for p in copy.glob(f"tests/**/test_{mutation.path.stem}.py")
        ]
        words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        words += ["-p", "no:xdist", "-m", "not benchmark and not ray", *near, *folders]
        # Without the shared tables: a clone must notice by itself.
        surroundings = {**os.environ, "PYTHONPATH": place, "PERFMODEL_SHARED_DATA": "/nonexistent"}
        try:
            done = subprocess.run(
                words,
                cwd=copy,
                env=surroundings,
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


def main() -> int:
    """Draw, run, and print; exit 1 where fewer than the wanted share are noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--rooms", default=",".join(ROOMS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--wanted-pct", type=float, default=90.0)
    asked = parser.parse_args()
    mutations = draw(asked.seed, asked.count, asked.rooms.split(","))
    killed = 0
    with ThreadPoolExecutor(asked.workers) as pool:
        for number, (one, lives) in enumerate(
            zip(mutations, pool.map(survives, mutations), strict=True), 1
        ):
            killed += not lives
            print(f"{number:>4} {'SURVIVED' if lives else 'killed  '} {one}", flush=True)
    share_pct = 100 * killed / len(mutations)
    print(f"{killed} of {len(mutations)} mutants killed ({share_pct:.0f} %), seed {asked.seed}")
    return int(share_pct < asked.wanted_pct)


if __name__ == "__main__":
    sys.exit(main())
