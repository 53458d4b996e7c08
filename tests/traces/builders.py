"""Small traces, written as a profiler would."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def span(category: str, name: str, start: float, duration: float, **more: Any) -> dict[str, Any]:
    """One interval object; *more* goes into `args`, except `tid`."""
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": more.pop("tid", 1),
        "ts": start,
        "dur": duration,
        "args": more,
    }


def launch(correlation: int, start: float, **more: Any) -> dict[str, Any]:
    """A kernel launch call of 5 us."""
    return span("cuda_runtime", "cudaLaunchKernel", start, 5, correlation=correlation, **more)


def kernel(
    correlation: int, start: float, duration: float, stream: int = 7, **more: Any
) -> dict[str, Any]:
    """A kernel on *stream*."""
    name = more.pop("name", "gemm")
    return span(
        "kernel", name, start, duration,
        tid=stream, stream=stream, device=0, correlation=correlation, **more,
    )  # fmt: skip


def write_trace(path: Path, spans: list[Any], **around: Any) -> Path:
    """Write *spans* as a Kineto file; the name decides about compression."""
    text = json.dumps({"schemaVersion": 1, **around, "traceEvents": spans}).encode()
    path.write_bytes(gzip.compress(text) if path.name.endswith(".gz") else text)
    return path
