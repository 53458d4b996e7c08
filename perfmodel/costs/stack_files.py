"""Stack files: reading software stack profiles. All faults of a file are reported at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embeddings.lookup import KERNELS
from perfmodel.base.documents import FaultList
from perfmodel.base.dtypes import DType, parse_dtype
from perfmodel.base.errors import CalibrationError, InputError
from perfmodel.base.units import parse_duration_ns
from perfmodel.costs.gemm_physics import Residency
from perfmodel.costs.stack_chain import find_profile, merge_profile
from perfmodel.costs.stacks import (
    Execution,
    Fusion,
    Habit,
    HostTimes,
    OptimizerKernels,
    Overlap,
    SoftwareStack,
    TableHandling,
    canonical_operator,
)
from perfmodel.graph.ops import HostPart

_HOST_KEYS = {
    "between_operators", "launch", "wait", "launch_latency", "operators", "default",
}  # fmt: skip
_PART_WORDS = {
    "between_operators": HostPart.BETWEEN_OPERATORS,
    "before_launch": HostPart.BEFORE_LAUNCH,
    "after_launch": HostPart.AFTER_LAUNCH,
    "launch": HostPart.LAUNCH,
    "between_launches": HostPart.BETWEEN_LAUNCHES,
    "wait": HostPart.WAIT,
}
_TABLE_KEYS = {"lookup_kernel", "key_time", "updates_all_rows"}
KERNEL_FAMILIES = ("attention", "communication", "copy", "embedding", "gemm", "memory")
"""Families of kernels that a profile may state a time ratio for."""


def load_stack(name_or_path: str | Path) -> SoftwareStack:
    """The stack in a file, or the one of that name that comes with perfmodel."""
    path = find_profile(name_or_path)
    content = merge_profile(path)
    faults = FaultList(str(path))
    stack = _Reader(content, faults).stack()
    faults.check(CalibrationError)
    assert stack is not None
    return stack


class _Reader:
    """Reads one merged profile, noting faults instead of stopping at the first."""

    def __init__(self, content: Mapping[str, Any], faults: FaultList) -> None:
        self._content = content
        self._faults = faults

    def stack(self) -> SoftwareStack | None:
        host = self._host()
        fields = {
            "name": self._text("name"),
            "description": self._text("description"),
            "source": self._text("source"),
            "execution": self._word("execution", Execution),
            "optimizer_kernels": self._word("optimizer_kernels", OptimizerKernels),
            "fusions": frozenset(self._words("fusions", Fusion)),
            "overlaps": frozenset(self._words("overlaps", Overlap)),
            "attention_kernels": self._attention(),
            "matmul_dtypes": self._dtypes(),
            "sustained_slowdown": self._slowdowns(),
            "kernel_time_ratio": self._time_ratios(),
            "residency": self._word("residency", Residency, default="cold"),
            "relative_sigma": self._number("relative_sigma", 0.0),
            "habits": frozenset(self._words("habits", Habit)),
            "tables": self._tables(),
        }
        if self._faults.faults or host is None:
            return None
        return SoftwareStack(host=host, **fields)

    def _text(self, key: str) -> str:
        value = self._content.get(key)
        if not isinstance(value, str) or not value.strip():
            self._faults.add(key, f"must be a text, got {value!r}")
            return ""
        return value

    def _number(self, key: str, default: float) -> float:
        value = self._content.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            self._faults.add(key, f"must be a number of at least 0, got {value!r}")
            return default
        return float(value)

    def _word(self, key: str, kind: Any, default: str | None = None) -> Any:
        value = self._content.get(key, default)
        try:
            return kind(value)
        except ValueError:
            known = ", ".join(member.value for member in kind)
            self._faults.add(key, f"must be one of {known}, got {value!r}")
            return None

    def _words(self, key: str, kind: Any) -> list[Any]:
        values = self._content.get(key, [])
        if not isinstance(values, list):
            self._faults.add(key, f"must be a list, got {values!r}")
            return []
        known = {member.value: member for member in kind}
        for place, value in enumerate(values):
            if value not in known:
                self._faults.add(
                    f"{key}[{place}]", f"must be one of {', '.join(known)}, got {value!r}"
                )
        return [known[value] for value in values if value in known]

    def _mapping(self, key: str) -> dict[str, Any]:
        value = self._content.get(key, {})
        if not isinstance(value, dict):
            self._faults.add(key, f"must be a mapping, got {value!r}")
            return {}
        return value

    def _attention(self) -> Mapping[str, str]:
        kernels = {key: str(value) for key, value in self._mapping("attention_kernels").items()}
        if "default" not in kernels:
            self._faults.add("attention_kernels", "must name a `default` kernel")
        return kernels

    def _dtypes(self) -> Mapping[DType, DType]:
        try:
            pairs = self._mapping("matmul_dtypes").items()
            return {parse_dtype(key): parse_dtype(val) for key, val in pairs}
        except InputError as fault:
            self._faults.add("matmul_dtypes", str(fault))
            return {}

    def _slowdowns(self) -> Mapping[str, float]:
        result = {}
        for key, value in self._mapping("sustained_slowdown").items():
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 1:
                self._faults.add(
                    f"sustained_slowdown.{key}", f"must be a number of at least 1, got {value!r}"
                )
            else:
                result[key] = float(value)
        return result

    def _time_ratios(self) -> Mapping[str, Mapping[str, float]]:
        return {
            family: self._ratios(f"kernel_time_ratio.{family}", value)
            for family, value in self._mapping("kernel_time_ratio").items()
            if self._is_family(family)
        }

    def _is_family(self, family: str) -> bool:
        if family not in KERNEL_FAMILIES:
            known = ", ".join(KERNEL_FAMILIES)
            self._faults.add(f"kernel_time_ratio.{family}", f"unknown family; known: {known}")
        return family in KERNEL_FAMILIES

    def _ratios(self, place: str, value: Any) -> Mapping[str, float]:
        by_architecture = value if isinstance(value, dict) else {"default": value}
        for key, ratio in by_architecture.items():
            if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not ratio > 0:
                self._faults.add(f"{place}.{key}", f"must be a number above 0, got {ratio!r}")
                return {}
        return {key: float(ratio) for key, ratio in by_architecture.items()}

    def _tables(self) -> TableHandling:
        tables = self._mapping("tables")
        kernel, all_rows = tables.get("lookup_kernel", "fbgemm"), tables.get("updates_all_rows")
        for key in sorted(set(tables) - _TABLE_KEYS):
            known = ", ".join(sorted(_TABLE_KEYS))
            self._faults.add(f"tables.{key}", f"unknown key; known: {known}")
        if kernel not in KERNELS:
            self._faults.add(
                "tables.lookup_kernel", f"must be one of {', '.join(KERNELS)}, got {kernel!r}"
            )
        if all_rows not in (None, True, False):
            self._faults.add("tables.updates_all_rows", f"must be true or false, got {all_rows!r}")
        key_ns = self._duration("tables.key_time", tables.get("key_time", "0 ns"))
        return TableHandling(kernel, key_ns, bool(all_rows))

    def _host(self) -> HostTimes | None:
        host = self._mapping("host")
        for key in sorted(set(host) - _HOST_KEYS):
            self._faults.add(f"host.{key}", f"unknown key; known: {', '.join(sorted(_HOST_KEYS))}")
        names = ("between_operators", "launch", "wait", "launch_latency")
        times = {f"{key}_ns": self._duration(f"host.{key}", host.get(key)) for key in names}
        operators = {
            canonical_operator(operator): self._parts(f"host.operators.{operator}", parts)
            for operator, parts in (host.get("operators") or {}).items()
        }
        default = self._parts("host.default", host.get("default"))
        for part in (HostPart.BEFORE_LAUNCH, HostPart.AFTER_LAUNCH, HostPart.BETWEEN_LAUNCHES):
            if part not in default:
                self._faults.add("host.default", f"must state {part.name.lower()}")
        if self._faults.faults:
            return None
        return HostTimes(operators=operators, default=default, **times)

    def _parts(self, place: str, parts: Any) -> Mapping[HostPart, float]:
        if not isinstance(parts, dict):
            self._faults.add(place, f"must be a mapping of parts, got {parts!r}")
            return {}
        result = {}
        for word, value in parts.items():
            if word not in _PART_WORDS:
                self._faults.add(
                    f"{place}.{word}", f"unknown part; known: {', '.join(_PART_WORDS)}"
                )
            else:
                result[_PART_WORDS[word]] = self._duration(f"{place}.{word}", value)
        return result

    def _duration(self, place: str, value: Any) -> float:
        try:
            duration_ns = parse_duration_ns(value)
        except InputError as fault:
            self._faults.add(place, str(fault))
            return 0.0
        if duration_ns < 0:
            self._faults.add(place, f"must not be negative, got {value!r}")
        return duration_ns
