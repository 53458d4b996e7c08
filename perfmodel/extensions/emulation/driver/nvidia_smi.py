"""What `nvidia-smi` prints for virtual GPUs.

`nvml.py` writes this file, with the facts of the device, as a program on the path of the script.
It imports nothing from perfmodel, so it starts quickly in its own process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def answer(words: Sequence[str], facts: Mapping[str, Any]) -> list[str]:
    """The lines that `nvidia-smi` prints for the arguments *words*."""
    options = dict(word.split("=", 1) for word in words if "=" in word)
    named = words[words.index("-i") + 1] if "-i" in words[:-1] else options.get("--id", "")
    devices = [int(one) for one in named.split(",") if one.isdigit()]
    devices = devices or list(range(facts["count"]))
    if "-L" in words or "--list-gpus" in words:
        return [f"GPU {n}: {facts['name']} (UUID: {_shown('uuid', n, facts)})" for n in devices]
    query = options.get("--query-gpu")
    if query is None:
        is_query = any(word.startswith("--query") for word in words)
        return [] if is_query else _table(devices, facts)
    names = [name.strip() for name in query.split(",")]
    form = options.get("--format", "csv")
    has_units = "nounits" not in form
    rows = [", ".join(_shown(name, n, facts, has_units) for name in names) for n in devices]
    return rows if "noheader" in form else [", ".join(names), *rows]


def _shown(name: str, index: int, facts: Mapping[str, Any], has_units: bool = True) -> str:
    if name == "index":
        return str(index)
    if name in ("uuid", "gpu_uuid"):
        return f"GPU-virtual-{index}"
    value = facts.get(name, "[N/A]")
    if isinstance(value, list):
        number, unit = value
        return f"{number} {unit}" if has_units else str(number)
    return str(value)


def _table(devices: Sequence[int], facts: Mapping[str, Any]) -> list[str]:
    version = f"Driver Version: {facts['driver_version']}   CUDA Version: {facts['cuda_version']}"
    rows = [
        f"| {index:3d}  {facts['name']:<36} | {_shown('power.limit', index, facts)} | "
        f"{_shown('memory.total', index, facts)} |"
        for index in devices
    ]
    return [f"NVIDIA-SMI {facts['driver_version']}   {version}", *rows]
