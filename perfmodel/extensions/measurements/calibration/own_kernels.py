"""Own kernels: kernels and collectives that a user timed, and what they say of others.

A time is compared with the price of the same kernel timed in the same way, in a burst or under
load; a job takes the ratio on top of its own price, so the clock of a long run counts once. The
logarithm of the ratio is a Gaussian process: part of it is common to a kind of kernels, part to
those of like sizes (constants below; whole shapes left out of the tables of B200 and A100).
What is left of its variance narrows the interval, by `perfmodel/stacks/anchors.yaml`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from collectives import Collective, price_collective
from embeddings.table import EmbeddingTable, Lookup
from perfmodel.base.errors import CalibrationError, InputError
from perfmodel.base.fields import Duration, Line
from perfmodel.base.forms import CalibrationHeader, Form, load_document
from perfmodel.base.provenance import Provenance
from perfmodel.base.reading import quote
from perfmodel.costs.estimates import Estimates, rows_of_kinds
from perfmodel.costs.models import price_ops
from perfmodel.graph.ops import (
    Attention,
    Communication,
    EmbeddingOp,
    Gemm,
    GroupedGemm,
    MemoryBound,
    Op,
    Pass,
)
from perfmodel.stacks.capabilities import Residency
from perfmodel.stacks.stack import SoftwareStack
from topologies import Cluster, Device

Floats = NDArray[np.float64]
KINDS: Mapping[str, type[Any]] = {
    "gemm": Gemm,
    "grouped": GroupedGemm,
    "attention": Attention,
    "memory": MemoryBound,
    "lookup": EmbeddingOp,
    "collective": Collective,
}
"""What a row can be, by the word in its column `kind`."""
_NO_SIZES = frozenset(
    {"launches", "flops", "loads_singly", "byte_matrix", "root", "is_queued", "routing"}
)
"""Fields that tables do not state: a measurement has their usual value."""
SIGMA, COMMON, NOISE = 0.15, 0.4, 0.1
"""How far prices of kernels are off, the share of that variance that a kind has in common, and
how far one measurement is."""
OCTAVES = 1.5
"""Kernels whose sizes differ by so many doublings have little more in common than their kind."""
SURE = 0.25
"""Of the variance: with less left, a price counts as measured."""


class Spot(NamedTuple):
    """Where a kernel lies: its kind, the words that tell kernels of it apart, and log sizes."""

    kind: type[Any]
    words: tuple[object, ...]
    sizes: tuple[float, ...]


@lru_cache(maxsize=4096)
def spot_of(op: Any, *, ranks: int = 1, hosts: int = 1) -> Spot:
    """The spot of *op*; a collective runs on *ranks* ranks of *hosts* hosts."""
    op = op.collective if isinstance(op, Communication) else op
    cells = row_of(op)
    if isinstance(op, EmbeddingOp):
        cells = {"bytes": sum(op.lookup.lookup_count(one) * one.width for one in op.lookup.tables),
                 "direction": op.direction}  # fmt: skip
    elif isinstance(op, Collective):
        cells |= {"ranks": ranks, "hosts": hosts}
    is_size = {key: type(one) in (int, float) for key, one in cells.items()}
    # Which sizes there are is a word too: spots with the same words compare size by size.
    words = [key if is_size[key] else one for key, one in cells.items()]
    sizes = [math.log2(1.0 + one) for key, one in cells.items() if is_size[key]]
    return Spot(type(op), (*words,), (*sizes,))


def name_kernel(op: Any, device: Device, stack: SoftwareStack) -> Any:
    """*op*; attention by the kernel that *stack* takes on *device*, if it names none."""
    if isinstance(op, Attention) and op.kernel == "auto":
        return replace(op, kernel=stack.attention_kernel(device.generation))
    return op


def row_of(op: Any) -> dict[str, Any]:
    """*op* as cells of a table."""
    if isinstance(op, EmbeddingOp):
        tables = "+".join(
            f"{one.rows}x{one.width}x{one.pooling_factor:g}" for one in op.lookup.tables
        )
        return {"tables": tables, "batch": op.lookup.batch_size, "direction": op.direction.value}
    cells = {one.name: getattr(op, one.name) for one in fields(op) if one.name not in _NO_SIZES}
    return {
        name: getattr(value, "value", value)
        for name, value in cells.items()
        if not name.startswith("_")
    }


def op_of(kind: str, cells: Mapping[str, Any]) -> Any:
    """The op that the *cells* of a row of a *kind* state."""
    known = KINDS[kind]
    if known is EmbeddingOp:
        try:
            tables = tuple(
                EmbeddingTable(f"table_{number}", int(rows), int(width), float(pooling))
                for number, text in enumerate(str(cells["tables"]).split("+"))
                for rows, width, pooling in [text.split("x")]
            )
            lookup = Lookup(tables, int(cells["batch"]))
            return EmbeddingOp(lookup, Pass(str(cells["direction"])))
        except (KeyError, ValueError) as fault:
            raise InputError(f"tables must be ROWSxWIDTHxPOOLING+..., got {fault}") from None
    names = {one.name for one in fields(known)} - _NO_SIZES
    stated = {name: value for name, value in cells.items() if name in names}
    try:
        op = TypeAdapter(known).validate_python(stated)
    except ValidationError as fault:
        first = fault.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"{where or kind}: {first['msg']}, got {quote(first['input'])}") from None
    if any(isinstance(one, int) and one < 0 for one in row_of(op).values()):
        raise InputError(f"sizes of a {kind} must not be below 0")
    return op


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedKernel(Form):
    """A timed kernel: *cells* state its op, and a collective's *ranks* and *hosts*."""

    device: Line
    kind: Literal["gemm", "grouped", "attention", "memory", "lookup", "collective"]
    cells: Mapping[str, Any]
    time: Duration
    under_load: bool
    residency: Residency = Residency.COLD
    ranks: Annotated[int, Field(ge=1)] = 1
    hosts: Annotated[int, Field(ge=1)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelsFile(CalibrationHeader):
    """The file of timed kernels that `calibrate kernels` writes."""

    kernels: tuple[TimedKernel, ...]


@lru_cache(maxsize=8)
def load_kernels(path: Path, changed_ns: int = 0) -> KernelsFile:
    """The timed kernels in the file at *path*, read again when it was *changed_ns*."""
    del changed_ns
    return load_document(path, CalibrationError).read(KernelsFile)


@dataclass(frozen=True)
class Learning:
    """What logarithms of ratios at *spots* say of others."""

    spots: tuple[Spot, ...]
    logs: tuple[float, ...]

    @cached_property
    def _known(self) -> dict[type[Any], tuple[list[Spot], Floats, Floats]]:
        """By kind: distinct spots, the inverse of their covariance, and its weights."""
        found: dict[type[Any], dict[Spot, list[float]]] = {}
        for spot, log in zip(self.spots, self.logs, strict=True):
            found.setdefault(spot.kind, {}).setdefault(spot, []).append(log)
        known = {}
        for kind, of_spot in found.items():
            spots = list(of_spot)
            noise = [NOISE**2 / len(logs) for logs in of_spot.values()]
            inverse: Floats = np.asarray(np.linalg.inv(_covariance(spots, spots) + np.diag(noise)))
            means = np.array([np.mean(logs) for logs in of_spot.values()])
            known[kind] = spots, inverse, np.asarray(inverse @ means)
        return known

    @cached_property
    def _answered(self) -> dict[Spot, tuple[float, float]]:
        return {}

    def answer(self, spots: Sequence[Spot]) -> tuple[Floats, Floats]:
        """Of each of *spots*: the logarithm to multiply by, and the share of variance left."""
        # Candidates of a layout are made of the same kernels.
        if unknown := [one for one in dict.fromkeys(spots) if one not in self._answered]:
            self._answered.update(zip(unknown, self._ask(unknown), strict=True))
        found = np.array([self._answered[one] for one in spots]).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def _ask(self, spots: Sequence[Spot]) -> list[tuple[float, float]]:
        found = np.column_stack([np.zeros(len(spots)), np.ones(len(spots))])
        for kind, rows in rows_of_kinds(one.kind for one in spots).items():
            if kind in self._known:
                own, inverse, weights = self._known[kind]
                towards = _covariance([spots[row] for row in rows], own)
                told = np.einsum("ij,ij->i", towards @ inverse, towards)
                left = np.clip(1.0 - told / SIGMA**2, 0.0, 1.0)
                found[rows] = np.column_stack([towards @ weights, left])
        return [(log, left) for log, left in found.tolist()]


def _covariance(some: Sequence[Spot], others: Sequence[Spot]) -> Floats:
    near = np.zeros((len(some), len(others)))
    columns = rows_of_kinds(one.words for one in others)
    for words, rows in rows_of_kinds(one.words for one in some).items():
        if words in columns:
            here = np.array([some[row].sizes for row in rows])
            there = np.array([others[row].sizes for row in columns[words]])
            apart = np.sum((here[:, None] - there) ** 2, axis=2)
            near[np.ix_(list(rows), list(columns[words]))] = np.exp(-apart / (2 * OCTAVES**2))
    return np.asarray(SIGMA**2 * (COMMON + (1 - COMMON) * near))


def covariance(spots: Sequence[Spot]) -> Floats:
    """That of the logarithms at *spots*; kinds have nothing in common."""
    found = np.zeros((len(spots), len(spots)))
    for rows in rows_of_kinds(one.kind for one in spots).values():
        some = [spots[row] for row in rows]
        found[np.ix_(list(rows), list(rows))] = _covariance(some, some)
    return found


def files_of(device: Device) -> tuple[Path, ...]:
    """The calibrations of *device* that are timed kernels."""
    return tuple(path for path in map(Path, device.calibrations) if holds_kernels(path))


def holds_kernels(path: Path) -> bool:
    """Whether the file at *path* is one of timed kernels."""
    return path.is_file() and path.suffix != ".json" and _has(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _has(path: Path, changed_ns: int) -> bool:
    del changed_ns
    return "kernels" in load_document(path, CalibrationError).content


_LEARNT: dict[object, Learning] = {}
_MOST_LEARNT = 16


def learning_of(device: Device, stack: SoftwareStack) -> Learning:
    """What the timed kernels among the calibrations of *device* say under *stack*."""
    files = files_of(device)
    changed = tuple((path, path.stat().st_mtime_ns) for path in files)
    key = changed, repr(device), stack.name
    if key not in _LEARNT:
        rows = [
            one
            for path, changed_ns in changed
            for one in load_kernels(path, changed_ns).kernels
            if one.device == device.name and one.kind != "collective"
        ]
        ops = [name_kernel(op_of(one.kind, one.cells), device, stack) for one in rows]
        logs = np.log([one.time for one in rows]) - np.log(price_timed(rows, ops, device, stack))
        while len(_LEARNT) >= _MOST_LEARNT:
            del _LEARNT[next(iter(_LEARNT))]
        _LEARNT[key] = Learning(tuple(map(spot_of, ops)), tuple(logs.tolist()))
    return _LEARNT[key]


def price_timed(
    rows: Sequence[TimedKernel], ops: Sequence[Op], device: Device, stack: SoftwareStack
) -> Floats:
    """The prices of *ops*, timed as *rows* were, of *device* with no other kernels known.

    What a framework adds to a kernel is no part of it.
    """
    own = set(map(str, files_of(device)))
    bare = replace(device, calibrations=tuple(set(device.calibrations) - own))
    prices = np.zeros(len(rows))
    for (under_load, where), places in rows_of_kinds(
        (one.under_load, one.residency) for one in rows
    ).items():
        alone = replace(stack, kernel_time_ratio={}, residency=where)
        some = [ops[place] for place in places]
        found = price_ops(some, device=bare, stack=alone, is_alone=not under_load)
        prices[list(places)] = found.duration_ns
    return prices


def adjust_ops(
    found: Estimates, ops: Sequence[Op], device: Device, stack: SoftwareStack
) -> Estimates:
    """*found*, the prices of *ops*, as the timed kernels of *device* have them."""
    spots = [spot_of(name_kernel(op, device, stack)) for op in ops]
    logs, left = learning_of(device, stack).answer(spots)
    return replace(
        found,
        duration_ns=found.duration_ns * np.exp(logs),
        relative_sigma=found.relative_sigma * np.sqrt(left),
        provenance=np.where(left < SURE, Provenance.MEASURED, found.provenance).astype(np.int8),
    )


def learn_calls(cluster: Cluster) -> Learning:
    """What the timed collectives of *cluster* say of others; *cluster* is as calls see it."""
    spots, logs = [], []
    for path in files_of(cluster.device):
        for one in load_kernels(path, path.stat().st_mtime_ns).kernels:
            is_here = one.kind == "collective" and one.device == cluster.device.name
            if is_here and one.hosts <= cluster.host_count and one.ranks <= cluster.rank_count:
                op = op_of(one.kind, one.cells)
                price = price_collective(op, cluster=cluster, ranks=seats(one, cluster))
                spots.append(spot_of(op, ranks=one.ranks, hosts=one.hosts))
                logs.append(float(np.log(one.time / price.duration_ns)))
    return Learning(tuple(spots), tuple(logs))


def seats(one: TimedKernel, cluster: Cluster) -> tuple[int, ...]:
    """The ranks of a timed collective, spread evenly over its hosts."""
    of_host = one.ranks // one.hosts
    return tuple(
        host * cluster.ranks_per_host + place
        for host in range(one.hosts)
        for place in range(of_host)
    )
