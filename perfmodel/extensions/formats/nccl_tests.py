"""Output of nccl-tests, as text and as JSON: from a run to rows of a table.

It contains sizes, times, ranks and hosts, but not the machine, and older releases do not print the
collective either. The collective is then derived from the columns or the name of the file, or the
user states it. A launcher may put words before every line (`[1,0]<stdout>:`, `0: `, a time): the
heading tells how many.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
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
    ranks = run.ranks or _ranks_by_bandwidths(text.splitlines(), kind)
    if not ranks or not hosts:
        advice = (
            "Give --hosts."
            if ranks
            else ("Keep them, or write a table: `perfmodel schema collectives` shows its columns.")
        )
        raise MeasurementError(
            f"{document}: does not list its ranks (lines `#  Rank 0 ... on HOST device 0`). "
            f"{advice}"
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
    return _Run(
        kind=_kind_in(started[1] if started else text) or _kind_by_columns(lines, len(ranks)),
        hosts=len(set(ranks.values())),
        ranks=len(ranks),
        version=version,
        rows=list(_printed_rows(lines, len(ranks))),
        passes=_passes(lines),
        gpu=str(listed[0][3]) if listed else "",
    )


def _passes(lines: Iterable[str]) -> float | None:
    """The ratio of bus to plain bandwidth in the middle of the rows that print enough digits."""
    pairs = ((cells.get("algbw", ""), cells.get("busbw", "")) for cells in _iter_cells(lines))
    ratios = [
        float(bus) / float(plain)
        for plain, bus in pairs
        if _is_positive(plain) and _is_positive(bus) and float(plain) >= _LEAST_PLAIN
    ]
    return median(ratios) if ratios else None


def _iter_cells(lines: Iterable[str]) -> Iterator[dict[str, str]]:
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


def _is_row(words: list[str], columns: int) -> bool:
    """Whether *words* are a line of a table of so many *columns* that lacks some."""
    numbers = sum(_is_positive(word) or not word.strip("0.") for word in words)
    return len(words) >= columns - MOST_LOST and 2 * numbers > len(words)


MOST_LOST = 2
"""Cells that a damaged line may lack."""
BROKEN = {"size_bytes": "0", "time_us": "1", "fault": "has no readable size and time"}


def _printed_rows(lines: Iterable[str], ranks: int) -> Iterator[Record]:
    for cells in _iter_cells(lines):
        size, time_us = cells["size"], cells["time"]
        if _SIZE.fullmatch(size) and _is_positive(time_us):
            row = _row(size, time_us, cells.get("type", ""), cells.get("count", ""), ranks)
            yield from _judged(row, cells.get("algbw", ""), cells.get("wrong", "0"))
        elif size != "0" and (not size or _is_row(list(cells.values()), 0)):
            yield BROKEN


def _row(size: str, time_us: str, word: str, count: str = "", ranks: int = 0) -> Record:
    dtype = _DTYPES.get(word, "")
    fault = "" if dtype or word in ("", "none") else f"type {word} is not known"
    if dtype and count.isdecimal():
        held = int(count) * parse_dtype(dtype).size_bytes
        # Some collectives print the elements of one rank, rounded down.
        times, rest = divmod(int(size), max(held, 1))
        if held and (rest or times not in (1, ranks or times)):
            fault = "size and count disagree"
    return {"size_bytes": size, "time_us": time_us, "dtype": dtype, "fault": fault}


def _judged(row: Record, rate: str, wrong: str) -> Iterator[Record]:
    """*row* with what its own *rate* in GB/s and its number of *wrong* values say of it."""
    size = int(row["size_bytes"])
    if not size:
        return
    if _is_positive(wrong):
        row["fault"] = f"fails its own check (#wrong = {wrong})"
    if _is_positive(rate) and float(rate) >= _LEAST_PLAIN:
        row["column_ratio"] = str(size / float(rate) / 1e3 / float(row["time_us"]))
    yield row


def _ranks_by_bandwidths(lines: Iterable[str], kind: str) -> int:
    """The number of ranks that the ratio of bus to plain bandwidth tells; 0 if it does not.

    Of n ranks it is 1 - 1/n, twice that for an all-reduce, 1 for what has a root.
    """
    times = 2 if kind == "all_reduce" else 1
    counts = set()
    for cells in _iter_cells(lines):
        plain, bus = cells.get("algbw", ""), cells.get("busbw", "")
        if not (_is_positive(plain) and _is_positive(bus)) or float(plain) < _LEAST_PLAIN:
            continue
        slack = 0.5 * (10 ** -_digits(plain) / float(plain) + 10 ** -_digits(bus) / float(bus))
        ratio = float(bus) / float(plain) / times
        if ratio * (1 + slack) >= 1:
            return 0
        least, most = (1 / (1 - ratio * (1 + sign * slack)) for sign in (-1, 1))
        counts.add((math.ceil(least), math.floor(most)))
    fitting = range(
        max((low for low, _ in counts), default=1), 1 + min((c for _, c in counts), default=0)
    )
    return fitting[0] if len(fitting) == 1 else 0


def _kind_by_columns(lines: list[str], ranks: int) -> str:
    """The collective that alone reduces to all and has such a ratio of bus to plain bandwidth."""
    reduces = any(
        cells.get("redop", "none") != "none" and cells.get("root") == "-1"
        for cells in _iter_cells(lines)
    )
    passes = (_passes(lines) or 0.0) if reduces and ranks > 1 else 0.0
    share = (ranks - 1) / max(ranks, 1)
    kinds = {"all_reduce": 2 * share, "reduce_scatter": share} if passes else {}
    return next((kind for kind, ratio in kinds.items() if abs(passes / ratio - 1) < 0.05), "")


def _digits(number: str) -> int:
    return len(number.partition(".")[2])


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
    return _Run(
        kind=_kind_in(program),
        hosts=len({str(one.get("hostname")) for one in devices}),
        ranks=len(devices) * each,
        version=dotted_version(_count(content.get("nccl_version"))),
        rows=[row for one in results if isinstance(one, dict) for row in _json_row(one)],
    )


def _json_row(result: Mapping[str, Any]) -> Iterable[Record]:
    for word in ("out_of_place", "in_place"):
        found = result.get(word)
        if isinstance(found, dict):
            time_us = str(found.get("time", found.get("cpu_time", "")))
            if _is_positive(time_us) and isinstance(result.get("size"), int):
                own = {key.replace("_", ""): str(value) for key, value in found.items()}
                row = _row(str(result["size"]), time_us, str(result.get("type", "")))
                yield from _judged(row, own.get("algbw", ""), own.get("nwrong", "0"))
                return
    yield BROKEN


def _count(value: object, default: int = 1) -> int:
    return value if isinstance(value, int) and value > 0 else default


def _is_positive(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False


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
