"""Output of nccl-tests, as text and as JSON: from a run to rows of a table.

It contains sizes, times, ranks and hosts, but not the machine, and older releases do not print the
collective either. The collective is then derived from the name of the file, or the user states it.
A launcher may put words before every line (`[1,0]<stdout>:`, `0: `, a time): the heading tells how
many.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from statistics import median
from typing import Any

from collectives.collective import bus_bandwidth, parse_kind
from collectives.measurements import RunPlace
from perfmodel.base.dtypes import parse_dtype
from perfmodel.base.errors import MeasurementError
from perfmodel.base.reading import parse_json
from perfmodel.base.units import NS_PER_S
from topologies import find_device, load_topology

Record = dict[str, str]
_PROGRAM = re.compile(r"\b([a-z]+(?:_[a-z]+)*)_perf(?:_mpi)?\b")
_SIZE = re.compile(r"[0-9]{1,18}")
_LEAST_PLAIN = 1.0
_SAME_PASSES = 0.015
"""How far the ratio of printed bandwidths may be off; 15 ranks have 0.4 % less than 16."""
_RANK = re.compile(r"\bRank\s+(\d+)\b.*?\bon\s+(\S+)\s+device\b(?:.*\]\s*(\S.*))?")
_LIBRARY = re.compile(r"nccl-library=(\d{4,6})|NCCL version (\d+\.\d+(?:\.\d+)?)")
_DTYPES = {
    "float": "fp32", "half": "fp16", "bfloat16": "bf16", "double": "fp64", "int8": "int8",
    "uint8": "int8", "int32": "int32", "uint32": "int32", "int64": "int64", "uint64": "int64",
    "f8e4m3": "fp8", "f8e5m2": "fp8",
}  # fmt: skip


def read_foreign(text: str, *, document: str, place: RunPlace) -> list[Record] | None:
    """The rows of a run, as a table of collectives has them; None if *text* is a table."""
    is_print = "nGpus" in text or any(_heading(line) for line in text.splitlines())
    if text.lstrip()[:1] != "{" and not is_print:
        return None
    run = _parse_json(text, document) if text.lstrip()[:1] == "{" else _parse_print(text, document)
    kind = place.kind or run.kind or _kind_in(document) or _kind_in_name(document)
    if place.topology is None:
        unsaid, also = ("", "") if kind else (" nor the collective", " and --kind all_reduce")
        raise MeasurementError(
            f"{document}: is output of nccl-tests, which does not name the machine{unsaid}. Give "
            f"--topology NAME|FILE{also}; `perfmodel topology list` shows names."
        )
    if not kind:
        raise MeasurementError(
            f"{document}: does not name its collective. Give --kind, such as all_reduce, "
            "or name the file after it, such as all_gather.log."
        )
    hosts = place.hosts or run.hosts
    # Without a list of ranks, all GPUs of the hosts; the ratio of its bandwidths has to agree.
    ranks = run.ranks or hosts * load_topology(place.topology).gpus_per_host
    if not ranks or (not run.ranks and run.passes in (None, 1.0)):
        raise MeasurementError(
            f"{document}: does not list its ranks (lines `#  Rank 0 ... on HOST device 0`). Give "
            "--hosts, or write a table: `perfmodel schema collectives` shows its columns."
        )
    if not run.rows:
        raise MeasurementError(f"{document}: holds no line with a size and a time.")
    _check_place(run, document, place.topology, kind, ranks)
    about = {
        "topology": place.topology,
        "hosts": str(hosts),
        "nranks": str(ranks),
        "collective": kind,
        "nccl_version": run.version,
        "source": document,
    }
    return [{**about, **row} for row in run.rows]


@dataclass(frozen=True, slots=True)
class _Run:
    """What a file says by itself; *passes* is its bus bandwidth over the plain one."""

    kind: str
    hosts: int
    ranks: int
    version: str
    rows: list[Record]
    passes: float | None = None
    gpu: str = ""


def _check_place(run: _Run, document: str, topology: str, kind: str, ranks: int) -> None:
    """Refuse a run of other GPUs than *topology* has, or of another collective or group."""
    gpu, own = find_device(run.gpu), load_topology(topology).device
    if gpu is not None and gpu.generation != own.generation:
        raise MeasurementError(
            f"{document}: must be measured on {own.name}, as {topology} has, got {run.gpu}. Give "
            "the machine that it was measured on."
        )
    one_s = {"size_bytes": 1, "duration_ns": NS_PER_S}
    passes = bus_bandwidth(parse_kind(kind), rank_count=ranks, **one_s)
    if run.passes is not None and abs(run.passes / passes - 1) > _SAME_PASSES:
        raise MeasurementError(
            f"{document}: busbw must be {passes:.4g} times algbw in {kind} of {ranks} ranks, got "
            f"{run.passes:.4g}. Correct the collective, the list of ranks or the columns."
        )


def _parse_print(text: str, document: str) -> _Run:
    lines = text.splitlines()
    found = (_RANK.search(line) for line in lines)
    listed = [match for match in found if match is not None]
    ranks = {int(match[1]): match[2] for match in listed}
    missing = sorted(set(range(max(ranks, default=-1) + 1)) - set(ranks))
    if missing:
        raise MeasurementError(
            f"{document}: lists rank {max(ranks)} but not rank {missing[0]}, so the number "
            "of ranks is unknown. Keep the lines of all ranks."
        )
    started = re.search(r"Collective test starting:\s*(\S+)", text)
    library = _LIBRARY.search(text)
    version = ""
    if library is not None:
        version = dotted_version(int(library[1])) if library[1] else library[2]
    cells = list(_iter_cells(lines))
    return _Run(
        kind=_kind_in(started[1] if started else text),
        hosts=len(set(ranks.values())),
        ranks=len(ranks),
        version=version,
        rows=list(_rows(cells, len(ranks))),
        passes=_passes(cells),
        gpu=str(listed[0][3]) if listed else "",
    )


def _passes(cells: Iterable[Record]) -> float | None:
    """The ratio of bus to plain bandwidth in the middle of the rows that print enough digits."""
    pairs = ((_positive(one.get("algbw")), _positive(one.get("busbw"))) for one in cells)
    ratios = [bus / plain for plain, bus in pairs if plain >= _LEAST_PLAIN and bus]
    return median(ratios) if ratios else None


def _iter_cells(lines: Iterable[str]) -> Iterator[Record]:
    """The cells of every line below a heading, by column; out of place where there are both."""
    columns: list[str] = []
    before = 0
    for line in lines:
        heading = _heading(line)
        if heading:
            before = heading.index("size")
            columns = heading[before:]
        words = line.split()[before:]
        if columns and len(words) >= len(columns):
            pairs = list(zip(columns, words, strict=False))
            yield {**dict(reversed(pairs)), "size": words[0]}
        elif columns and _is_row(words, len(columns)):
            yield {"size": "", "time": ""}


def _is_row(words: Collection[str], columns: int) -> bool:
    """Whether *words* are a line of a table of so many *columns* that lacks some."""
    numbers = sum(bool(_positive(word) or not word.strip("0.")) for word in words)
    return len(words) >= columns - MOST_LOST and 2 * numbers > len(words)


MOST_LOST = 2
"""Cells that a damaged line may lack."""
BROKEN = {"size_bytes": "0", "time_us": "1", "fault": "has no readable size and time"}


def _rows(table: Iterable[Record], ranks: int) -> Iterator[Record]:
    """The rows of a table of collectives in the cells of *table*, by nccl-tests' columns."""
    for cells in table:
        size, time_us = cells["size"], cells["time"]
        if not (_SIZE.fullmatch(size) and _positive(time_us)):
            if size != "0" and (not size or _is_row(cells.values(), 0)):
                yield BROKEN
            continue
        word, count, wrong = (cells.get(key, "") for key in ("type", "count", "wrong"))
        dtype, rate = _DTYPES.get(word, ""), _positive(cells.get("algbw"))
        fault = "" if dtype or word in ("", "none") else f"type {word} is not known"
        if dtype and count.isdecimal():
            held = int(count) * parse_dtype(dtype).size_bytes
            # Some collectives print the elements of one rank, rounded down.
            times, rest = divmod(int(size), max(held, 1))
            if held and (rest or times not in (1, ranks or times)):
                fault = "size and count disagree"
        if _positive(wrong):
            fault = f"fails its own check (#wrong = {wrong})"
        row = {"size_bytes": size, "time_us": time_us, "dtype": dtype, "fault": fault}
        if rate >= _LEAST_PLAIN:
            row["column_ratio"] = str(int(size) / rate / 1e3 / float(time_us))
        if int(size):
            yield row


