"""Native device: the code of `native_code`, compiled by llvmlite and registered with torch.

The CUDA entry of c10's guard registry is free in a CPU build, and so is the CUDA dispatch key.
Everything that C++ points to gets an extra reference, because C++ calls it after the interpreter
has ended.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import torch

from perfmodel.extensions.emulation.device.base import keep_for_ever
from perfmodel.extensions.emulation.device.native_code import (
    CODE,
    GUARD_SLOTS,
    HOOK_SLOTS,
    LOG_ENTRIES,
    LOG_FIELDS,
    MOST_DEVICES,
    RING_ENTRIES,
    TORCH_HOOKS,
)

_CUDA_ENTRY = 1
_GUARDS = 22
_HOOKS = 64
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_GET_HOOKS = "_ZN2at6detail12getCUDAHooksEv"


class ThreadState:
    """The current device and stream of one thread, shared with native code."""

    __slots__ = ("_packed_device", "stream")

    def __init__(self, address: int) -> None:
        self._packed_device = ctypes.c_int64.from_address(address + 8)
        self.stream = ctypes.c_int64.from_address(address + 16)

    @property
    def device(self) -> int:
        """The number of the current device."""
        return self._packed_device.value >> 8

    def set_device(self, index: int) -> None:
        """Make *index* the current device."""
        self._packed_device.value = _CUDA_ENTRY | index << 8


class NativeDevice:
    """Addresses of the compiled code and views of its variables."""

    def __init__(self, device_count: int) -> None:
        self._engine = _compile(CODE)
        self._variable("devices", ctypes.c_int8).value = device_count
        self.log_count = self._variable("log_count", ctypes.c_int64)
        self.log = self._variable("log", ctypes.c_int64 * LOG_FIELDS * LOG_ENTRIES)
        self.freed_count = self._variable("freed_count", ctypes.c_int64)
        self.freed = self._variable("freed", ctypes.c_int64 * RING_ENTRIES)
        self.freed_bytes = self._variable("freed_bytes", ctypes.c_int64 * MOST_DEVICES)
        self.delete_tensor = self.function("delete_tensor")
        self._find_state = ctypes.CFUNCTYPE(ctypes.c_void_p)(self.function("state"))

    def install(self) -> None:
        """Register the guard and replace the hooks."""
        self._install_guard()
        self._install_hooks()

    def function(self, name: str) -> int:
        """The address of a compiled function."""
        return int(self._engine.get_function_address(name))

    def thread_state(self) -> ThreadState:
        """The state of the calling thread."""
        return ThreadState(self._find_state())

    def _variable(self, name: str, kind: Any) -> Any:
        return kind.from_address(self._engine.get_global_value_address(name))

    def _install_guard(self) -> None:
        table = (ctypes.c_void_p * len(GUARD_SLOTS))(*map(self.function, GUARD_SLOTS))
        guard = (ctypes.c_void_p * 4)(ctypes.addressof(table))
        keep_for_ever(table, guard)
        registry = (ctypes.c_void_p * _GUARDS).in_dll(_library("libc10.so"), _REGISTRY)
        registry[_CUDA_ENTRY] = ctypes.addressof(guard)

    def _install_hooks(self) -> None:
        get_hooks = getattr(_library("libtorch_cpu.so"), _GET_HOOKS)
        get_hooks.restype = ctypes.c_void_p
        hooks = get_hooks()
        # Two words precede the functions of a virtual table: offset and type.
        first = ctypes.c_void_p.from_address(hooks).value
        assert first is not None
        old = (ctypes.c_void_p * (_HOOKS + 2)).from_address(first - 16)
        table = (ctypes.c_void_p * (_HOOKS + 2))(*old)
        for slot, name in HOOK_SLOTS.items():
            table[slot + 2] = self.function(name)
        for slot, (library, name) in TORCH_HOOKS.items():
            function = getattr(_library(library), name)
            table[slot + 2] = ctypes.cast(function, ctypes.c_void_p).value
        keep_for_ever(table)
        ctypes.c_void_p.from_address(hooks).value = ctypes.addressof(table) + 16


def _library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))


def _compile(code: str) -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    threads = ctypes.CDLL(None).pthread_self
    llvm.add_symbol("pthread_self", ctypes.cast(threads, ctypes.c_void_p).value)
    module = llvm.parse_assembly(code)
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=1)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    keep_for_ever(engine, module, machine)
    return engine
