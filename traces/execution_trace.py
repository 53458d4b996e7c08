"""PyTorch execution traces: operators of one rank with their tensors and parents, without times.

They say what ran and with which tensors; a Kineto trace of the same step says when. Files that
were linked with a Kineto trace (`et_plus`) also contain kernels and durations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfmodel.base.errors import TraceError
from traces.file_stream import DEFAULT_LIMITS, Limits, ObjectStream

_MOST_FAULTY_RATIO = 0.05
_LARGEST = 2**63 - 1
_RANK_IN_NAME = re.compile(r"(?:rank|worker|et|host)[_.-]?(\d{1,6})(?!\d)", re.IGNORECASE)
_ATTRIBUTES = (
    "op_schema", "scope", "collective_name", "dtype", "in_msg_nelems", "out_msg_nelems",
    "in_split_size",
    "out_split_size", "pg_name", "pg_desc", "pg_size", "global_rank_start", "global_rank_stride",
)  # fmt: skip
_LINKED_KEYS = ("cat", "ts", "inclusive_dur", "exclusive_dur", "dur", "stream")


@dataclass(frozen=True, slots=True)
class TraceArgument:
    """One input or output: its value, its shape and its type, as the file has them."""

    value: Any
    shape: Any
    kind: str

    @property
    def is_on_host(self) -> bool:
        """Whether it is a tensor in host memory."""
        device = _device_in(self.value)
        return device is not None and not device.startswith(("cuda", "hip", "xpu"))

    @property
    def storages(self) -> tuple[int, ...]:
        """The memory blocks of the tensors in it."""
        return tuple(_storages_in(self.value))


def _device_in(value: Any) -> str | None:
    if not isinstance(value, list) or not value:
        return None
    if isinstance(value[-1], str) and len(value) >= 6:
        return value[-1]
    return _device_in(value[0])


def _storages_in(value: Any) -> list[int]:
    if not isinstance(value, list) or not value:
        return []
    if len(value) >= 6 and isinstance(value[-1], str) and isinstance(value[1], int):
        return [value[1]]
    return [
        found
        for inner in value
        if isinstance(inner, list) and len(inner) >= 6 and isinstance(inner[-1], str)
        for found in _storages_in(inner)
    ]


@dataclass(frozen=True, slots=True)
class ExecutedOperator:
    """One operator call: its parent, its thread, its inputs and outputs.

    *attributes* holds the schema, the metadata of collectives and, in linked files, times.
    """

    number: int
    name: str
    parent: int
    thread: int
    inputs: tuple[TraceArgument, ...] = ()
    outputs: tuple[TraceArgument, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExecutionTrace:
    """The operators of one rank in the order of their numbers."""

    document: str
    schema: str
    operators: tuple[ExecutedOperator, ...]
    faults: tuple[str, ...]
    rank: int = 0
    is_rank_stated: bool = False


def load_execution_trace(path: Path | str, limits: Limits = DEFAULT_LIMITS) -> ExecutionTrace:
    """Read the PyTorch execution trace at *path*, plain or gzip, as far as *limits* allow."""
    stream = ObjectStream(Path(path), "nodes", limits=limits)
    operators: dict[int, ExecutedOperator] = {}
    faulty = count = 0
    for batch in stream.batches():
        limits.check_count(Path(path), count + len(batch), "operators")
        for item in batch:
            count += 1
            try:
                found = _operator(item, operators)
                operators[found.number] = found
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as fault:
                faulty += 1
                stream.faults.add(f"operator left out ({type(fault).__name__}: {fault})", "nodes")
    schema = stream.surroundings.get("schema")
    _check(Path(path), schema, len(operators), faulty if count > 2 else 0)
    # The process itself is number 0 or 1 and often not written.
    lost = [one for one in operators.values() if one.parent > 1 and one.parent not in operators]
    if lost:
        first = f"operator {lost[0].number} in {lost[0].parent}"
        stream.faults.add("operator whose parent is not in the file", first, len(lost))
    early = [one for one in operators.values() if one.parent >= one.number > 0]
    if early:
        stream.faults.add("operator before its parent", f"{early[0].number}", len(early))
    match = _RANK_IN_NAME.search(Path(path).name)
    return ExecutionTrace(
        document=str(path),
        schema=str(schema),
        operators=tuple(sorted(operators.values(), key=lambda operator: operator.number)),
        faults=stream.faults.sentences(),
        rank=int(match[1]) if match else 0,
        is_rank_stated=match is not None,
    )


def _check(path: Path, schema: object, kept: int, faulty: int) -> None:
    if not isinstance(schema, str) or not kept:
        raise TraceError(
            f"{path}: must be a PyTorch execution trace with a schema and operators; has schema "
            f"{schema!r} and {kept} operators. Write it with ExecutionTraceObserver."
        )
    if faulty > _MOST_FAULTY_RATIO * (kept + faulty):
        raise TraceError(
            f"{path}: {faulty} of {kept + faulty} operators are faulty, more than can be left out. "
            "Write it again with ExecutionTraceObserver."
        )


def _operator(item: dict[str, Any], known: Mapping[int, ExecutedOperator]) -> ExecutedOperator:
    stated = {entry["name"]: entry.get("value") for entry in item.get("attrs", ())}
    parent = item.get("ctrl_deps", item.get("parent", 0))
    if isinstance(parent, list):
        parent = parent[0] if parent else 0
    thread = _whole(stated.get("tid", item.get("tid", -1)))
    if not isinstance(item["name"], str):
        raise TypeError("name must be text")
    if "tid" in item and thread < 0:
        raise ValueError("tid must not be negative")
    number = _whole(item["id"], least=0)
    if number in known:
        raise ValueError(f"id {number} is used twice")
    attributes = {key: stated[key] for key in _ATTRIBUTES if key in stated}
    attributes |= {key: item[key] for key in (*_LINKED_KEYS, "op_schema", "scope") if key in item}
    return ExecutedOperator(
        number=number,
        name=item["name"],
        parent=_whole(parent, least=0),
        thread=thread,
        inputs=_arguments(item, "input"),
        outputs=_arguments(item, "output"),
        attributes=attributes,
    )


def _arguments(item: dict[str, Any], word: str) -> tuple[TraceArgument, ...]:
    content = item.get(f"{word}s", ())
    if isinstance(content, dict):
        values, shapes, kinds = (content.get(key, ()) for key in ("values", "shapes", "types"))
    else:
        # Schemas before 1.0.3 keep shapes and types separate from the inputs.
        values, shapes = content, item.get(f"{word}_shapes", ())
        kinds = item.get(f"{word}_types", ())
    if not all(isinstance(part, list | tuple) for part in (values, shapes, kinds)):
        raise TypeError(f"{word}s must be lists")
    if len(shapes) != len(kinds):
        raise ValueError(f"{word}s: {len(shapes)} shapes for {len(kinds)} types")
    return pair_arguments(values, shapes, kinds)


def pair_arguments(
    values: Sequence[Any], shapes: Sequence[Any], kinds: Sequence[Any]
) -> tuple[TraceArgument, ...]:
    """The arguments with these *shapes* and *kinds*; those without a value have None."""
    padded = [*values, *[None] * (len(shapes) - len(values))]
    return tuple(
        TraceArgument(value, shape, str(kind))
        for value, shape, kind in zip(padded, shapes, kinds, strict=False)
    )


def _whole(value: Any, *, least: int = -_LARGEST) -> int:
    number = int(value)
    if isinstance(value, bool) or not least <= number <= _LARGEST or number != float(value):
        raise ValueError(f"{value!r} is not a whole number of 64 bits")
    return number
