"""Stack files: reading software stack profiles. All faults of a file are reported at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from collectives.software import CollectiveAlgorithm
from embeddings.sharders import DEFAULT_SHARDER, HYBRID_SHARDERS, SHARDERS
from embeddings.table import KERNELS
from perfmodel.base.documents import FaultList, find_document, load_yaml
from perfmodel.base.dtypes import DType, parse_dtype
from perfmodel.base.errors import CalibrationError, InputError
from perfmodel.base.reading import quote
from perfmodel.base.units import format_duration, parse_duration_ns, parse_size
from perfmodel.graph.ops import HostPart
from perfmodel.stacks.stack import (
    KERNEL_WORDS,
    PLAIN_GEMM,
    Compiled,
    Evidence,
    Execution,
    Family,
    FrameworkBehaviour,
    Fusion,
    HostTimes,
    Loader,
    OptimizerKernels,
    Overlap,
    Residency,
    SoftwareStack,
    TableHandling,
    canonical_operator,
)
from topologies.device import Architecture

# A profile takes over every key it does not state; host operators are merged one by one.


STACK_FOLDER = Path(__file__).parent / "catalog"

_KEYS = {
    "name", "description", "source", "date", "licence", "hardware", "extends", "execution",
    "optimizer_kernels", "fusions", "overlaps", "attention_kernels", "matmul_dtypes", "loads_long",
    "kernel_time_ratio", "residency", "host", "host_speed_ratio", "habits", "tables", "loader",
    "compiled", "evidence", "family", "stands_for", "collective_algorithm", "kernel_operations",
}  # fmt: skip
_OWN_KEYS = {"host_speed_ratio", "stands_for", "evidence"}
"""Keys that say something of one profile only and are not taken over."""
_MAX_CHAIN = 8
_MOST_NUMBER = 1e9
_MOST_NS = 1e11
_RATIOS = (1e-3, 1e3)
_RATIO_RULE = f"must be a number above 0, from {_RATIOS[0]:g} to {_RATIOS[1]:g}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_ratio(value: Any) -> bool:
    return _is_number(value) and _RATIOS[0] <= value <= _RATIOS[1]


def list_stacks() -> tuple[str, ...]:
    """Names of the software stacks that come with perfmodel."""
    return tuple(sorted(path.stem for path in STACK_FOLDER.glob("*.yaml")))


def find_profile(name_or_path: str | Path) -> Path:
    """The file itself, or the one of that name that comes with perfmodel."""
    return find_document(
        name_or_path, folder=STACK_FOLDER, what="software stack", error_type=CalibrationError
    )


def merge_profile(path: Path, *, depth: int = 0) -> dict[str, Any]:
    """The content of *path* laid over what it extends."""
    content = load_yaml(path, error_type=CalibrationError, must_close=True)
    unknown = sorted(set(content) - _KEYS)
    if unknown:
        raise CalibrationError(
            f"{path}: unknown keys {', '.join(unknown)}. Known keys: {', '.join(sorted(_KEYS))}."
        )
    if "extends" not in content:
        return content
    if depth >= _MAX_CHAIN:
        raise CalibrationError(
            f"{path}: `extends` chain is longer than {_MAX_CHAIN}; is it a loop?"
        )
    base = merge_profile(find_profile(str(content["extends"])), depth=depth + 1)
    return _overlay(base, content, path)


def _overlay(base: dict[str, Any], content: dict[str, Any], path: Path) -> dict[str, Any]:
    ratio = content.get("host_speed_ratio", 1.0)
    if not _is_ratio(ratio):
        raise CalibrationError(f"{path}: host_speed_ratio: {_RATIO_RULE}, got {quote(ratio)}.")
    host = _slowed(_of_mapping(base, "host", path), 1.0 / ratio)
    own = _of_mapping(content, "host", path)
    # An empty table of operators, stated, takes over none: a captured graph has no operators.
    is_cleared = own.get("operators") == {}
    kept_host = {**host, "operators": {}} if is_cleared else host
    merged_host = {**host, **own} | {
        key: {**_of_mapping(kept_host, key, path), **_of_mapping(own, key, path)}
        for key in ("operators", "default")
    }
    kept = {key: value for key, value in base.items() if key not in _OWN_KEYS}
    return {**kept, **content, "host": merged_host}


def _of_mapping(content: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    value = content.get(key, {})
    if not isinstance(value, dict):
        raise CalibrationError(f"{path}: {key}: must be a mapping, got {quote(value)}.")
    return value


def _slowed(times: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """*times* with every duration multiplied by *factor*, still as text with its unit."""
    result: dict[str, Any] = {}
    for key, value in times.items():
        if isinstance(value, dict):
            result[key] = _slowed(value, factor)
        elif isinstance(value, str) and key != "launch_latency":
            result[key] = f"{parse_duration_ns(value) * factor:.6g} ns"
        else:
            result[key] = value
    return result


_HOST_KEYS = {
    "between_operators", "launch", "wait", "launch_latency", "operators", "default", "iteration",
}  # fmt: skip
_PART_WORDS = {
    "between_operators": HostPart.BETWEEN_OPERATORS,
    "before_launch": HostPart.BEFORE_LAUNCH,
    "after_launch": HostPart.AFTER_LAUNCH,
    "launch": HostPart.LAUNCH,
    "between_launches": HostPart.BETWEEN_LAUNCHES,
    "wait": HostPart.WAIT,
}
_TABLE_KEYS = {
    "lookup_kernel", "sorted_kernel", "key_time", "updates_all_rows", "key_dtype", "has_all_keys",
    "key_traffic", "vector_passes", "sharder",
}  # fmt: skip
KERNEL_FAMILIES = (
    "attention", "communication", "copy", "embedding", "gemm", "memory", PLAIN_GEMM,
)  # fmt: skip
"""Families of kernels that a profile may state a time ratio for."""


def load_stack(name_or_path: str | Path) -> SoftwareStack:
    """The stack in a file, or the one of that name that comes with perfmodel."""
    path = find_profile(name_or_path)
    content = merge_profile(path)
    faults = FaultList(str(path))
    stack = _Reader(content, faults).stack()
    faults.check(CalibrationError)
    return stack


class _Reader:
    """Reads one merged profile, noting faults instead of stopping at the first.

    What is read where a fault was noted means nothing, and whoever asked throws it away.
    """

    def __init__(self, content: Mapping[str, Any], faults: FaultList) -> None:
        self._content = content
        self._faults = faults
        self._path = Path(faults.document)

    def stack(self) -> SoftwareStack:
        fields = {
            "host": self._host(),
            "name": self._text("name"),
            "description": self._text("description"),
            "source": self._text("source"),
            "execution": self._word("execution", Execution),
            "optimizer_kernels": self._word("optimizer_kernels", OptimizerKernels),
            "fusions": frozenset(self._words("fusions", Fusion)),
            "overlaps": frozenset(self._words("overlaps", Overlap)),
            "attention_kernels": self._attention(),
            "matmul_dtypes": self._dtypes(),
            "family": self._word("family", Family) if "family" in self._content else None,
            "collective_algorithm": self._word("collective_algorithm", CollectiveAlgorithm)
            if "collective_algorithm" in self._content
            else None,
            "loads_long": self._switch("loads_long", self._content.get("loads_long", False)),
            "kernel_time_ratio": self._time_ratios(),
            "kernel_operations": self._operations(),
            "residency": self._word("residency", Residency, default="cold"),
            "habits": frozenset(self._words("habits", FrameworkBehaviour)),
            "tables": self._tables(),
            "loader": self._loader(),
            "compiled": self._compiled(),
            "evidence": self._evidence(),
        }
        return SoftwareStack(**fields)

    def _text(self, key: str) -> str:
        value = self._content.get(key)
        if not isinstance(value, str) or not value.strip():
            self._faults.add(key, f"must be a text, got {quote(value)}")
            return ""
        return value

    def _number(self, place: str, value: Any, *, least: float = 0.0) -> float:
        if not _is_number(value) or not least <= value <= _MOST_NUMBER:
            rule = f"must be a number from {least:g} to {_MOST_NUMBER:g}"
            self._faults.add(place, f"{rule}, got {quote(value)}")
            return least
        return float(value)

    def _switch(self, place: str, value: Any) -> bool:
        if not isinstance(value, bool):
            self._faults.add(place, f"must be true or false, got {quote(value)}")
        return value is True

    def _word(self, key: str, kind: Any, default: str | None = None) -> Any:
        value = self._content.get(key, default)
        try:
            return kind(value)
        except ValueError:
            known = ", ".join(member.value for member in kind)
            self._faults.add(key, f"must be one of {known}, got {quote(value)}")
            return None

    def _words(self, key: str, kind: Any, values: Any = None) -> list[Any]:
        values = self._content.get(key, []) if values is None else values
        if not isinstance(values, list):
            self._faults.add(key, f"must be a list, got {values!r}")
            return []
        known = {member.value: member for member in kind}
        for place, value in enumerate(values):
            if not isinstance(value, str) or value not in known:
                self._faults.add(
                    f"{key}[{place}]", f"must be one of {', '.join(known)}, got {quote(value)}"
                )
        return [known[value] for value in values if isinstance(value, str) and value in known]

    def _mapping(self, key: str) -> dict[str, Any]:
        value = self._content.get(key, {})
        if not isinstance(value, dict):
            self._faults.add(key, f"must be a mapping, got {quote(value)}")
            return {}
        return value

    def _operations(self) -> Mapping[str, float]:
        found = {}
        for word, value in self._mapping("kernel_operations").items():
            if word.removesuffix("_backward") not in KERNEL_WORDS:
                known = ", ".join(KERNEL_WORDS)
                rule = f"unknown kernel. Take one of {known}, or one with `_backward` behind it"
                self._faults.add(f"kernel_operations.{word}", rule)
            found[word] = self._number(f"kernel_operations.{word}", value)
        return found

    def _attention(self) -> Mapping[str, str]:
        kernels = self._mapping("attention_kernels")
        for key, value in kernels.items():
            self._check_architecture("attention_kernels", key)
            if not isinstance(value, str) or not value.strip():
                self._faults.add(f"attention_kernels.{key}", f"must be a name, got {quote(value)}")
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
            if not _is_ratio(ratio):
                self._faults.add(f"{place}.{key}", f"{_RATIO_RULE}, got {quote(ratio)}")
                return {}
            self._check_architecture(place, key)
        return {key: float(ratio) for key, ratio in by_architecture.items()}

    def _check_architecture(self, place: str, key: str) -> None:
        known = ("default", *(one.value for one in Architecture))
        if key not in known:
            self._faults.add(f"{place}.{key}", f"must be one of {', '.join(known)}")

    def _section(self, key: str, known: set[str]) -> dict[str, Any]:
        section = self._mapping(key)
        for word in sorted(set(section) - known):
            self._faults.add(f"{key}.{word}", f"unknown key; known: {', '.join(sorted(known))}")
        return section

    def _tables(self) -> TableHandling:
        tables = self._section("tables", _TABLE_KEYS)
        kernels = {
            key: self._lookup_kernel(f"tables.{key}", tables.get(key, KERNELS[0]))
            for key in ("lookup_kernel", "sorted_kernel")
        }
        sharder = tables.get("sharder", DEFAULT_SHARDER)
        if sharder not in (*SHARDERS, *HYBRID_SHARDERS):
            known = ", ".join((*SHARDERS, *HYBRID_SHARDERS))
            self._faults.add("tables.sharder", f"must be one of {known}, got {sharder!r}")
        return TableHandling(
            **kernels,
            sharder=sharder,
            key_ns=self._duration("tables.key_time", tables.get("key_time", "0 ns")),
            updates_all_rows=self._switch(
                "tables.updates_all_rows", tables.get("updates_all_rows", False)
            ),
            key_dtype=self._parsed(
                parse_dtype, "tables.key_dtype", str(tables.get("key_dtype", "int64"))
            ),
            has_all_keys=self._switch("tables.has_all_keys", tables.get("has_all_keys", False)),
            key_traffic_bytes=self._parsed(
                parse_size, "tables.key_traffic", tables.get("key_traffic", "0 B")
            ),
            vector_passes=self._number("tables.vector_passes", tables.get("vector_passes", 0.0)),
        )

    def _lookup_kernel(self, place: str, value: Any) -> str:
        if value not in KERNELS:
            self._faults.add(place, f"must be one of {', '.join(KERNELS)}, got {quote(value)}")
        return str(value)

    def _loader(self) -> Loader:
        loader = self._section("loader", {"batch", "sample"})
        return Loader(
            batch_ns=self._duration("loader.batch", loader.get("batch", "0 ns")),
            sample_ns=self._duration("loader.sample", loader.get("sample", "0 ns")),
        )

    def _compiled(self) -> Compiled:
        compiled = self._section("compiled", {"fusions", "host_speed_ratio"})
        fusions = self._words("compiled.fusions", Fusion, compiled.get("fusions", []))
        ratio = self._number(
            "compiled.host_speed_ratio", compiled.get("host_speed_ratio", 1.0), least=0.01
        )
        return Compiled(frozenset(fusions), ratio)

    def _evidence(self) -> Mapping[str, Evidence]:
        keys = ("rows", "sources", "hosts", "spread")
        result = {}
        for architecture, entry in self._mapping("evidence").items():
            place = f"evidence.{architecture}"
            self._check_architecture("evidence", architecture)
            if not isinstance(entry, dict) or set(entry) != set(keys):
                self._faults.add(place, f"must state {', '.join(keys)}, got {quote(entry)}")
                continue
            counts = {key: int(self._number(place, entry[key], least=1)) for key in keys[:3]}
            spread = self._number(place, entry["spread"])
            result[architecture] = Evidence(**counts, spread=spread)
        return result

    def _host(self) -> HostTimes:
        host = self._mapping("host")
        for key in sorted(set(host) - _HOST_KEYS):
            self._faults.add(f"host.{key}", f"unknown key; known: {', '.join(sorted(_HOST_KEYS))}")
        names = ("between_operators", "launch", "wait", "launch_latency")
        times = {f"{key}_ns": self._duration(f"host.{key}", host.get(key)) for key in names}
        times["iteration_ns"] = self._duration("host.iteration", host.get("iteration", "0 us"))
        operators = {
            canonical_operator(operator): self._parts(f"host.operators.{operator}", parts)
            for operator, parts in _of_mapping(host, "operators", self._path).items()
        }
        default = self._parts("host.default", host.get("default"))
        for part in (HostPart.BEFORE_LAUNCH, HostPart.AFTER_LAUNCH, HostPart.BETWEEN_LAUNCHES):
            if part not in default:
                self._faults.add("host.default", f"must state {part.name.lower()}")
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

    def _parsed(self, parse: Callable[[Any], Any], place: str, value: Any) -> Any:
        try:
            return parse(value)
        except InputError as fault:
            self._faults.add(place, str(fault))
            return None

    def _duration(self, place: str, value: Any) -> float:
        duration_ns: float | None = self._parsed(parse_duration_ns, place, value)
        if duration_ns is None:
            return math.nan
        if not 0 <= duration_ns <= _MOST_NS:
            most = format_duration(_MOST_NS)
            self._faults.add(place, f"must be from 0 to {most}, got {quote(value)}")
        return duration_ns
