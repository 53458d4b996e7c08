"""`make mutants`: how many small wrong turns the tests of a folder notice.

Mutations are drawn by seed over the rooms below, each is applied to a copy of
the project, and the tests of its folder must fail; those that reach the mutated
function run first. Survivors are printed: each is a rule that no test states, or
code that makes no difference.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from tests.mutants.mutations import Mutation, find_mutations
from tests.mutants.reach import LOOK, SORT, name_function

PACKAGES = ("perfmodel", "collectives", "embeddings", "topologies", "traces")
ROOMS = {
    "perfmodel/engine": ("tests/engine", "tests/golden"),
    "perfmodel/prediction": ("tests/prediction", "tests/contract"),
    "perfmodel/planning": ("tests/planning",),
    "collectives": ("tests/collectives",),
    "embeddings": ("tests/embeddings",),
    "perfmodel/stacks": ("tests/stacks",),
}
GRACE_S, COMPILING_GRACE_S = 10.0, 120.0
"""Processor time of a test beyond ten times its own: a busy machine must not count as a kill."""
NOTICED = (1, 2)
"""What pytest ends with where a test fails, and where a module can no longer be loaded."""


def draw(seed: int, count: int, rooms: list[str]) -> list[Mutation]:
    """*count* mutations, rooms in turn, each file as likely as its number of mutations."""
    chooser = random.Random(seed)
    pools = {
        room: [one for path in sorted(Path(room).rglob("*.py")) for one in find_mutations(path)]
        for room in rooms
    }
    return [chooser.choice(pools[rooms[number % len(rooms)]]) for number in range(count)]


class Bench:
    """A copy of the project in which one mutation after the other is tried."""

    def __init__(self, place: Path) -> None:
        self._copy, self._kernels = place / "project", place / "kernels"
        for name in (*PACKAGES, "tests", "experiments"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(name, self._copy / name, ignore=ignored)
        shutil.copy("pyproject.toml", self._copy)

    def look(self, rooms: Sequence[str]) -> None:
        """Run the tests of *rooms* as they are: they must pass, and tell what they reach."""
        if "perfmodel/engine" in rooms:
            # Compiling takes long where every call is followed, so kernels are compiled before.
            self._run(ROOMS["perfmodel/engine"], self._kernels, {})
        for room in rooms:
            told = {LOOK: str(self._look(room))}
            if code := self._run(ROOMS[room], self._kernels, told):
                raise SystemExit(f"without a mutation, the tests of {room} end with {code}")

    def survives(self, mutation: Mutation) -> bool:
        """Whether the tests of the folder pass although *mutation* is in it."""
        room = next(room for room in ROOMS if mutation.path.is_relative_to(room))
        target = self._copy / mutation.path
        right = target.read_text(encoding="utf-8")
        kernels, grace_s = self._kernels, GRACE_S
        if "numba" in right:
            # Compiled callers hold a copy of what they call, and do not ask whether it changed.
            kernels, grace_s = self._copy.parent / "wrong kernels", COMPILING_GRACE_S
        function = name_function(mutation.path, mutation.line)
        told = {SORT: json.dumps((str(self._look(room)), function, grace_s))}
        try:
            target.write_text(mutation.apply(right), encoding="utf-8")
            code = self._run(ROOMS[room], kernels, told)
        finally:
            target.write_text(right, encoding="utf-8")
            shutil.rmtree(self._copy.parent / "wrong kernels", ignore_errors=True)
        if code > 0 and code not in NOTICED:
            raise SystemExit(
                f"{mutation}: pytest ends with {code}, which says nothing of the tests"
            )
        return code == 0

    def _look(self, room: str) -> Path:
        return self._copy.parents[1] / f"{room.replace('/', '_')}.json"

    def _run(self, tests: Iterable[str], kernels: Path, told: dict[str, str]) -> int:
        words = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        words += ["-p", "no:xdist", "-p", "tests.mutants.reach", "-m", "not benchmark and not ray"]
        surroundings = {
            **os.environ,
            **told,
            "PYTHONPATH": str(self._copy),
            "NUMBA_CACHE_DIR": str(kernels),
            # Without the shared tables: a clone must notice by itself.
            "PERFMODEL_SHARED_DATA": "/nonexistent",
        }
        done = subprocess.run(
            [*words, *tests], cwd=self._copy, env=surroundings, capture_output=True, check=False
        )
        return done.returncode


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
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        benches: Queue[Bench] = Queue()
        for number in range(asked.workers):
            benches.put(Bench(Path(place) / str(number)))
        benches.queue[0].look(asked.rooms.split(","))

        def survives(mutation: Mutation) -> bool:
            bench = benches.get()
            try:
                return bench.survives(mutation)
            finally:
                benches.put(bench)

        pool = ThreadPoolExecutor(asked.workers)
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
