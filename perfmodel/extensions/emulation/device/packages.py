"""Packages: Python modules that only exist, or only work, with a GPU.

A finder answers their import before Python's own finders, when the script asks for them.
torchvision from PyPI is built for CUDA: its native library does not load with the CPU build.
The operators that detection needs are declared here.
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
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._triton import has_triton_package

from perfmodel.extensions.emulation.device import attention_packages, triton_stand_in
from perfmodel.extensions.emulation.device.attention_packages import DISTRIBUTIONS, InstalledPackage
from perfmodel.extensions.emulation.device.base import Gpu, keep_for_ever
from perfmodel.extensions.emulation.device.built_extensions import install_extensions
from perfmodel.extensions.emulation.device.nvml import make_pynvml
from perfmodel.extensions.emulation.device.triton_stand_in import make_module
from perfmodel.extensions.emulation.device.user_kernels import install_triton

_VISION_SHAPES = "torchvision._meta_registrations"
"""The module that describes operators, if the native library loaded."""
_ALIGNED = "Tensor rois, float scale, SymInt height, SymInt width"
_IMAGES = "SymInt batch, SymInt channels, SymInt rows, SymInt columns"
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align(Tensor input, {_ALIGNED}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, {_ALIGNED}, {_IMAGES}, int ratio, bool aligned) -> Tensor",
    "_cuda_version() -> int",
)
_SPACE = "torchvision"

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
        # Asked once, while the answer is torch's own: a stand-in must not make it compile.
        self._has_triton = has_triton_package()
        self._made: dict[str, Maker] = {
            "pynvml": partial(make_pynvml, gpu),
            **{
                name: partial(attention_packages.make_module, gpu, name)
                for name in attention_packages.MODULES
            },
        }
        if gpu.release < _WITHOUT_SIX:
            self._made["torch._six"] = _make_six
        self._changed: dict[str, Change] = {_VISION_SHAPES: _has_operators}
        extensions = partial(install_extensions, gpu)
        if _BUILDING in sys.modules:
            extensions(sys.modules[_BUILDING])
        else:
            self._changed[_BUILDING] = extensions
        if self._has_triton:
            record_triton(gpu)
        else:
            self._made |= {name: partial(make_module, name) for name in triton_stand_in.MODULES}
        self._prepared: dict[str, Callable[[], None]] = {
            "torchvision": partial(prepare_torchvision, gpu),
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

    def find_distributions(self, context: Any) -> Iterator[InstalledPackage]:
        """What `importlib.metadata` finds of the packages that are answered."""
        wanted = (context.name or "").lower().replace("-", "_")
        return (InstalledPackage(name) for name in DISTRIBUTIONS if wanted in ("", name))

    def _prepare_triton(self, gpu: Gpu) -> None:
        if self._has_triton:
            return
        # Modules of torch that look for Triton when they are loaded must not find the stand-in.
        importlib.import_module("torch._inductor.runtime.triton_compat")
        install_triton(gpu, triton_stand_in, triton_stand_in)


def record_triton(gpu: Gpu) -> None:
    """Record what the real Triton launches, and answer what it asks its driver."""
    jit, autotuner, descriptors, backends, driver = (
        importlib.import_module(f"triton.{name}")
        for name in (
            "runtime.jit", "runtime.autotuner", "tools.tensor_descriptor", "backends.compiler",
            "runtime.driver",
        )
    )  # fmt: skip
    install_triton(gpu, jit, autotuner)
    # Dynamo follows what the stand-in has here, so that a launch is the same operator with both.
    jit.KernelInterface.__getitem__ = triton_stand_in.JITFunction.__getitem__
    descriptors.TensorDescriptor = triton_stand_in.TensorDescriptor
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


def _asks_torch() -> bool:
    """Whether the module that is importing now is one of torch."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "torch"


def prepare_torchvision(gpu: Gpu) -> None:
    """Load the operators of torchvision, or declare them where its native library does not load."""
    spec = find_spec(_SPACE)
    if spec is None or spec.origin is None:
        return
    for path in Path(spec.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(str(path))
        except OSError:
            _declare()
        own = torch.library.Library(_SPACE, "IMPL")
        own.impl("nms", partial(_keep_all, gpu), "CUDA")
        keep_for_ever(own)
        return


def _has_operators(_: ModuleType) -> None:
    """Let torchvision's Python code call its operators, which are there in either case."""
    extension: Any = sys.modules["torchvision.extension"]
    extension._has_ops = lambda: True


def _keep_all(gpu: Gpu, boxes: Tensor, scores: Tensor, _: float) -> Tensor:
    """No box is suppressed, as none is known; the host waits for their number."""
    gpu.recorder.count_placeholder("boxes that overlap")
    kept = torch.arange(len(boxes), device=boxes.device)
    gpu.launch("nms", inputs=[boxes, scores], outputs=[kept], is_awaited=True)
    return kept


def _declare() -> None:
    """Declare operators with their shapes and gradients."""
    own = torch.library.Library(_SPACE, "DEF")
    keep_for_ever(own)
    for schema in _SCHEMAS:
        own.define(schema)
    own.impl("_cuda_version", lambda: -1, "CompositeExplicitAutograd")
    calls: Any = torch.ops.torchvision

    def fake(name: str, shapes: Any) -> None:
        torch.library.register_fake(f"{_SPACE}::{name}", shapes, lib=own)

    fake("roi_align", lambda x, rois, _, *size: x.new_empty(len(rois), x.shape[1], *size[:2]))
    fake("_roi_align_backward", lambda grad, *more: grad.new_empty(more[4:8]))

    def align_back(context: Any, grad: Tensor) -> tuple[Any, ...]:
        (rois,), (scale, *size, ratio, is_aligned) = context.saved_tensors, context.values
        made = calls._roi_align_backward(
            grad, rois, scale, *size, *context.shape, ratio, is_aligned
        )
        return (made, *[None] * 6)

    def keep_rois(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        del output
        ctx.save_for_backward(inputs[1])
        ctx.shape, ctx.values = inputs[0].shape, inputs[2:]

    register = torch.library.register_autograd
    register(f"{_SPACE}::roi_align", align_back, setup_context=keep_rois, lib=own)
