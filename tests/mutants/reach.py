"""Which tests reach which function: a plugin of pytest that looks once and sorts ever after.

A run that looks writes, for each test, the functions that it called and the processor time it
took. A run that sorts takes the tests that reach the function of a mutation, the quickest first;
no other test could notice it. Where none is seen to reach it, all run. A test that takes many
times its time ends the run: that is a mutant noticed, too.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

LOOK, SORT = "MUTANTS_LOOK", "MUTANTS_SORT"
"""Where a look is written; where the chosen tests and seconds of grace are read."""
WORTH_S = 60.0
"""Processor time, as a look took it, of the tests that one mutant is shown to."""
READS_ALL = "tests/contract/test_defaults.py"
"""Reads what every module states, and calls no function of it."""
STARTS_S = 2.0
"""A test that starts a process of its own takes at least this long."""


def name_function(path: Path, line: int) -> str:
    """The innermost function around *line* of *path*, named as a look names it."""
    names: list[str] = []
    body: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    while body:
        around = next(
            (
                node
                for node in body
                if isinstance(node, ast.FunctionDef | ast.ClassDef)
                and node.lineno <= line <= (node.end_lineno or node.lineno)
            ),
            None,
        )
        if around is None:
            break
        names += [around.name] if isinstance(around, ast.ClassDef) else [around.name, "<locals>"]
        body = around.body
    is_function = bool(names) and names[-1] == "<locals>"
    return f"{path.as_posix()}:{'.'.join(names[:-1]) if is_function else ''}"


def _spent_s() -> float:
    """Processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


class Look:
    """Notes what each test calls; calls only, since every line would take too long."""

    def __init__(self, target: Path) -> None:
        self._target, self._root = target, f"{Path.cwd()}{os.sep}"
        self._seen: dict[str, tuple[float, list[str]]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Follow the calls of a test with its fixtures."""
        called: set[Any] = set()

        def trace(frame: FrameType, what: str, about: object) -> None:
            called.add(frame.f_code)

        started_s = _spent_s()
        sys.settrace(trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            places = {
                f"{code.co_filename.removeprefix(self._root)}:{code.co_qualname}"
                for code in called
                if code.co_filename.startswith(self._root)
            }
            self._seen[item.nodeid] = (_spent_s() - started_s, sorted(places))

    def pytest_sessionfinish(self) -> None:
        """Write what was seen."""
        self._target.write_text(json.dumps(self._seen))


def choose_tests(
    look: Path, function: str, folder: str, *, is_compiled: bool = False
) -> dict[str, float]:
    """Tests that reach *function* with their seconds, the quickest first, as many as are worth it.

    What survives a minute of them counts as a survivor. A line outside functions is reached by
    tests that reach its module. A function that no test is seen to reach may be compiled, or run
    in a process that tests of its *folder* start.
    """
    seen = json.loads(look.read_text())
    is_module = function.endswith(":")
    reaching = sorted(
        (took_s, test)
        for test, (took_s, places) in seen.items()
        if function in places or (is_module and any(place.startswith(function) for place in places))
    ) or sorted(
        (took_s, test)
        for test, (took_s, _) in seen.items()
        if test.startswith(folder) and (is_compiled or took_s >= STARTS_S)
    )
    reaching += [(took_s, test) for test, (took_s, _) in seen.items() if test.startswith(READS_ALL)]
    chosen: dict[str, float] = {}
    spent_s = 0.0
    for took_s, test in sorted(set(reaching)):
        spent_s += took_s
        if chosen and spent_s > WORTH_S:
            break
        chosen[test] = took_s
    return chosen


class Sort:
    """Runs the *chosen* tests in their order, and ends what does not end."""

    def __init__(self, chosen: dict[str, float], grace_s: float) -> None:
        self._times_s = chosen
        self._places = {test: place for place, test in enumerate(chosen)}
        self._grace_s = grace_s

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Only the chosen tests; all, where none was."""
        if self._places:
            items[:] = [item for item in items if item.nodeid in self._places]
            items.sort(key=lambda item: self._places[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Nobody catches this signal, so it also ends a compiled loop."""
        limit_s = self._grace_s + 10 * self._times_s.get(item.nodeid, 0.0)
        signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def pytest_configure(config: pytest.Config) -> None:
    """Look or sort, as the surroundings say."""
    if target := os.environ.get(LOOK):
        config.pluginmanager.register(Look(Path(target)))
    elif told := os.environ.get(SORT):
        chosen, grace_s = json.loads(Path(told).read_text())
        config.pluginmanager.register(Sort(chosen, grace_s))