def _heading(line: str) -> list[str]:
    """The words of a heading, with those that a launcher put before; none of other lines."""
    words = line.replace("cputime", "time").replace("#", " ").split()
    return words if {"size", "count", "time", "busbw"} <= set(words) else []


def _parse_json(text: str, document: str) -> _Run:
    content = parse_json(text, document=document, error_type=MeasurementError)
    config, results = content.get("config"), content.get("results")
    if not isinstance(config, dict) or not isinstance(results, list):
        raise MeasurementError(
            f"{document}: is JSON, but not of nccl-tests (no config and results). "
            "`perfmodel schema collectives` shows the columns of a table."
        )
    listed = config.get("devices")
    devices = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    # Every process names the first of its GPUs.
    each = _count(config.get("nthreads")) * _count(config.get("ngpus"))
    arguments = content.get("args")
    program = str(arguments[0]) if isinstance(arguments, list) and arguments else ""
    cells = [_json_cells(one) for one in results if isinstance(one, dict)]
    return _Run(
        kind=_kind_in(program),
        hosts=len({str(one.get("hostname")) for one in devices}),
        ranks=len(devices) * each,
        version=dotted_version(_count(content.get("nccl_version"))),
        rows=list(_rows(cells, len(devices) * each)),
        passes=_passes(cells),
    )


