"""Torch files of indices: the three tensors of facebookresearch/dlrm_datasets.

The only module here that imports torch. `weights_only` lets a file hold
tensors and nothing that could run.
"""

from __future__ import annotations

import pickle
import struct
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

from embeddings.index_data import IndexData, build_index_data, lengths_from_offsets
from embeddings.index_files import check_archive
from perfmodel.base.errors import InputError

_UNREADABLE = (
    pickle.UnpicklingError,
    RuntimeError,
    EOFError,
    OSError,
    ValueError,
    LookupError,
    AttributeError,
    TypeError,
    AssertionError,
    struct.error,
    MemoryError,
    zlib.error,
    zipfile.BadZipFile,
)
"""What the safe unpickler raises on junk."""


def load_torch_indices(path: Path) -> IndexData:
    """Read (indices, offsets, lengths); lengths are tables x samples."""
    try:
        import torch
    except ImportError:
        raise InputError(
            f"{path}: reading torch files needs torch. Install perfmodel[emulate]."
        ) from None
    try:
        if zipfile.is_zipfile(path):
            check_archive(path)
        with warnings.catch_warnings():
            # What torch warns of (another pickle protocol) is read or refused all the same.
            warnings.simplefilter("ignore")
            content: Any = torch.load(path, weights_only=True, map_location="cpu")
    except _UNREADABLE as fault:
        reason = str(fault).strip().splitlines()[0] if str(fault).strip() else type(fault).__name__
        raise InputError(f"{path}: not a torch file of plain tensors ({reason}).") from None
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
        raise InputError(f"{path}: ragged: offsets and lengths do not say the same bags.")
    return data
