"""Requests: which script runs on which virtual GPUs, checked before anything runs."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from perfmodel.base.errors import EmulationError
from perfmodel.base.options import Option, Overwrite, check_ranges

if TYPE_CHECKING:
    from topologies import Device

DEFAULT_WARMUP = 2
DEFAULT_GPUS_PER_HOST = 8
MOST_GPUS_PER_HOST = 64


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What scripts see of their GPU."""

    name: str
    memory_bytes: int
    capability: tuple[int, int]
    multiprocessors: int
    max_threads: int
    shared_memory_bytes: int
    l2_bytes: int
    clock_mhz: int = 0
    power_w: int = 0


@dataclass(frozen=True, slots=True)
class Emulation:
    """A script with its arguments (*words*), and how many ranks run it on which device.

    *warmup* iterations of *steps_per_iteration* optimizer steps are skipped, *iterations* steady
    ones are compared. With *runs_on* the
    script is not stopped after them. *all_ranks* runs every rank instead of a few that prove the
    others equal. With *is_plain* the script runs without the environment of torchrun. Hosts have
    *ranks_per_host* GPUs: by default eight, or as many as there are ranks. Kernels are chosen as
    *torch_release* does, by default the one that runs. *samples_per_iteration* of all ranks are
    counted from what the script moves to the device, unless they are stated. The script runs in the
    environment of the interpreter *python*. An existing job is replaced only if *is_overwriting*.
    """

    words: Annotated[
        tuple[str, ...],
        Option(is_argument=True, metavar="-- SCRIPT [WORD...]", help="As after `python`."),
    ]
    ranks: Annotated[int, Option(metavar="N", min=1, help="Ranks, one GPU each.")]
    device: Annotated[str, Option(metavar="NAME", help="GPU, e.g. h100_sxm or a100_sxm_80gb.")]
    ranks_per_host: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            max=MOST_GPUS_PER_HOST,
            help="GPUs per host; default: 8, or the number of ranks if smaller.",
        ),
    ] = None
    warmup: Annotated[
        int, Option(metavar="N", min=0, help="Iterations before the first steady one.")
    ] = DEFAULT_WARMUP
    iterations: Annotated[
        int, Option(metavar="N", min=1, help="Steady iterations to compare; one is written.")
    ] = 1
    steps_per_iteration: Annotated[
        int,
        Option(
            metavar="N", min=1, help="Optimizer steps of an iteration, as between two rollouts."
        ),
    ] = 1
    all_ranks: Annotated[
        bool, Option(help="Run every rank, not only a few that prove the others equal.")
    ] = False
    runs_on: Annotated[
        bool, Option(name="--run-on", help="Let the script finish after the last iteration.")
    ] = False
    is_plain: Annotated[
        bool, Option(name="--plain", help="One rank without the environment of torchrun.")
    ] = False
    torch_release: Annotated[
        str | None,
        Option(
            metavar="X.Y.Z",
            help="Choose kernels as this release of torch does; default: the one that runs.",
        ),
    ] = None
    samples_per_iteration: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            help="Samples that an iteration of all ranks trains; default: what is moved to the "
            "device.",
        ),
    ] = None
    timeout_s: Annotated[
        float | None,
        Option(
            name="--timeout", metavar="S", min=0.1, help="Stop a script after this many seconds."
        ),
    ] = None
    python: Annotated[
        str | None,
        Option(
            metavar="PATH",
            help="Run in the environment of this python, on its own CUDA build of torch; default: "
            "the one that `make emulate` sets up.",
        ),
    ] = None
    is_overwriting: Overwrite = False

    def __post_init__(self) -> None:
        check_ranges(self, EmulationError, "emulation")
        if self.is_plain and self.ranks > 1:
            raise EmulationError(
                f"--plain: a script without the environment of torchrun is one rank, got --ranks "
                f"{self.ranks}. Leave --plain out."
            )
        if self.torch_release is not None:
            parse_release(self.torch_release)
        _check_words(self.words)

    @property
    def host_size(self) -> int:
        """The GPUs of a host."""
        if self.ranks_per_host is None:
            return min(max(self.ranks, 1), DEFAULT_GPUS_PER_HOST)
        return self.ranks_per_host

    @property
    def local_size(self) -> int:
        """How many ranks a host has."""
        return min(self.ranks, self.host_size)

    @property
    def script(self) -> str:
        """The script or module that runs."""
        return self.words[1] if self.words[0] == "-m" else self.words[0]


def parse_release(text: str) -> tuple[int, ...]:
    """A release of torch as numbers: `2.6.0.dev20241119+cu124` is 2, 6, 0."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if match is None:
        raise EmulationError(
            f"--torch-release: must begin with two or three numbers, such as 2.5.1, got {text!r}."
        )
    return tuple(int(number or 0) for number in match.groups())


def check_platform() -> None:
    """Refuse a machine that CUDA builds of torch for Linux on x86-64 do not run on."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise EmulationError(
            f"emulation: needs Linux on x86-64, this is {sys.platform} on {platform.machine()}. "
            "Emulate there and predict from the job here."
        )


def load_gpu(name: str) -> Device:
    """The device called *name*, which must be one that CUDA runs on."""
    from topologies import load_device

    device = load_device(name)
    if device.vendor != "nvidia":
        raise EmulationError(
            f"--device {name}: must be a GPU that runs CUDA, and this is {device.description}."
        )
    return device


def device_facts(device: Device) -> DeviceFacts:
    """The properties of *device* that scripts can query."""
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
        clock_mhz=round(device.clock_hz / 1e6),
        power_w=round(device.power_w),
    )


def describe_commit(script: str) -> str:
    """The commit of the repository that contains *script*, or nothing."""
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
        raise EmulationError(
            "emulation: no script is given. Write it after --, with its arguments."
        )
    if words[0] == "-m":
        if len(words) < 2:
            raise EmulationError("emulation: -m needs the name of a module.")
    elif words[0].startswith("-"):
        raise EmulationError(
            f"emulation: a script or -m MODULE must follow --, got {words[0]}. Options of "
            "perfmodel go before --."
        )
    elif not Path(words[0]).is_file():
        raise EmulationError(f"{words[0]}: no such script.")
