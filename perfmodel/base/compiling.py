"""Compiled functions, and where their machine code is cached.

numba keeps machine code next to the sources or in the user's own cache folder. Where neither can
be written, a folder in the temporary directory serves, if it is ours alone: numba loads code from
it. Without such a folder, every process compiles for itself.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import config

from perfmodel.base.writing import PRIVATE, is_private

_Function = TypeVar("_Function", bound=Callable[..., Any])


def own_folder(path: Path) -> bool:
    """Whether *path*, made if absent, is a folder that only this user may read and write."""
    with suppress(OSError):
        path.mkdir(mode=PRIVATE, exist_ok=True)
    return is_private(path)


def _can_cache() -> bool:
    try:
        numba.njit(cache=True)(own_folder)
    except RuntimeError:
        # numba found no folder that it may write.
        return False
    return True


def _choose_cache() -> bool:
    """Whether compiled code can be cached, after the folder for it was chosen."""
    if _can_cache():
        return True
    folder = Path(tempfile.gettempdir()) / f"perfmodel-kernels-{os.getuid()}"
    if own_folder(folder):
        config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]  # set when numba is loaded
    return _can_cache()


CACHES = _choose_cache()


def compiled(function: _Function, **options: Any) -> _Function:
    """*function* as machine code that runs without Python's lock; *options* as numba has them."""
    made: _Function = numba.njit(**{"cache": CACHES, "nogil": True, **options})(function)
    return made
