"""PyTorch execution traces: operators of one rank with shapes and parents, without times.

They say what ran and with which tensors; a Kineto trace of the same step says
when. `record_function` ids link the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.base.errors import TraceError
from traces.json_stream import ObjectStream

_RANGE_KEYS = ("rf_id", "seq_id", "fw_tid", "tid")


@dataclass(frozen=True, slots=True)
class ExecutedOperator:
    """One operator call: its parent, the shapes of its inputs, its number in the profiler."""

    number: int
    name: str
    parent: int
    record: int
    sequence: int
    thread: int
    forward_thread: int
    input_shapes: tuple[Any, ...]
    input_types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExecutionTrace:
    """The operators of one rank in the order of their numbers."""

    document: str
    schema: str
    operators: tuple[ExecutedOperator, ...]
    faults: tuple[str, ...]


def load_execution_trace(path: Path | str) -> ExecutionTrace:
    """Read the PyTorch execution trace at *path*, plain or gzip."""
    stream = ObjectStream(Path(path), "nodes")
    operators = []
    for batch in stream.batches():
        for item in batch:
            try:
                operators.append(_operator(item))
            except (KeyError, TypeError, ValueError, AttributeError) as fault:
                stream.faults.add(f"operator left out ({type(fault).__name__}: {fault})", "nodes")
    schema = stream.surroundings.get("schema")
    if not isinstance(schema, str) or not operators:
        raise TraceError(
            f"{path}: must be a PyTorch execution trace with a schema and operators; has schema "
            f"{schema!r} and {len(operators)} operators. Write it with ExecutionTraceObserver."
        )
    operators.sort(key=lambda operator: operator.number)
    return ExecutionTrace(str(path), schema, tuple(operators), stream.faults.sentences())


def _operator(item: dict[str, Any]) -> ExecutedOperator:
    attributes = {entry["name"]: entry.get("value") for entry in item.get("attrs", ())}
    if "inputs" in item and isinstance(item["inputs"], dict):
        shapes, types = item["inputs"].get("shapes", ()), item["inputs"].get("types", ())
    else:
        # Schemas before 1.0.3 keep shapes and types beside the inputs.
        shapes, types = item.get("input_shapes", ()), item.get("input_types", ())
    parent = item.get("ctrl_deps", item.get("parent", 0))
    numbers = {key: int(attributes.get(key, item.get(key, -1)) or 0) for key in _RANGE_KEYS}
    return ExecutedOperator(
        number=int(item["id"]),
        name=str(item["name"]),
        parent=int(parent),
        record=numbers["rf_id"],
        sequence=numbers["seq_id"],
        thread=numbers["tid"],
        forward_thread=numbers["fw_tid"],
        input_shapes=tuple(shapes),
        input_types=tuple(str(word) for word in types),
    )
