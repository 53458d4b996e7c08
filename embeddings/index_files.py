"""Index files: real indices from NumPy, Parquet and torch files, read without running anything.

NumPy files are read without pickle. Torch files hold the three tensors of
facebookresearch/dlrm_datasets; `weights_only` admits tensors and nothing that could run.
"""

from __future__ import annotations

import pickle
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from embeddings.index_data import IndexData, build_index_data, lengths_from_offsets
from perfmodel.base.errors import InputError
from perfmodel.base.reading import check_plain_file
from perfmodel.base.units import format_size

MAX_FILE_BYTES = 64 * 2**30
_SMALL_BYTES = 256 * 2**20
_MOST_RATIO = 50
"""Above the small size, how many times its own size a file may unpack to."""
_UNREADABLE = (
    ValueError, OSError, EOFError, LookupError, TypeError, SyntaxError, OverflowError,
    NotImplementedError, RuntimeError, MemoryError, AttributeError, struct.error, zlib.error,
    tokenize.TokenError, zipfile.BadZipFile, pickle.UnpicklingError, AssertionError,
)  # fmt: skip
"""What the readers of NumPy and torch raise on junk."""
_KEYS = {"indices", "offsets", "lengths", "tables", "names"}


def load_index_data(path: str | Path) -> IndexData:
    """Read the indices in *path*: `.npz`, `.parquet`, `.pt` or `.pth`."""
    path = Path(path)
    check_plain_file(path, InputError)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(
            f"{path}: must end in one of {', '.join(READERS)}, got {path.suffix or 'no ending'!r}."
        )
    if path.stat().st_size == 0:
        raise InputError(f"{path}: holds nothing.")
    return reader(path)


def _load_npz(path: Path) -> IndexData:
    try:
        _check_archive(path)
        with np.load(path, allow_pickle=False) as arrays:
            content = {name: arrays[name] for name in arrays.files}
    except _UNREADABLE as fault:
        raise _unreadable(path, "a readable NumPy archive", fault) from None
    unknown = sorted(set(content) - _KEYS)
    if content and len(unknown) == len(content):
        return _by_name(path, content)
    if unknown or "indices" not in content or not ({"lengths", "offsets"} & set(content)):
        raise InputError(
            f"{path}: must hold `indices` and `lengths` (tables x samples), `indices`, `offsets` "
            "and `tables`, or an array per table under its name; got "
            f"{', '.join(sorted(content)) or 'nothing'}."
        )
    stated = content.get("names")
    names = None if stated is None else tuple(str(name) for name in np.asarray(stated).ravel())
    if "lengths" in content:
        lengths = content["lengths"]
        return _named(path, content["indices"], lengths, names)
    tables = _table_count(path, content.get("tables", 1))
    lengths = lengths_from_offsets(
        str(path),
        content["offsets"],
        index_count=np.asarray(content["indices"]).size,
        table_count=tables,
    )
    return _named(path, content["indices"], lengths, names)


def _named(path: Path, indices: Any, lengths: Any, names: tuple[str, ...] | None) -> IndexData:
    """The data with *names* of its tables, if they are one per table."""
    data = build_index_data(str(path), indices=indices, lengths=lengths)
    if names is None:
        return data
    if len(set(names)) != len(names) or len(names) != len(data.names):
        raise InputError(
            f"{path}, names: must be {len(data.names)} different names, one per table, "
            f"got {len(names)}: {', '.join(names)[:200]}."
        )
    return replace(data, names=names)


def _by_name(path: Path, content: dict[str, Any]) -> IndexData:
    """An array per table: a lookup per sample, or as many as the array has columns."""
    counts = {name: len(array) if array.ndim else 0 for name, array in content.items()}
    if len(set(counts.values())) > 1 or any(array.ndim not in (1, 2) for array in content.values()):
        shapes = ", ".join(f"{name} {array.shape}" for name, array in content.items())
        raise InputError(
            f"{path}: arrays of tables must be samples, or samples x lookups, for the same "
            f"samples; got {shapes[:200]}. Bags of different lengths go into a Parquet file."
        )
    lengths = [np.full(len(array), array[:1].size) for array in content.values()]
    indices = np.concatenate([array.ravel() for array in content.values()])
    return _named(path, indices, np.stack(lengths), tuple(content))


def _check_archive(path: Path) -> None:
    """Raise where the zip archive at *path* unpacks to more than any file of indices does."""
    with zipfile.ZipFile(path) as packed:
        size_bytes = sum(entry.file_size for entry in packed.infolist())
    _check_size(path, size_bytes)


