"""Stopwatches: how long a call takes on a CPU or a CUDA device, undisturbed by neighbours.

Time that our threads waited for a core is subtracted, because other processes used it; the
subtracted share is reported. A calling thread runs, waits for a core, or sleeps while helpers
(those of gloo) work for it; of its sleep, the longest wait of a helper is subtracted. Where the
system does not report waits (not Linux), sleep counts in full.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SAMPLE_NS = 4_000_000
"""A sample holds as many calls as take this long, so that the cost of the clock vanishes."""
MOST_CALLS = 200
LEAST_NS = 1_000.0
"""No call of torch takes less; a shorter time is noise of the subtraction."""
_TASKS = Path("/proc/self/task")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A summary of the samples of one call.

    *duration_ns* is the median of the calm half; *spread_ratio* the distance of its 10th and 90th
    percentile over it; *lost_ratio* the share of wall time in which others had the core.
    *wall_ns* is the median of all samples with nothing subtracted.
    """

    duration_ns: float
    wall_ns: float
    spread_ratio: float
    lost_ratio: float


@dataclass(frozen=True, slots=True)
class Sample:
    """Some calls: how long the caller ran, slept, and how long a core was waited for.

    *helper_waited_ns* is the longest wait among the other threads of the process.
    """

    wall_ns: float
    ran_ns: float
    waited_ns: float
    helper_waited_ns: float

    @property
    def slept_ns(self) -> float:
        """How long the caller slept, waiting for helpers or other ranks."""
        return max(self.wall_ns - self.ran_ns - self.waited_ns, 0.0)

    @property
    def quiet_ns(self) -> float:
        """The time on a machine without other load."""
        # The two clocks are not read at the same instant, so a little more may have run.
        quiet_ns = self.ran_ns + max(self.slept_ns - self.helper_waited_ns, 0.0)
        return min(quiet_ns, self.wall_ns)


Stopwatch = Callable[[Callable[[], object], int], Sample]
"""Runs a call that many times and returns how long all of it took."""


def sample_cpu(call: Callable[[], object], calls: int) -> Sample:
    """The monotonic clock over *calls* calls, and what the scheduler made us wait."""
    before = waits_for_core_ns()
    ran_ns, start_ns = time.thread_time_ns(), time.perf_counter_ns()
    for _ in range(calls):
        call()
    wall_ns = time.perf_counter_ns() - start_ns
    ran_ns = time.thread_time_ns() - ran_ns
    after = waits_for_core_ns()
    waits = {thread: float(after[thread] - before.get(thread, 0)) for thread in after}
    waited_ns = waits.pop(str(threading.get_native_id()), 0.0)
    return Sample(wall_ns, ran_ns, waited_ns, max(waits.values(), default=0.0))


def sample_cuda(call: Callable[[], object], calls: int) -> Sample:
    """CUDA events around *calls* calls: device time, whatever the host does meanwhile."""
    import torch

    # torch does not annotate its events.
    start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return Sample(1e6 * float(start.elapsed_time(end)), 0.0, 0.0, 0.0)


def stopwatch_for(device: str) -> Stopwatch:
    """The stopwatch of *device*, `cpu` or `cuda`."""
    return sample_cuda if device == "cuda" else sample_cpu


def waits_for_core_ns() -> dict[str, int]:
    """How long each thread of this process has been runnable without a core, so far."""
    waits = {}
    for file in _TASKS.glob("*/schedstat"):
        try:
            waits[file.parent.name] = int(file.read_text(encoding="ascii").split()[1])
        except (OSError, IndexError, ValueError):
            continue  # the thread ended meanwhile
    return waits


def time_call(call: Callable[[], object], *, stopwatch: Stopwatch, samples: int) -> Timing:
    """The median time of *call* over *samples* samples, after two calls to warm up."""
    call()
    once_ns = max(stopwatch(call, 1).quiet_ns, 1.0)
    calls = int(np.clip(SAMPLE_NS // once_ns, 1, MOST_CALLS))
    return sum_up([stopwatch(call, calls) for _ in range(samples)], calls=calls)


def join_samples(of_rank: Sequence[Sample]) -> Sample:
    """One sample of a call that all ranks made together.

    The rank that slept least arrived last: the others waited for it. Waits of helpers on the other
    ranks are not subtracted, so on a crowded machine this is still too long.
    """
    return min(of_rank, key=lambda sample: sample.slept_ns)


def sum_up(samples: Sequence[Sample], *, calls: int = 1) -> Timing:
    """The time of one call from *samples* of *calls* calls: the least disturbed half decides."""
    wall_ns = sum(sample.wall_ns for sample in samples)
    lost_ns = sum(sample.wall_ns - sample.quiet_ns for sample in samples)
    calm = sorted(samples, key=lambda sample: 1.0 - sample.quiet_ns / max(sample.wall_ns, 1.0))
    quiet_ns = np.array([sample.quiet_ns for sample in calm[: -(-len(calm) // 2)]]) / calls
    low, middle, high = np.percentile(quiet_ns, [10, 50, 90])
    return Timing(
        duration_ns=max(float(middle), LEAST_NS),
        wall_ns=float(np.median([sample.wall_ns for sample in samples])) / calls,
        spread_ratio=float((high - low) / max(middle, LEAST_NS)),
        lost_ratio=float(lost_ns / max(wall_ns, 1.0)),
    )
