"""Attention kernels: which constants price a kernel on a device, in which direction.

A measured name (`fa3`) is the kernel as its benchmark timed it, including the write to the
key-value cache that serving does. A generation (`flash2`, `flash3`, `cudnn`) is the training
kernel: its best-measured member without that write. What no table measured is derived, with a
wider interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfmodel.base.documents import load_yaml
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import CalibrationError
from perfmodel.base.provenance import Provenance
from perfmodel.costs.attention_physics import BackwardConstants
from perfmodel.costs.calibration_files import Entry, Match, match_entry
from perfmodel.costs.gemm_physics import MachineRates
from perfmodel.graph.ops import Attention
from topologies import Device

GENERATIONS: dict[str, list[str]] = load_yaml(Path(__file__).with_name("attention_kernels.yaml"))
"""The measured kernels of a generation, best measured first."""

FLASH1 = "flash1"
AMPERE_KERNELS = frozenset({FLASH1, "flash2", *GENERATIONS["flash2"]})
AMPERE_FLOPS_PER_CLOCK = 2048.0
"""What a multiprocessor multiplies per clock with the instructions of Ampere.

These kernels issue them on every chip. Later chips reach their datasheet rate only with newer
instructions: on H100 this makes 535 of 989 TFLOP/s, of which flash-attention 2 is published to
reach 370 forward and 322 backward (Shah et al., arXiv 2407.08608).
"""
FLASH1_TIME_RATIO = 2.0
FLASH1_SIGMA = 0.2
"""Flash-attention 2 is published to be about twice as fast as 1 (Dao, arXiv 2307.08691,
abstract). Not measured here: assumed."""

EIGHT_BIT_RATIO = {False: 0.67, True: 0.93}
EIGHT_BIT_SIGMA = 0.12
"""Time of eight bits over that of sixteen, by whether it is the backward pass.

