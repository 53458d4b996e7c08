"""Running the script: as `python script.py words` would, in this process, as one rank."""

from __future__ import annotations

import faulthandler
import os
import runpy
import sys
import threading
import types
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
import torch.utils.data.dataloader as loading

from perfmodel.extensions.emulation.compiler.regions import Compiler
from perfmodel.extensions.emulation.driver.attention import choose_as
from perfmodel.extensions.emulation.driver.descriptions import DTYPE_WORDS, line_of, script_line
from perfmodel.extensions.emulation.driver.flex import install_masks
from perfmodel.extensions.emulation.driver.gpu import Gpu
from perfmodel.extensions.emulation.driver.graphs import watch_graphs
from perfmodel.extensions.emulation.driver.groups import Groups
from perfmodel.extensions.emulation.driver.nvml import install_nvidia_smi
from perfmodel.extensions.emulation.driver.operators import Operators
from perfmodel.extensions.emulation.driver.packages import PackageFinder
from perfmodel.extensions.emulation.driver.recorder import Recorder, ScriptStop
from perfmodel.extensions.emulation.driver.steps import StepWatch
from perfmodel.extensions.emulation.driver.user_kernels import install_nvrtc
from perfmodel.extensions.emulation.driver.values import KnownValues
from perfmodel.extensions.emulation.rank_record import CallType, RankRecord, to_bytes
from perfmodel.extensions.emulation.workers import (
    FAULT,
    NEEDS_ALL_RANKS,
    WorkerOrder,
)

