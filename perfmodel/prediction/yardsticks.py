"""Yardsticks: the figures that people compare across models and machines.

Tokens and operations are those of the workload, so a slower way to compute the
same scores lower. Utilisation is against the dense peak of the data sheet.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.base.units import NS_PER_HOUR, NS_PER_S
from perfmodel.costs.gemm_features import rated_format
from perfmodel.workloads.families import family_of
from perfmodel.workloads.fields import Workload
from topologies.device import Device

MILLION = 1e6


@dataclass(frozen=True, slots=True)
class IterationWork:
    """What an iteration gets done over all ranks; tokens and operations where they are counted.

    *peak_flops* is that of one GPU in the precision of the GEMMs.
    """

    samples: int
    tokens: int | None = None
    model_flops: int | None = None
    hardware_flops: int | None = None
    peak_flops: float | None = None


@dataclass(frozen=True, slots=True)
class Yardsticks:
    """The figures of *work* done by *rank_count* GPUs in *iteration_ns*."""

    work: IterationWork
    rank_count: int
    iteration_ns: int

    @property
    def unit(self) -> str:
        """What throughput counts."""
        return "samples" if self.work.tokens is None else "tokens"

    @property
    def per_s(self) -> float:
        """Tokens per second where they are counted, else samples."""
        count = self.work.samples if self.work.tokens is None else self.work.tokens
        return self._per_s(count)

    @property
    def per_s_per_gpu(self) -> float:
        """The same for one GPU."""
        return self.per_s / self.rank_count

    @property
    def samples_per_s(self) -> float:
        """Samples (sequences of a Transformer) per second."""
        return self._per_s(self.work.samples)

    @property
    def model_flops_per_gpu(self) -> float | None:
        """Operations of the model that a GPU does in a second."""
        return self._rate(self.work.model_flops)

    @property
    def model_utilisation(self) -> float | None:
        """MFU: operations of the model as a share of the peak."""
        return self._share(self.work.model_flops)

    @property
    def hardware_utilisation(self) -> float | None:
        """HFU: the same with what is computed twice."""
        return self._share(self.work.hardware_flops)

    def cost_per_million(self, price_per_gpu_hour: float) -> float:
        """Money for a million tokens, or samples where tokens are not counted."""
        hours_per_s = self.rank_count * NS_PER_S / NS_PER_HOUR
        return price_per_gpu_hour * hours_per_s * MILLION / self.per_s

    def _per_s(self, count: float) -> float:
        return count * NS_PER_S / max(self.iteration_ns, 1)

    def _rate(self, flops: int | None) -> float | None:
        return None if flops is None else self._per_s(flops) / self.rank_count

    def _share(self, flops: int | None) -> float | None:
        rate = self._rate(flops)
        return None if rate is None or self.work.peak_flops is None else rate / self.work.peak_flops


def count_work(workload: Workload, *, device: Device) -> IterationWork:
    """What an iteration of *workload*, filled in by its stack, gets done."""
    flops = family_of(workload).count_flops(workload)
    if flops is None:
        return IterationWork(workload.batch)
    rated = rated_format(device, flops.dtype)
    return IterationWork(
        samples=workload.batch,
        tokens=flops.tokens,
        model_flops=flops.model_flops,
        hardware_flops=flops.hardware_flops,
        peak_flops=None if rated is None else device.peak_flops[rated],
    )
