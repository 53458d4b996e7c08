"""Packages: Python modules that only exist, or only work, with a GPU.

A finder answers their import before Python's own finders, when the script asks for them, or
changes what was imported.
"""

from __future__ import annotations

import collections.abc
import importlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import torch

from perfmodel.extensions.emulation.driver import attention_packages
from perfmodel.extensions.emulation.driver.attention_packages import DISTRIBUTIONS, InstalledPackage
from perfmodel.extensions.emulation.driver.built_extensions import install_extensions
from perfmodel.extensions.emulation.driver.gpu import Gpu
from perfmodel.extensions.emulation.driver.nvml import make_pynvml
from perfmodel.extensions.emulation.driver.user_kernels import install_triton

_WITHOUT_SIX = (2,)
"""The first release of torch without `torch._six`, which packages of its time import."""
_BUILDING = "torch.utils.cpp_extension"

Maker = Callable[[], ModuleType]
"""Makes a module of ours."""
Change = Callable[[ModuleType], None]
"""Changes a module that was loaded."""


class _MadeModule(Loader):
    """Loads a module that a function makes."""

    def __init__(self, make: Maker) -> None:
        self._make = make

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make it."""
        del spec
        return self._make()

    def exec_module(self, module: ModuleType) -> None:
        """It is complete."""


class _ChangedModule(Loader):
    """Loads a module as *loader* does, and then changes it."""

    def __init__(self, loader: Loader, change: Change) -> None:
        self._loader = loader
        self._change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make it."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run and change it; afterwards only the first loader is known."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._change(module)


class PackageFinder(MetaPathFinder):
    """Answers the imports of a script for one device."""

    def __init__(self, gpu: Gpu) -> None:
        self._made: dict[str, Maker] = {
            "pynvml": partial(make_pynvml, gpu),
            **{
                name: partial(attention_packages.make_module, gpu, name)
                for name in attention_packages.MODULES
            },
        }
        if gpu.release < _WITHOUT_SIX:
            self._made["torch._six"] = _make_six
        self._changed: dict[str, Change] = {
            _BUILDING: partial(install_extensions, gpu),
            "triton": lambda _: record_triton(gpu),
        }
        for name in self._changed.keys() & sys.modules.keys():
            self._changed.pop(name)(sys.modules[name])

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module of ours called *fullname*, or one that is changed when it is loaded."""
        del target
        make, change = self._made.get(fullname), self._changed.get(fullname)
        if make is not None:
            is_package = any(name.startswith(f"{fullname}.") for name in self._made)
            return ModuleSpec(fullname, _MadeModule(make), is_package=is_package)
        found = PathFinder.find_spec(fullname, path) if change is not None else None
        if found is not None and found.loader is not None and change is not None:
            found.loader = _ChangedModule(found.loader, change)
        return found

    def find_distributions(self, context: Any) -> Iterator[InstalledPackage]:
        """What `importlib.metadata` finds of the packages that are answered."""
        wanted = (context.name or "").lower().replace("-", "_")
        return (InstalledPackage(name) for name in DISTRIBUTIONS if wanted in ("", name))


def record_triton(gpu: Gpu) -> None:
    """Record what Triton launches, and answer what it asks its driver."""
    jit, autotuner, backends, driver = (
        importlib.import_module(f"triton.{name}")
        for name in ("runtime.jit", "runtime.autotuner", "backends.compiler", "runtime.driver")
    )
    install_triton(gpu, jit, autotuner)
    major, minor = gpu.model.capability
    properties = {
        "multiprocessor_count": gpu.model.multiprocessors,
        "max_shared_mem": gpu.model.shared_memory_bytes - 1024,
        "warpSize": 32,
        "max_num_regs": 65_536,
    }
    active = SimpleNamespace(
        get_current_target=lambda: backends.GPUTarget("cuda", 10 * major + minor, 32),
        get_current_device=lambda: gpu.recorder.state().device,
        get_current_stream=lambda _=None: gpu.recorder.state().stream.value,
        set_current_device=lambda _: None,
        get_active_torch_device=lambda: torch.device("cuda", gpu.recorder.state().device),
        get_device_interface=lambda: torch.cuda,
        # A configuration is chosen without being timed.
        get_benchmarker=lambda: lambda *_, **__: 1.0,
        utils=SimpleNamespace(get_device_properties=lambda _: properties),
    )
    driver.driver.set_active(active)


def _make_six() -> ModuleType:
    """Names of Python 2 and 3 alike."""
    made: Any = ModuleType("torch._six")
    made.container_abcs, made.string_classes, made.int_classes = collections.abc, (str, bytes), int
    made.inf, made.nan = math.inf, math.nan
    return cast("ModuleType", made)