def _json_cells(result: Mapping[str, Any]) -> Record:
    """The cells of a *result*, by the columns of a print; empty ones where nothing was timed."""
    for word in ("out_of_place", "in_place"):
        found = result.get(word)
        if isinstance(found, dict) and isinstance(result.get("size"), int):
            own = {key.replace("_", ""): str(value) for key, value in found.items()}
            time_us = own.get("time", own.get("cputime", ""))
            if _positive(time_us):
                about = {"size": str(result["size"]), "type": str(result.get("type", ""))}
                return {**own, **about, "time": time_us, "wrong": own.get("nwrong", "")}
    return {"size": "", "time": ""}


def _count(value: object, default: int = 1) -> int:
    return value if isinstance(value, int) and value > 0 else default


def _positive(text: str | None) -> float:
    """The positive number that *text* says, else 0."""
    try:
        number = float(text or 0)
    except ValueError:
        return 0.0
    return number if 0 < number < math.inf else 0.0


def _kind_in(text: str) -> str:
    found = _PROGRAM.search(text)
    return found[1] if found else ""


_NAMES = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "alltoall": "alltoall", "broadcast": "broadcast", "sendrecv": "sendrecv",
}  # fmt: skip


def _kind_in_name(document: str) -> str:
    """The one collective that the name of a file is made of: all_reduce_2x8.log."""
    letters = re.sub(r"[^a-z]", "", PurePath(document).stem.lower())
    named = [kind for word, kind in _NAMES.items() if word in letters]
    return named[0] if len(named) == 1 else ""


def dotted_version(code: int) -> str:
    """NCCL's number of a release: 21805 is 2.18.5, and 2708 was 2.7.8."""
    if code >= 10_000:
        return f"{code // 10_000}.{code // 100 % 100}.{code % 100}"
    return f"{code // 1000}.{code // 100 % 10}.{code % 100}" if code >= 1000 else ""
