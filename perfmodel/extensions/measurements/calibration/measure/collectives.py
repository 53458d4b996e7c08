"""Collectives to measure: spawned ranks run them over gloo (CPU) or NCCL (CUDA).

All ranks leave a barrier together. The time of the rank that arrived last is the time of the
collective, because the others wait for it inside the call.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import astuple
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from collectives.collective import CollectiveKind
from collectives.measurements import CollectiveMeasurement
from perfmodel.base.errors import MeasurementError
from perfmodel.extensions.measurements.calibration.measure.clock import (
    Sample,
    join_samples,
    stopwatch_for,
    sum_up,
)

SIZES_BYTES = tuple(2**power for power in (12, 16, 18, 20, 22, 24))
KINDS = (CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.BROADCAST)
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
WARM_UPS = 2
TIMEOUT = timedelta(seconds=120)


def measure_collectives(device: str, *, ranks: int, samples: int) -> list[CollectiveMeasurement]:
    """Time every kind and size on *ranks* ranks of *device*."""
    if device == "cuda" and torch.cuda.device_count() < ranks:
        raise MeasurementError(
            f"collectives on cuda: {ranks} ranks need as many GPUs, and there are "
            f"{torch.cuda.device_count()}. Measure fewer ranks."
        )
    cases = [(kind, size) for kind in KINDS for size in SIZES_BYTES]
    with tempfile.TemporaryDirectory() as folder:
        spawn_ranks(_run_rank, ranks, (device, ranks, samples, cases, folder))
        times = load_samples(folder, ranks)
    return [
        CollectiveMeasurement(
            row=f"{kind.value} {size}",
            topology=device,
            hosts=1,
            ranks=ranks,
            kind=kind,
            size_bytes=size,
            duration_ns=sum_up([join_samples(row) for row in rows]).duration_ns,
        )
        for (kind, size), rows in zip(cases, times, strict=True)
    ]


def save_samples(folder: str, rank: int, samples: Sequence[Sequence[Sample]]) -> None:
    """Save the *samples* of this rank, cases x samples, for `load_samples`."""
    numbers = [[astuple(sample) for sample in of_case] for of_case in samples]
    np.save(Path(folder) / f"rank{rank}.npy", np.array(numbers))


def load_samples(folder: str, ranks: int) -> list[list[list[Sample]]]:
    """What all ranks saved: cases x samples x ranks."""
    of_rank = [np.load(Path(folder) / f"rank{rank}.npy") for rank in range(ranks)]
    return [
        [[Sample(*numbers) for numbers in of_sample] for of_sample in of_case]
        for of_case in np.stack(of_rank, axis=2).tolist()
    ]


def spawn_ranks(function: Callable[..., None], ranks: int, arguments: tuple[object, ...]) -> None:
    """Run *function* as *ranks* processes, with its rank as the first argument."""
    # The loopback interface: no name of this machine has to resolve.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # torch does not annotate it.
    spawn(function, args=arguments, nprocs=ranks, join=True)  # type: ignore[no-untyped-call]


def join_group(device: str, rank: int, ranks: int, folder: str) -> None:
    """Make this process rank *rank* of *ranks* that rendezvous in *folder*, on one thread."""
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        BACKENDS[device], init_method=rendezvous, rank=rank, world_size=ranks, timeout=TIMEOUT
    )


def _run_rank(
    rank: int,
    device: str,
    ranks: int,
    samples: int,
    cases: Sequence[tuple[CollectiveKind, int]],
    folder: str,
) -> None:
    join_group(device, rank, ranks, folder)
    stopwatch = stopwatch_for(device)
    results = []
    for kind, size in cases:
        call = _call(kind, size, device, ranks)
        taken = []
        for _ in range(samples + WARM_UPS):
            dist.barrier()
            taken.append(stopwatch(call, 1))
        results.append(taken[WARM_UPS:])
    save_samples(folder, rank, results)
    dist.destroy_process_group()


def _call(kind: CollectiveKind, size_bytes: int, device: str, ranks: int) -> Callable[[], object]:
    whole = torch.ones(size_bytes // 4, device=device)
    if kind is CollectiveKind.ALL_GATHER:
        parts: list[Tensor] = list(whole.chunk(ranks))
        own = parts[0].clone()
        return lambda: dist.all_gather(parts, own)
    if kind is CollectiveKind.BROADCAST:
        return lambda: dist.broadcast(whole, 0)
    return lambda: dist.all_reduce(whole)
