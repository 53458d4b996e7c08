"""Requests: which script runs on which virtual GPUs, checked before anything runs."""

from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from perfmodel.base.errors import EmulationError
from perfmodel.emulation.orders import DeviceFacts
from topologies import Device, load_device

TORCH_VERSION = "2.13.0"
"""The one version whose tables of virtual functions are known."""
DEFAULT_WARMUP = 2
DEFAULT_GPUS_PER_HOST = 8
MOST_GPUS_PER_HOST = 64


@dataclass(frozen=True, slots=True)
class Emulation:
    """A script with its words, and how many ranks run it on which device.

    *warmup* optimizer steps are left out, *iterations* steady ones are compared. With
    *runs_on* the script is not stopped behind them. *all_ranks* runs every rank instead of
    a few that prove the others equal. With *is_plain* the script runs without the
    environment of torchrun. Hosts have *ranks_per_host* GPUs; left out, eight, or as many as
    there are ranks. A job that is there is replaced only where *is_overwriting*.
    """

    words: tuple[str, ...]
    ranks: int
    device: str
    ranks_per_host: int | None = None
    warmup: int = DEFAULT_WARMUP
    iterations: int = 1
    all_ranks: bool = False
    runs_on: bool = False
    is_plain: bool = False
    timeout_s: float | None = None
    is_overwriting: bool = False

    def __post_init__(self) -> None:
        for what, value, least in (
            ("--ranks", self.ranks, 1),
            ("--ranks-per-host", self.host_size, 1),
            ("--warmup", self.warmup, 0),
            ("--iterations", self.iterations, 1),
        ):
            if value < least:
                raise EmulationError(f"{what}: must be at least {least}, got {value}.")
        if self.is_plain and self.ranks > 1:
            raise EmulationError(
                f"--plain: a script without the environment of torchrun is one rank, got --ranks "
                f"{self.ranks}. Leave --plain out."
            )
        if self.host_size > MOST_GPUS_PER_HOST:
            raise EmulationError(
                f"--ranks-per-host: must be at most {MOST_GPUS_PER_HOST}, got {self.host_size}."
            )
        _check_words(self.words)

    @property
    def host_size(self) -> int:
        """The GPUs of a host."""
        if self.ranks_per_host is None:
            return min(max(self.ranks, 1), DEFAULT_GPUS_PER_HOST)
        return self.ranks_per_host

    @property
    def script(self) -> str:
        """What runs, in a word."""
        return self.words[1] if self.words[0] == "-m" else self.words[0]


def check_platform() -> None:
    """Refuse a machine or a build of torch on which the device cannot be made."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise EmulationError(
            f"emulation: needs Linux on x86-64, this is {sys.platform} on {platform.machine()}. "
            "Emulate there and predict from the job here."
        )
    try:
        installed = version("torch")
    except PackageNotFoundError:
        raise EmulationError(
            f"emulation: needs torch {TORCH_VERSION}, which is not installed. "
            "Run `pip install perfmodel[emulate]`."
        ) from None
    number, _, build = installed.partition("+")
    if number != TORCH_VERSION:
        raise EmulationError(
            f"emulation: needs torch {TORCH_VERSION}, and {installed} is installed. The virtual "
            "device replaces internals of that version; run `pip install perfmodel[emulate]`."
        )
    if build.startswith(("cu", "rocm", "xpu")):
        raise EmulationError(
            f"emulation: needs the CPU build of torch, and {installed} is built for GPUs. Run "
            f"`pip install torch=={TORCH_VERSION} --index-url https://download.pytorch.org/whl/cpu`."
        )


def load_gpu(name: str) -> Device:
    """The device called *name*, which must be one that CUDA runs on."""
    device = load_device(name)
    if device.vendor != "nvidia":
        raise EmulationError(
            f"--device {name}: must be a GPU that runs CUDA, and this is {device.description}."
        )
    return device


def device_facts(device: Device) -> DeviceFacts:
    """What scripts are told about *device*."""
    major, _, minor = device.compute_capability.partition(".")
    cores = device.multiprocessors
    return DeviceFacts(
        name=device.description,
        memory_bytes=device.memory_bytes,
        capability=(int(major), int(minor or 0)),
        multiprocessors=cores.count,
        max_threads=cores.max_threads,
        shared_memory_bytes=cores.shared_memory_bytes,
        l2_bytes=device.l2_bytes,
    )


def describe_commit(script: str) -> str:
    """The commit of the repository that *script* lies in, or nothing."""
    folder = Path(script).absolute().parent
    if not folder.is_dir():
        return ""
    found = subprocess.run(  # noqa: S603  fixed words and a folder
        ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"],  # noqa: S607  git of the user
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() if found.returncode == 0 else ""


def _check_words(words: tuple[str, ...]) -> None:
    if not words:
        raise EmulationError("emulation: no script is given. Write it behind --, with its words.")
    if words[0] == "-m":
        if len(words) < 2:
            raise EmulationError("emulation: -m needs the name of a module.")
    elif words[0].startswith("-"):
        raise EmulationError(
            f"emulation: a script or -m MODULE must follow --, got {words[0]}. Options of "
            "perfmodel stand before --."
        )
    elif not Path(words[0]).is_file():
        raise EmulationError(f"{words[0]}: no such script.")
