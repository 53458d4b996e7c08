"""The benchmark job written for SimPy, the way its users would write it.

One process a lane; a launch and the end of a kernel that others wait for are
SimPy events, and an all-reduce starts when its last member has arrived.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

from tests.benchmarks.graphs import (
    ALL_REDUCES,
    KERNELS,
    BenchmarkJob,
    all_reduce_before,
    kernel_before,
)


def simulate(benchmark: BenchmarkJob) -> int:
    """The nanosecond at which the last task ends."""
    clock = simpy.Environment()
    rank_count = len(benchmark.host_ns)
    starts = [clock.event() for _ in range(ALL_REDUCES)]
    missing = [rank_count] * ALL_REDUCES
    for rank in range(rank_count):
        launched = [clock.event() for _ in range(KERNELS)]
        computed = [clock.event() for _ in range(ALL_REDUCES)]
        reduced = [clock.event() for _ in range(ALL_REDUCES)]
        host_ns = benchmark.host_ns[rank].tolist()
        kernel_ns = benchmark.kernel_ns[rank].tolist()
        all_reduce_ns = benchmark.all_reduce_ns[rank].tolist()
        clock.process(_host(clock, host_ns, launched))
        clock.process(_compute(clock, kernel_ns, launched, computed, reduced))
        clock.process(_communicate(clock, all_reduce_ns, computed, reduced, starts, missing))
    clock.run()
    return int(clock.now)


def _host(clock: Any, durations_ns: list[int], launched: list[Any]) -> Generator[Any, Any, None]:
    for duration_ns, launch in zip(durations_ns, launched, strict=True):
        yield clock.timeout(duration_ns)
        launch.succeed()


def _compute(
    clock: Any,
    durations_ns: list[int],
    launched: list[Any],
    computed: list[Any],
    reduced: list[Any],
) -> Generator[Any, Any, None]:
    following = 0
    for kernel, duration_ns in enumerate(durations_ns):
        yield launched[kernel]
        needed = all_reduce_before(kernel)
        if needed is not None:
            yield reduced[needed]
        yield clock.timeout(duration_ns)
        if kernel == kernel_before(following):
            computed[following].succeed()
            following += 1


def _communicate(
    clock: Any,
    durations_ns: list[int],
    computed: list[Any],
    reduced: list[Any],
    starts: list[Any],
    missing: list[int],
) -> Generator[Any, Any, None]:
    for number, duration_ns in enumerate(durations_ns):
        yield computed[number]
        missing[number] -= 1
        if missing[number] == 0:
            starts[number].succeed()
        yield starts[number]
        yield clock.timeout(duration_ns)
        reduced[number].succeed()