_QUIET = {"TORCH_NCCL_ENABLE_MONITORING": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
"""Threads of torch that watch a GPU which cannot hang."""
_MASTER_PORT = "29500"
_OWN_PACKAGES = frozenset({"collectives", "embeddings", "topologies", "traces"})


class RankRun:
    """One rank of *order* on the libraries of *driver*, from its environment to its record."""

    def __init__(self, driver: Any, order: WorkerOrder, rank: int) -> None:
        self._driver = driver
        recorder = self._recorder = Recorder(driver)
        self._order = order
        self._request = order.request
        self._folder = Path(order.folder)
        self._rank = rank
        self._was_stopped = False
        self._ending = threading.Lock()
        self._steps = StepWatch(recorder, order.request)
        DTYPE_WORDS.update(order.formats)
        self._groups = Groups(driver, recorder, order, rank)
        recorder.on_collective = self._groups.add
        driver.exchange(order.folder.encode())
        release = order.request.torch_release or torch.__version__
        facts = order.device, order.request.host_size, release
        self._gpu = Gpu(recorder, KnownValues(), *facts)
        self._operators = Operators(self._gpu, self._groups)
        self._compiler = Compiler(self._gpu, Path(order.code))

    def install(self) -> None:
        """Watch operators, groups, graphs and compiled regions."""
        os.environ.update(_QUIET)
        self._operators.install()
        self._groups.install()
        self._compiler.install()
        watch_graphs(self._recorder)
        cuda: Any = torch.cuda
        cuda._lazy_call(partial(choose_as, self._gpu))
        install_nvrtc(self._gpu)
        install_masks(self._gpu)
        install_nvidia_smi(self._gpu.model, self._gpu.count, self._folder / f"bin_{self._rank}")
        sys.meta_path.insert(0, PackageFinder(self._gpu))

    @property
    def has_guessed(self) -> bool:
        """Whether this rank may have failed for want of others."""
        return len(self._order.ranks) < self._request.ranks > 1

    def observed(self) -> dict[str, Any]:
        """What torch's own allocator and the driver counted."""
        missing = self._driver.missing.value.decode().split()
        if missing:
            self._recorder.notes[
                "Functions of CUDA without a body were called and did nothing: "
                f"{', '.join(sorted(missing)):.400}."
            ] = None
        devices = range(torch.cuda.device_count())
        return {
            "groups": tuple(self._groups.records.values()),
            "peak_memory_bytes": max(map(torch.cuda.max_memory_allocated, devices)),
            "reserved_memory_bytes": max(map(torch.cuda.max_memory_reserved, devices)),
            "peak_place": self._operators.peak_place,
            "compiled_regions": self._compiler.compiled_count,
            "fallbacks": self._compiler.fallbacks,
            "compile_cpu_s": self._compiler.cpu_s,
            "pieces": tuple(self._operators.pieces),
        }

    def run(self) -> int:
        """Run the script and write the record; its exit code."""
        self._set_environment()
        self._install_spawn()
        self._install_loading()
        os.register_at_fork(after_in_child=lambda: setattr(self._recorder, "is_forked", True))
        self.install()
        self._watch_time()
        self._steps.install()
        self._recorder.on_stop = self._end_process
        for name in list(sys.modules):
            # The script may have modules with the names of our packages.
            if name.partition(".")[0] in _OWN_PACKAGES:
                del sys.modules[name]
        code = self._run_script()
        # Not released: a thread that is stopped now must not end the process.
        self._ending.acquire()
        self._write_record()
        return code

    def _end_process(self) -> None:
        """End the script from one of its own threads, unless its main thread is doing so."""
        if self._ending.acquire(blocking=False):
            self._was_stopped = True
            self._write_record()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def _write_record(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        (self._folder / f"rank_{self._rank}.json").write_bytes(to_bytes(self._record()))

    def _set_environment(self) -> None:
        ranks, local_size = self._request.ranks, self._request.local_size
        values = {
            "RANK": self._rank,
            "LOCAL_RANK": self._rank % local_size,
            "WORLD_SIZE": ranks,
            "LOCAL_WORLD_SIZE": local_size,
            "GROUP_RANK": self._rank // local_size,
            "GROUP_WORLD_SIZE": -(-ranks // local_size),
            "ROLE_RANK": self._rank,
            "ROLE_WORLD_SIZE": ranks,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": _MASTER_PORT,
            "TORCHELASTIC_RUN_ID": "perfmodel",
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
        }
        if not self._request.is_plain:
            os.environ.update({name: str(value) for name, value in values.items()})
        if "OMP_NUM_THREADS" not in os.environ:
            # As torchrun: ranks share the cores of a host.
            torch.set_num_threads(1)

    def _install_spawn(self) -> None:
        """A script that starts its own ranks calls their function once, as this rank."""

        def spawn(
            fn: Callable[..., Any], args: Sequence[Any] = (), nprocs: int = 1, *_: Any, **__: Any
        ) -> None:
            local_size = self._request.local_size
            if nprocs != local_size:
                raise RuntimeError(
                    f"{script_line()}: the script starts {nprocs} processes on this host, but "
                    f"{local_size} are emulated. Give --ranks {nprocs}, or --ranks-per-host."
                )
            fn(self._rank % local_size, *args)

        torch.multiprocessing.spawn = spawn
        torch.multiprocessing.start_processes = spawn

    def _install_loading(self) -> None:
        """Note when a loader hands out a batch."""
        kind: Any = loading._BaseDataLoaderIter
        original, recorder = kind.__next__, self._recorder

        def take(iterator: Any) -> Any:
            batch = original(iterator)
            recorder.synchronize(CallType.LOAD, int(iterator._num_workers > 0))
            return batch

        kind.__next__ = take

    def _watch_time(self) -> None:
        if self._request.timeout_s is not None:
            path = self._folder / f"hang_{self._rank}.txt"
            # Left open: faulthandler writes to it from another thread when the time is over.
            stream = path.open("w", encoding="utf-8")
            self._hang_file = stream
            faulthandler.dump_traceback_later(self._request.timeout_s, exit=True, file=stream)

    def _run_script(self) -> int:
        code = 0
        try:
            _run_words(self._request.words)
        except ScriptStop:
            self._was_stopped = True
        except SystemExit as stop:
            code = _exit_code(stop)
        except KeyboardInterrupt:
            code = 130
        except BaseException as fault:
            # The script's own fault, shown as python does, unless it may have been ours.
            if self.has_guessed:
                why = f"{type(fault).__name__}: {fault!s:.160}"
                said = f"perfmodel: without the other ranks, rank {self._rank} fails ({why})."
                print(said, file=sys.stderr)
                code = NEEDS_ALL_RANKS
            else:
                _show(fault)
                said = f"{line_of(fault)}: {type(fault).__name__}: {fault}"
                (self._folder / f"{FAULT}{self._rank}").write_text(said, encoding="utf-8")
                code = 1
        self._recorder.flush()
        return code

    def _record(self) -> RankRecord:
        recorder, steps = self._recorder, self._steps
        steps.finish()
        observed = self.observed()
        return RankRecord(
            rank=self._rank,
            kinds=tuple(recorder.kinds),
            collectives=tuple(recorder.collectives),
            calls=tuple(recorder.calls[: steps.boundaries[-1] if steps.boundaries else 0]),
            operator_names=tuple(recorder.operator_names),
            boundaries=tuple(steps.boundaries),
            iterations=tuple(steps.iterations),
            first_steady=steps.first_steady,
            main_thread=recorder.main_thread,
            placeholders=dict(recorder.placeholders),
            notes=tuple(recorder.notes),
            was_stopped=self._was_stopped,
            step_count=steps.step_count,
            torch_version=str(torch.__version__),
            step_cpu_s=tuple(steps.step_cpu_s),
            most_aside=steps.most_aside,
            **observed,
        )


def _run_words(words: Sequence[str]) -> None:
    """Run a script, or a module after `-m`, as the program."""
    if words[0] == "-m":
        sys.argv = list(words[1:])
        sys.path[0] = str(Path.cwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    path = Path(words[0]).absolute()
    sys.argv = list(words)
    sys.path[0] = str(path.resolve().parent)
    program = types.ModuleType("__main__")
    program.__dict__.update(__file__=str(path), __builtins__=__builtins__, __spec__=None)
    sys.modules["__main__"] = program
    code = compile(path.read_bytes(), str(path), "exec")
    exec(code, program.__dict__)  # noqa: S102  the user wants to run it


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code
    print(stop.code, file=sys.stderr)
    return 1


def _show(fault: BaseException) -> None:
    """Print the traceback from the script's first line on, as python does."""
    trace = fault.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__):
        trace = trace.tb_next
    # torch.distributed replaces the hook by one that looks at the fault itself.
    sys.excepthook(type(fault), fault.with_traceback(trace), trace)