On an architecture without measured kernels of eight bits, the kernel of sixteen is scaled by the
ratio of unmasked cuDNN 9.19 on H200 (five lengths from 2,048 to 32,768: 0.65 to 0.73 and 0.85 to
0.95). The masked backward pass of Hopper does not skip the masked half of long sequences, which is
a fault of that kernel and is not carried over.
"""
OTHER_MASK_SIGMA = 0.06
OTHER_DTYPE_SIGMA = 0.12
OTHER_BACKWARD_SIGMA = 0.08
"""Backward was measured for one kernel; others are assumed to keep its ratio to forward."""
CACHE_LEFT_OUT_SIGMA = 0.06
"""Subtracting the cache write from a serving benchmark: published rates of flash-attention 3 on
H100 are met to 9 % from length 2048 up, and are up to 21 % higher at 512."""
NEARLY_MEASURED_SIGMA = 0.01
OTHER_KERNEL_SIGMA = 0.15
"""A kernel without measurements near the device is priced as another of its generation."""
FAMILY_DISTANCE_SIGMA = 0.05
"""Chips of one architecture and class are nearer to each other than this."""
FAMILY_SIGMA = 0.02
"""Measured cost of borrowing within a family: leaving H100 or H200 out costs 0 to 1.5 %."""


@dataclass(frozen=True, slots=True)
class AttentionKind:
    """Calls that one set of constants prices."""

    kernel: str
    is_causal: bool
    is_backward: bool
    dtype: DType


@dataclass(frozen=True, slots=True)
class KernelRecipe:
    """How a kind of call is priced: from which constants, and what is derived from them."""

    match: Match
    extra_sigma: float
    time_ratio: float
    writes_cache: bool
    takes_correction: bool
    backward: BackwardConstants | None
    uses_ampere_instructions: bool
    dtype: DType
    """The format whose rates and sizes count."""

    @property
    def relative_sigma(self) -> float:
        """The uncertainty that borrowing and substitution add to that of the constants."""
        borrowed = self.match.borrowed_sigma
        if 0.0 < borrowed < FAMILY_DISTANCE_SIGMA:
            borrowed = FAMILY_SIGMA
        left_out = CACHE_LEFT_OUT_SIGMA if self.leaves_cache_out else 0.0
        return math.hypot(borrowed, self.extra_sigma, left_out)

    @property
    def leaves_cache_out(self) -> bool:
        """Whether the benchmark wrote a cache and this kernel does not."""
        return not self.writes_cache and self.match.entry.constants.get("cache_ratio", 0.0) > 0.0

    @property
    def provenance(self) -> Provenance:
        """How times inside the range of the fit are known."""
        if self.time_ratio != 1.0:
            return Provenance.ASSUMED
        return Provenance.INTERPOLATED if self.is_measured else Provenance.EXTRAPOLATED

    @property
    def is_measured(self) -> bool:
        """Whether this kernel was measured on this device."""
        return self.match.is_own and self.extra_sigma < NEARLY_MEASURED_SIGMA

    def machine(self, rates: MachineRates) -> MachineRates:
        """The rates of a device that this kernel can use."""
        if not self.uses_ampere_instructions:
            return rates
        reachable = rates.sm_count * rates.clock_hz * AMPERE_FLOPS_PER_CLOCK
        return replace(rates, peak_flops=min(rates.peak_flops, reachable))

    def describe(self, device: Device) -> str:
        """One line: where the constants are from."""
        entry = self.match.entry
        words = f"{entry.variant} measured on {entry.device}"
        if not self.match.is_own:
            words += f", carried over to {device.name}"
        if self.leaves_cache_out:
            words += " without its cache write"
        if self.time_ratio != 1.0:
            words += f", assumed to be {self.time_ratio:g} times as long"
        if self.backward is not None:
            words += f", backward as {self.backward.backward_forwards:.2f} forwards"
        return words


def variant_of(op: Attention) -> str:
    """The variant that constants for *op* are filed under."""
    suffix = "" if op.dtype in (DType.BF16, DType.FP16) else f"/{op.dtype.value}"
    return f"{op.kernel}/{'causal' if op.is_causal else 'full'}{suffix}"


def find_recipe(entries: Sequence[Entry], device: Device, kind: AttentionKind) -> KernelRecipe:
    """The nearest constants for *kind* on *device*, and what using them costs."""
    if kind.dtype is DType.FP8 and not _is_measured_near(entries, device, kind):
        wide = find_recipe(entries, device, replace(kind, dtype=DType.BF16))
        return replace(
            wide,
            time_ratio=wide.time_ratio * EIGHT_BIT_RATIO[kind.is_backward],
            extra_sigma=wide.extra_sigma + EIGHT_BIT_SIGMA,
            dtype=DType.BF16,
        )
    # Variants that may price the kind, by kernel, then mask, then dtype.
    variants = [
        (f"{name}/{mask}{suffix}", mask_sigma, dtype_sigma + kernel_sigma)
        for name, kernel_sigma in members_of(kind.kernel)
        for mask, mask_sigma in zip(_masks(kind), (0.0, OTHER_MASK_SIGMA), strict=True)
        for suffix, dtype_sigma in _dtypes(kind.dtype)
    ]
    found = [
        (match, mask_sigma, distance_sigma)
        for variant, mask_sigma, distance_sigma in variants
        if (match := match_entry(entries, device, variant)) is not None
    ]
    if not found:
        known = sorted({entry.variant.split("/")[0] for entry in entries})
        raise CalibrationError(
            f"attention kernel {kind.kernel!r}: must be `unfused`, `auto` or one of "
            f"{', '.join([*GENERATIONS, *known])}."
        )
    # The nearest device first, then the best-measured member of a generation, then its mask:
    # the physics knows masks better than it knows chips. Ties go to the first.
    match, mask_sigma, distance_sigma = min(found, key=lambda one: one[0].borrowed_sigma + one[2])
    backward, backward_sigma = _find_backward(entries, device, kind, match)
    is_flash1 = kind.kernel == FLASH1
    return KernelRecipe(
        match=match,
        extra_sigma=mask_sigma
        + distance_sigma
        + backward_sigma
        + (FLASH1_SIGMA if is_flash1 else 0.0),
        time_ratio=FLASH1_TIME_RATIO if is_flash1 else 1.0,
        writes_cache=kind.kernel not in GENERATIONS and not kind.is_backward,
        # A correction is of one mask and one family of chips; the physics extrapolates further.
        takes_correction=mask_sigma == 0.0 and match.borrowed_sigma < FAMILY_DISTANCE_SIGMA,
        backward=backward,
        uses_ampere_instructions=kind.kernel in AMPERE_KERNELS,
        dtype=kind.dtype,
    )


def _is_measured_near(entries: Sequence[Entry], device: Device, kind: AttentionKind) -> bool:
    """Whether the kernel was measured in the format of *kind* on a chip of this architecture."""
    matches = (
        match_entry(entries, device, f"{name}/{mask}/{kind.dtype.value}")
        for name, _ in members_of(kind.kernel)
        for mask in _masks(kind)
    )
    return any(one is not None and one.borrowed_sigma < FAMILY_DISTANCE_SIGMA for one in matches)


def members_of(kernel: str) -> list[tuple[str, float]]:
    """Measured kernels that may price *kernel*, and the uncertainty that each adds."""
    if kernel in GENERATIONS:
        return [(name, 0.0) for name in GENERATIONS[kernel]]
    relatives = next((names for names in GENERATIONS.values() if kernel in names), ())
    return [(kernel, 0.0), *((one, OTHER_KERNEL_SIGMA) for one in relatives if one != kernel)]


def _masks(kind: AttentionKind) -> tuple[str, str]:
    return ("causal", "full") if kind.is_causal else ("full", "causal")


def _dtypes(dtype: DType) -> tuple[tuple[str, float], ...]:
    if dtype in (DType.BF16, DType.FP16):
        return (("", 0.0),)
    return ((f"/{dtype.value}", 0.0), ("", OTHER_DTYPE_SIGMA))


def _find_backward(
    entries: Sequence[Entry], device: Device, kind: AttentionKind, match: Match
) -> tuple[BackwardConstants | None, float]:
    """How backward follows from forward: by rows of the kernel, else of the nearest one."""
    if not kind.is_backward:
        return None, 0.0
    own = backward_constants(match.entry)
    if own is not None:
        return own, 0.0
    measured = [entry for entry in entries if backward_constants(entry) is not None]
    for mask in _masks(kind):
        for suffix, _ in _dtypes(kind.dtype):
            variants = sorted(
                {one.variant for one in measured if one.variant.endswith(f"/{mask}{suffix}")}
            )
            for variant in variants:
                nearest = match_entry(measured, device, variant)
                if nearest is not None:
                    return backward_constants(nearest.entry), OTHER_BACKWARD_SIGMA
    raise CalibrationError(
        f"attention kernel {kind.kernel!r}: no table with backward passes was fitted. "
        "Give `experiments/fitting` one that has them."
    )


def backward_constants(entry: Entry) -> BackwardConstants | None:
    """The constants of backward in *entry*, if its rows have both directions."""
    names = BackwardConstants.__slots__
    if not all(name in entry.constants for name in names):
        return None
    return BackwardConstants(**{name: entry.constants[name] for name in names})