def _check_size(path: Path, size_bytes: int) -> None:
    is_bomb = size_bytes > max(_SMALL_BYTES, _MOST_RATIO * path.stat().st_size)
    if is_bomb or size_bytes > MAX_FILE_BYTES:
        raise InputError(
            f"{path}: unpacks to {format_size(size_bytes)}, more than is read from "
            f"{format_size(path.stat().st_size)}. Store it without compression."
        )


def _table_count(path: Path, stated: Any) -> int:
    numbers = np.asarray(stated).ravel()
    if numbers.dtype.kind not in "iu" or len(numbers) != 1 or not 1 <= int(numbers[0]) <= 2**20:
        raise InputError(f"{path}, tables: must be one whole number, at least 1, got {stated}.")
    return int(numbers[0])


def _unreadable(path: Path, what: str, fault: BaseException) -> InputError:
    """*path* is not *what* it must be; torch and NumPy would say how to run what is in it."""
    if isinstance(fault, pickle.UnpicklingError) or "pickle" in str(fault):
        return InputError(
            f"{path}: not {what}. It is broken, or holds Python objects: these could run code and "
            "are never read. Save the numbers alone."
        )
    reason = " ".join(str(fault).split())[:200] or type(fault).__name__
    return InputError(f"{path}: not {what} ({reason}).")


def _load_parquet(path: Path) -> IndexData:
    """One column per table, one row per sample: an index or a list of indices."""
    import pyarrow
    import pyarrow.parquet

    try:
        about = pyarrow.parquet.ParquetFile(path).metadata
        cells = sum(
            about.row_group(group).column(column).num_values
            for group in range(about.num_row_groups)
            for column in range(about.num_columns)
        )
        _check_size(path, 8 * cells)
        content = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as fault:
        raise _unreadable(path, "a readable Parquet file", fault) from None
    columns = [
        _parquet_column(path, name, content.column(name).combine_chunks())
        for name in content.column_names
    ]
    if not columns:
        raise InputError(f"{path}: must have one column per table, got none.")
    return build_index_data(
        str(path),
        indices=np.concatenate([values for values, _ in columns]),
        lengths=np.stack([lengths for _, lengths in columns]),
        names=tuple(content.column_names),
    )


def _parquet_column(path: Path, name: str, column: Any) -> tuple[Any, Any]:
    import pyarrow

    if column.null_count:
        raise InputError(f"{path}, column {name!r}: must not have empty cells; [] is an empty bag.")
    if pyarrow.types.is_list(column.type) or pyarrow.types.is_large_list(column.type):
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        values = column.flatten()
    else:
        lengths, values = np.ones(len(column), np.int64), column
    kind = values.type
    if values.null_count or not (pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)):
        raise InputError(f"{path}, column {name!r}: must hold whole numbers, got {kind}.")
    return values.to_numpy(zero_copy_only=False), lengths


def _load_torch(path: Path) -> IndexData:
    """Read (indices, offsets, lengths); lengths are tables x samples."""
    try:
        import torch
    except ImportError:
        raise InputError(
            f"{path}: reading torch files needs torch. Run `pip install torch==2.13.0`."
        ) from None
    try:
        if zipfile.is_zipfile(path):
            _check_archive(path)
        with warnings.catch_warnings():
            # What torch warns of (another pickle protocol) is read or refused all the same.
            warnings.simplefilter("ignore")
            content: Any = torch.load(path, weights_only=True, map_location="cpu")
    except _UNREADABLE as fault:
        raise _unreadable(path, "a torch file of plain tensors", fault) from None
    is_three = isinstance(content, tuple | list) and len(content) == 3
    if not is_three or not all(isinstance(part, torch.Tensor) for part in content):
        raise InputError(
            f"{path}: must hold three tensors (indices, offsets, lengths), "
            f"got {type(content).__name__}."
        )
    indices, offsets, lengths = (part.numpy() for part in content)
    data = build_index_data(str(path), indices=indices, lengths=lengths)
    bags = lengths_from_offsets(
        str(path),
        offsets,
        index_count=len(data.indices),
        table_count=len(data.lengths),
        sample_count=data.sample_count,
    )
    if bags.shape != data.lengths.shape or (bags != data.lengths).any():
        raise InputError(f"{path}: ragged: offsets and lengths describe different bags.")
    return data


READERS: dict[str, Callable[[Path], IndexData]] = {
    ".npz": _load_npz,
    ".parquet": _load_parquet,
    ".pt": _load_torch,
    ".pth": _load_torch,
}
"""The reader of every file ending."""
