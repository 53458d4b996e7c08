"""Op words: ops to and from plain JSON values.

Each op is a mapping with its type under `op`. Reading checks every field, so a file from another
version or an editor is refused, not misread.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from perfmodel.base.errors import GraphError
from perfmodel.graph.ops import Fixed, Op

_TYPES: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Op)}
_LEFT_OUT: dict[str, Any] = {"collective": {"_hash"}}
"""Fields that are not written as they are."""
_RARE = ("loads_singly", "added_bytes")
"""Fields that are not written where they are zero: files of earlier releases do not know them."""


def op_to_words(op: Op) -> dict[str, Any]:
    """*op* as a mapping of plain values."""
    kind = type(op).__name__
    if isinstance(op, Fixed):
        # Almost as many as tasks in a recording, so written out.
        words = {"op": kind, "name": op.name, "duration_ns": op.duration_ns}
        words["provenance"] = int(op.provenance)
        if op.waves:
            words["waves"] = op.waves
        return words if op.work is None else words | {"work": _work_to_words(op.work)}
    words = {"op": kind, **_adapter(kind).dump_python(op, mode="json", exclude=_LEFT_OUT)}
    for name in _RARE:
        if not words.get(name, True):
            del words[name]
    return words


_work_to_words = lru_cache(maxsize=2**14)(op_to_words)
"""Many tasks of a recording do the same work; the mapping is not to be changed."""


def op_from_words(words: Any, *, where: str) -> Op:
    """The op that *words* describe; *where* names them in errors."""
    if not isinstance(words, dict) or words.get("op") not in _TYPES:
        raise GraphError(f"{where}: must be an op of a known type, got {words!r:.80}.")
    kind = _TYPES[words["op"]]
    values = {key: value for key, value in words.items() if key != "op"}
    work = values.pop("work", None) if kind is Fixed else None
    try:
        op: Op = _adapter(words["op"]).validate_python(values)
    except ValidationError as fault:
        first = fault.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise GraphError(
            f"{where}: {words['op']} field {place!r}: {first['msg']}, got {first['input']!r:.80}."
        ) from None
    if isinstance(op, Fixed) and work is not None:
        inner = op_from_words(work, where=f"{where}.work")
        assert not isinstance(inner, Fixed)
        op = replace(op, work=inner)
    return op


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(_TYPES[name])
