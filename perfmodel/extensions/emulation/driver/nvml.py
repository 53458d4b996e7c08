"""NVML: what tools and scripts ask about GPUs, answered for virtual ones.

`pynvml` is a module of these answers, and `nvidia-smi` a program on the script's path that prints
them. Loads, temperatures and powers are those of a busy device; no answer depends on them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from perfmodel.extensions.emulation.driver import nvidia_smi
from perfmodel.extensions.emulation.driver.gpu import Gpu
from perfmodel.extensions.emulation.request import DeviceFacts

DRIVER = "570.124.06"
CUDA = "12.8"
"""Versions that scripts see; no answer depends on them."""
UTILISATION = 100
TEMPERATURE_C = 50
_MIB = 2**20


class NVMLError(Exception):
    """As in `pynvml`."""


class NVMLNotSupportedError(NVMLError):
    """As in `pynvml`, where it is called `NVMLError_NotSupported`."""


def make_pynvml(gpu: Gpu) -> ModuleType:
    """The module `pynvml` for *gpu*."""
    module = ModuleType("pynvml", "Answers of a virtual device.")
    module.__dict__.update(_answers(gpu))

    def unknown(name: str) -> Any:
        if name.startswith("NVML_"):
            return 0
        if name.startswith("NVMLError"):
            return NVMLError
        if name.startswith("nvml"):
            return _refuse(name)
        raise AttributeError(f"module 'pynvml' has no attribute {name!r}")

    module.__dict__.update(
        NVMLError=NVMLError,
        NVMLError_NotSupported=NVMLNotSupportedError,
        __getattr__=unknown,
    )
    return module


def _refuse(name: str) -> Callable[..., Any]:
    def ask(*_: Any, **__: Any) -> Any:
        raise NVMLNotSupportedError(f"{name}: a virtual device has no answer.")

    return ask


def _answers(gpu: Gpu) -> dict[str, Callable[..., Any]]:
    model = gpu.model

    def memory_info(handle: int, *_: Any) -> SimpleNamespace:
        used, total = torch.cuda.memory_reserved(handle), model.memory_bytes
        return SimpleNamespace(total=total, used=used, free=total - used)

    def affinity(_: int, words: int) -> list[int]:
        allowed = os.sched_getaffinity(0)
        return [
            sum(1 << bit for bit in range(64) if 64 * word + bit in allowed)
            for word in range(words)
        ]

    fixed: dict[str, Any] = {
        "nvmlInit": None,
        "nvmlInitWithFlags": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetCount": gpu.count,
        "nvmlDeviceGetName": model.name,
        "nvmlDeviceGetTemperature": TEMPERATURE_C,
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=UTILISATION, memory=UTILISATION),
        "nvmlDeviceGetPowerUsage": model.power_w * 1000,
        "nvmlDeviceGetPowerManagementLimit": model.power_w * 1000,
        "nvmlDeviceGetEnforcedPowerLimit": model.power_w * 1000,
        "nvmlDeviceGetClockInfo": model.clock_mhz,
        "nvmlDeviceGetMaxClockInfo": model.clock_mhz,
        "nvmlDeviceGetCudaComputeCapability": model.capability,
        "nvmlDeviceGetComputeRunningProcesses": [],
        "nvmlDeviceGetGraphicsRunningProcesses": [],
        "nvmlSystemGetDriverVersion": DRIVER,
        "nvmlSystemGetCudaDriverVersion": 12080,
    }
    return {name: _always(answer) for name, answer in fixed.items()} | {
        "nvmlDeviceGetHandleByIndex": int,
        "nvmlDeviceGetIndex": int,
        "nvmlDeviceGetUUID": _uuid,
        "nvmlDeviceGetHandleByUUID": lambda uuid: int(str(uuid).rpartition("-")[2].strip("'")),
        "nvmlDeviceGetMemoryInfo": memory_info,
        "nvmlDeviceGetCpuAffinity": affinity,
    }


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


def _uuid(index: int) -> str:
    return f"GPU-virtual-{index}"


def install_nvidia_smi(model: DeviceFacts, count: int, folder: Path) -> None:
    """Put a program `nvidia-smi` into *folder* and that folder first on the path."""
    memory_mib, power = model.memory_bytes // _MIB, [f"{model.power_w:.2f}", "W"]
    facts = {
        "name": model.name,
        "gpu_name": model.name,
        "count": count,
        "driver_version": DRIVER,
        "cuda_version": CUDA,
        "memory.total": [memory_mib, "MiB"],
        "memory.free": [memory_mib, "MiB"],
        "memory.used": [0, "MiB"],
        "utilization.gpu": [UTILISATION, "%"],
        "utilization.memory": [UTILISATION, "%"],
        "temperature.gpu": TEMPERATURE_C,
        "power.draw": power,
        "power.limit": power,
        "clocks.sm": [model.clock_mhz, "MHz"],
        "clocks.max.sm": [model.clock_mhz, "MHz"],
        "compute_cap": ".".join(map(str, model.capability)),
    }
    folder.mkdir(exist_ok=True)
    program = folder / "nvidia-smi"
    answers = Path(nvidia_smi.__file__).read_text(encoding="utf-8")
    program.write_text(
        f"#!{sys.executable} -I\n{answers}\n\nimport sys\n\n"
        f"print(*answer(sys.argv[1:], {facts!r}), sep='\\n')\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
