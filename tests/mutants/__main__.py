"""`make mutants`: how many small wrong turns the tests notice.

Mutations are drawn by seed over all rooms, each is applied to a copy of the project, and a test
must fail. About a minute of tests that reach the mutated function run, the quickest first. Where
none is seen to reach it (it runs in another process), tests of its room that start a process run.
Survivors are printed: each is a rule that no test states, or code that makes no difference.
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
from tests.mutants.reach import LOOK, SORT, choose_tests, name_function

PACKAGES = ("perfmodel", "collectives", "embeddings", "topologies", "traces")
EVERYWHERE = ("tests/contract", "tests/fingerprint", "tests/golden")
OWN_TESTS = {"perfmodel/api": ("tests/test_api.py", "tests/cli")}
"""Tests of a room that are not in the folder of its name."""
GRACE_S, COMPILING_GRACE_S = 10.0, 120.0
"""Processor time of a test beyond ten times its own: a busy machine must not count as a kill."""
NOTICED = (1, 2)
"""What pytest ends with where a test fails, and where a module can no longer be loaded."""


def list_rooms() -> list[str]:
    """Folders of the product, those of `perfmodel` one by one."""
    inner = [f"perfmodel/{path.parent.name}" for path in Path("perfmodel").glob("*/__init__.py")]
    return sorted([*inner, *PACKAGES[1:]])


def draw(seed: int, count: int, rooms: Sequence[str]) -> list[Mutation]:
    """*count* mutations, rooms in turn, each file as likely as its number of mutations."""
    chooser = random.Random(seed)
    pools = {
        room: [one for path in sorted(Path(room).rglob("*.py")) for one in find_mutations(path)]
        for room in rooms
    }
    return [chooser.choice(pools[rooms[number % len(rooms)]]) for number in range(count)]


def tests_of(room: str) -> tuple[str, ...]:
    """The folder of tests that mirrors *room*, and those that every room has."""
    folder = f"tests/{room.removeprefix('perfmodel/')}"
    own = OWN_TESTS.get(room, (folder,) if Path(folder).is_dir() else ())
    return (*own, *EVERYWHERE)


class Bench:
    """A copy of the project in which one mutation after the other is tried."""

    def __init__(self, place: Path) -> None:
        self._copy, self._kernels = place / "project", place / "kernels"
        for name in (*PACKAGES, "tests", "experiments", "docs"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(name, self._copy / name, ignore=ignored)
        for name in ("pyproject.toml", "README.md", "Makefile", "constraints.txt"):
            shutil.copy(name, self._copy)

    def compile(self) -> None:
        """Compile kernels: it would count as time of the first test, and take long in a look."""
        self._run(("tests/engine", "tests/fingerprint"), self._kernels, {})

    def look(self, tests: Sequence[str]) -> dict[str, tuple[float, list[str]]]:
        """Run *tests*, which must pass: what each reaches, and how long it takes."""
        seen = self._copy.parent / "seen.json"
        if code := self._run(tests, self._kernels, {LOOK: str(seen)}):
            raise SystemExit(f"without a mutation, the tests of {', '.join(tests)} end with {code}")
        found: dict[str, tuple[float, list[str]]] = json.loads(seen.read_text())
        return found

    def survives(self, mutation: Mutation, look: Path) -> bool:
        """Whether the tests pass although *mutation* is in the code."""
        target = self._copy / mutation.path
        right = target.read_text(encoding="utf-8")
        kernels, grace_s = self._kernels, GRACE_S
        is_compiled = "compiling import compiled" in right
        if is_compiled:
            # Compiling takes longer than a test may. Compiled callers hold a copy of what they
            # call, and do not ask whether it changed.
            kernels, grace_s = self._copy.parent / "wrong kernels", COMPILING_GRACE_S
        room = next(room for room in list_rooms() if mutation.path.is_relative_to(room))
        function = name_function(mutation.path, mutation.line)
        folder = f"{tests_of(room)[0]}/"
        chosen = choose_tests(look, function, folder, is_compiled=is_compiled)
        files = dict.fromkeys(test.partition("::")[0] for test in chosen)
        told = self._copy.parent / "chosen.json"
        told.write_text(json.dumps((chosen, grace_s)))
        try:
            target.write_text(mutation.apply(right), encoding="utf-8")
            code = self._run(files or tests_of(room), kernels, {SORT: str(told)})
        finally:
            target.write_text(right, encoding="utf-8")
            shutil.rmtree(self._copy.parent / "wrong kernels", ignore_errors=True)
        if code > 0 and code not in NOTICED:
            raise SystemExit(
                f"{mutation}: pytest ends with {code}, which says nothing of the tests"
            )
        return code == 0

    def _run(self, tests: Iterable[str], kernels: Path, told: dict[str, str]) -> int:
        words = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        words += ["-p", "no:xdist", "-p", "tests.mutants.reach", "-m", "not benchmark"]
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
        if done.returncode and LOOK in told:
            print(done.stdout.decode(errors="replace")[-4000:], file=sys.stderr)
        # A program that what all tests share cannot load is a fault that was noticed.
        return 2 if b"while loading conftest" in done.stdout + done.stderr else done.returncode


def look_at_all(benches: Sequence[Bench], rooms: Sequence[str], target: Path) -> None:
    """Write to *target* what tests of *rooms* reach; benches share the folders between them."""
    folders = sorted({folder for room in rooms for folder in tests_of(room)})
    with ThreadPoolExecutor(len(benches)) as pool:
        parts = pool.map(
            lambda place: benches[place].look(folders[place :: len(benches)]), range(len(benches))
        )
        seen = {test: entry for part in parts for test, entry in part.items()}
    target.write_text(json.dumps(seen))


def main() -> int:
    """Draw, run, and print; exit 1 where fewer than the wanted share are noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=lambda text: int(text, 0), default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--skip", type=int, default=0, help="Leave out the first of those drawn.")
    parser.add_argument("--rooms", default=",".join(list_rooms()))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--wanted-pct", type=float, default=90.0)
    parser.add_argument("--look", type=Path, help="Keep what tests reach here, or read it.")
    asked = parser.parse_args()
    rooms = asked.rooms.split(",")
    mutations = draw(asked.seed, asked.count, rooms)[asked.skip :]
    killed = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        made = [Bench(Path(place) / str(number)) for number in range(asked.workers)]
        look = asked.look or Path(place) / "look.json"
        with ThreadPoolExecutor(asked.workers) as pool:
            list(pool.map(Bench.compile, made))
        if not look.exists():
            look_at_all(made, rooms, look)
        benches: Queue[Bench] = Queue()
        for bench in made:
            benches.put(bench)

        def survives(mutation: Mutation) -> bool:
            bench = benches.get()
            try:
                return bench.survives(mutation, look)
            finally:
                benches.put(bench)

        pool = ThreadPoolExecutor(asked.workers)
        for number, (one, lives) in enumerate(
            zip(mutations, pool.map(survives, mutations), strict=True), asked.skip + 1
        ):
            killed += not lives
            print(f"{number:>4} {'SURVIVED' if lives else 'killed  '} {one}", flush=True)
    share_pct = 100 * killed / len(mutations)
    print(f"{killed} of {len(mutations)} mutants killed ({share_pct:.0f} %), seed {asked.seed}")
    return int(share_pct < asked.wanted_pct)


if __name__ == "__main__":
    sys.exit(main())
