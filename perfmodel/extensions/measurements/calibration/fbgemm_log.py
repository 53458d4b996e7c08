"""What FBGEMM's benchmark of embedding tables prints, as measured lookups of one device.

It prints a line per pass with the shape and the time. Of a list of tables these are means: the
command line, where the log has it, states each table, how indices are drawn and the optimizer.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from embeddings.distribution import UNIFORM, IndexDistribution, Zipf
from embeddings.table import EmbeddingTable, Lookup
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import MeasurementError
from perfmodel.base.reading import read_text
from perfmodel.base.units import NS_PER_US
from perfmodel.extensions.measurements.calibration.embedding_cases import EmbeddingCase
from topologies import Device

MOST_BYTES = 64 * 2**20
_PASS = re.compile(
    r"(?P<way>Forward|Backward), B: *(?P<batch>\d+), E: *(?P<rows>\d+), T: *(?P<tables>\d+), "
    r"D: *(?P<width>[\d.]+), L: *(?P<lookups>[\d.]+),(?: W: *(?P<weighted>\w+),)? *"
    r"BW: *[\d.]+ GB/s, *T: *(?P<us>[\d.]+) *us"
)
_SIZE = re.compile(r"Embedding parameters: *(?P<numbers>[\d.]+) GParam, *(?P<size>[\d.]+) GB")
_COMMAND = re.compile(r"\bdevice(?:[-_]with[-_]spec(?:list)?)? +--.*")
_DTYPES = {4: DType.FP32, 2: DType.FP16, 1: DType.INT8}
_LISTS = {
    "rows": ("tbe-num-embeddings-list", "num-embeddings-list"),
    "width": ("tbe-embedding-dim-list", "embedding-dim-list"),
    "lookups": ("pooling-list", "bag-size-list"),
}
"""Options that state each table."""


@dataclass(slots=True)
class _Setting:
    """What the log said before a pass."""

    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    dtype: DType = DType.FP32

    def numbers(self, what: str) -> list[float]:
        """The list that an option states for *what*; empty without one."""
        given = next((self.options[key] for key in _LISTS[what] if key in self.options), [])
        return [float(number) for text in given for number in text.split(",") if number]

    @property
    def distribution(self) -> IndexDistribution:
        """How indices are drawn: a Zipf exponent of 1 or less means evenly in the old script."""
        if shifted := self.options.get("tbe-indices-zipf"):
            return Zipf(float(shifted[-1]))
        exponent = float(self.options.get("alpha", ["1"])[0])
        return Zipf(exponent) if exponent > 1 else UNIFORM

    @property
    def optimizer(self) -> str:
        """The benchmark updates tables by Adagrad, by rows unless told otherwise."""
        return "adagrad" if "no-row-wise" in self.options else "rowwise_adagrad"


def load_benchmark(path: Path, device: Device) -> tuple[EmbeddingCase, ...]:
    """The lookups in the log at *path*, measured on *device*."""
    setting, found = _Setting(), dict[tuple[int, str], EmbeddingCase]()
    for line in read_text(path, MeasurementError, MOST_BYTES).splitlines():
        if command := _COMMAND.search(line):
            setting = _Setting(_options(command.group()))
        elif size := _SIZE.search(line):
            per_number = float(size["size"]) / max(float(size["numbers"]), 1e-9)
            setting.dtype = _DTYPES.get(round(per_number), setting.dtype)
        elif one := _PASS.search(line):
            name, way = _name(one), one["way"].lower()
            run = sum(known == name and way in case.measured_ns
                      for (_, known), case in found.items())  # fmt: skip
            case = found.get((run, name)) or _case(one, setting, device, name, run)
            measured = {**case.measured_ns, way: float(one["us"]) * NS_PER_US}
            found[run, name] = replace(case, measured_ns=measured, fitted=tuple(measured))
    if not found:
        raise MeasurementError(
            f"{path}: has no line of FBGEMM's benchmark such as `Forward, B: 512, E: 100000, "
            "T: 32, D: 128, L: 20, W: False, BW: ... GB/s, T: ...us`. Give what its command "
            "device or device-with-speclist prints."
        )
    return tuple(found.values())


def _options(command: str) -> dict[str, list[str]]:
    """The options of *command* with the words after each."""
    options: dict[str, list[str]] = {}
    for word in shlex.split(command)[1:]:
        if word.startswith("--"):
            name, sign, value = word[2:].partition("=")
            options[name] = [value] if sign else []
        elif options:
            options[next(reversed(options))].append(word)
    return options


def _name(line: re.Match[str]) -> str:
    return (
        f"{line['tables']} tables of {line['rows']} x {line['width']}, batch {line['batch']}, "
        f"{line['lookups']} lookups"
    )


def _case(
    line: re.Match[str], setting: _Setting, device: Device, name: str, run: int
) -> EmbeddingCase:
    count, batch = int(line["tables"]), int(line["batch"])
    columns = [
        setting.numbers(what) or [float(line[what])] * count
        for what in ("rows", "width", "lookups")
    ]
    if len({count, *map(len, columns)}) > 1:
        raise MeasurementError(
            f"{name}: the command line must state every table in its lists, got "
            f"{', '.join(str(len(column)) for column in columns)} rows, widths and lookups."
        )
    tables = [
        EmbeddingTable(
            f"t{place}",
            int(rows),
            round(width),
            lookups,
            setting.dtype,
            setting.distribution,
            is_weighted=line["weighted"] == "True",
        )
        for place, (rows, width, lookups) in enumerate(zip(*columns, strict=True))
    ]
    lookup = Lookup(tuple(tables), batch, setting.optimizer, "fbgemm")
    return EmbeddingCase(f"{name} ({run + 1})" if run else name, device, lookup, {}, {}, ())
