"""Packages: Python modules that only exist, or only work, with a GPU.

A finder answers their import before Python's own finders, when the script asks for them.
torchvision from PyPI is built for CUDA: its native library does not load with the CPU build, and
its Python part then fails at the operators that it describes; those are declared here.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
from torch.utils._triton import has_triton_package

from perfmodel.emulation.device import attention_packages, triton_stand_in
from perfmodel.emulation.device.gpu import VirtualGpu
from perfmodel.emulation.device.nvml import make_pynvml
from perfmodel.emulation.device.triton_stand_in import make_module
from perfmodel.emulation.device.user_kernels import install_triton

_DESCRIBED = tuple(
    f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms")
)
_AUTOTUNER = "triton.runtime.autotuner"

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

    def __init__(self, gpu: VirtualGpu) -> None:
        # Asked once, while the answer is torch's own: a stand-in must not make it compile.
        self._has_triton = has_triton_package()
        self._made: dict[str, Maker] = {
            "pynvml": partial(make_pynvml, gpu),
            **{
                name: partial(attention_packages.make_module, name)
                for name in attention_packages.MODULES
            },
        }
        self._changed: dict[str, Change] = {}
        loaded = sys.modules.get(_AUTOTUNER)
        if loaded is not None:
            record_triton(gpu, loaded)
        elif self._has_triton:
            self._changed[_AUTOTUNER] = partial(record_triton, gpu)
        else:
            self._made |= {name: partial(make_module, name) for name in triton_stand_in.MODULES}
        self._prepared: dict[str, Callable[[], None]] = {
            "torchvision": prepare_torchvision,
            "triton": partial(self._prepare_triton, gpu),
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module of ours called *fullname*, or one that is changed when it is loaded."""
        del target
        if fullname.partition(".")[0] == "triton" and not self._has_triton and _asks_torch():
            # Its compiler must not take the stand-in for Triton.
            return None
        prepare = self._prepared.pop(fullname, None)
        if prepare is not None:
            prepare()
        make, change = self._made.get(fullname), self._changed.get(fullname)
        if make is not None:
            is_package = any(name.startswith(f"{fullname}.") for name in self._made)
            return ModuleSpec(fullname, _MadeModule(make), is_package=is_package)
        found = PathFinder.find_spec(fullname, path) if change is not None else None
        if found is not None and found.loader is not None and change is not None:
            found.loader = _ChangedModule(found.loader, change)
        return found

    def _prepare_triton(self, gpu: VirtualGpu) -> None:
        if self._has_triton:
            return
        # Modules of torch that look for Triton when they are loaded must not find the stand-in.
        importlib.import_module("torch._inductor.runtime.triton_compat")
        install_triton(gpu, triton_stand_in, triton_stand_in)


def record_triton(gpu: VirtualGpu, autotuner: ModuleType) -> None:
    """Record what the real Triton launches, and answer what it asks its driver."""
    install_triton(gpu, importlib.import_module("triton.runtime.jit"), autotuner)
    backends = importlib.import_module("triton.backends.compiler")
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
    importlib.import_module("triton.runtime.driver").driver.set_active(active)


def _asks_torch() -> bool:
    """Whether the module that is importing now is one of torch."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "torch"


_libraries: list[torch.library.Library] = []


def prepare_torchvision() -> None:
    """Declare the operators of torchvision where its native library does not load."""
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    for library in Path(spec.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(str(library))
        except OSError:
            own = torch.library.Library("torchvision", "DEF")
            for schema in _DESCRIBED:
                own.define(schema)
            _libraries.append(own)
        return
