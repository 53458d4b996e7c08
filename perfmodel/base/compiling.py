"""Compiled functions, and where their machine code is cached.

numba keeps machine code next to the sources or in the user's own cache folder, and runs what it
finds there. Where neither can be written, or others can write to it as well (a home in the
temporary directory), a private folder of the temporary directory serves. Without such a folder,
every process compiles for itself. A damaged entry, as a full disk leaves one, is removed and
compiled again: its checksum does not fit, and machine code of a broken file is never run. So is
one of other sources: compiled functions contain those of other modules, which numba does not see.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import config
from numba.core.caching import IndexDataCacheFile
from numba.core.event import Listener, install_listener

from perfmodel.base.identity import locate_packages
from perfmodel.base.writing import PRIVATE, is_private

_Function = TypeVar("_Function", bound=Callable[..., Any])


def own_folder(path: Path) -> bool:
    """Whether *path*, made if absent, is a folder that only this user may read and write."""
    with suppress(OSError):
        path.mkdir(mode=PRIVATE, exist_ok=True)
    return is_private(path)


def can_be_replaced(path: Path) -> bool:
    """Whether other users, but for root, can write to *path* or put another in its place."""
    for place in (path, *path.parents):
        found = place.stat()
        # In a folder with the sticky bit others can add, but neither rename nor remove.
        is_sticky = place != path and bool(found.st_mode & stat.S_ISVTX)
        is_open = bool(found.st_mode & stat.S_IWOTH) and not is_sticky
        if is_open or found.st_uid not in (0, os.getuid()):
            return True
    return False


def _cache_place() -> Path | None:
    """Where numba would keep machine code."""
    try:
        probe: Any = numba.njit(cache=True)(own_folder)
    except RuntimeError:
        # numba found no folder that it may write.
        return None
    return Path(probe.stats.cache_path).resolve()


def _choose_cache() -> bool:
    """Whether compiled code can be cached, after the folder for it was chosen."""
    usual = _cache_place()
    if usual is not None and not can_be_replaced(usual):
        return True
    folder = Path(tempfile.gettempdir()) / f"perfmodel-kernels-{os.getuid()}"
    if not own_folder(folder):
        return False
    config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]  # set when numba is loaded
    return _cache_place() is not None


CACHES = _choose_cache()


def cache_folder() -> str:
    """Where machine code is kept, or why it is not."""
    place = _cache_place() if CACHES else None
    if place is None:
        return "nowhere: no folder that only this user can write"
    beside = place.name == "__pycache__" and "the same folder beside every module, such as "
    return f"{beside or ''}{place}"


class _CheckedFiles(IndexDataCacheFile):
    """The cached code of a function. Every file of code begins with its checksum."""

    @property
    def _source_stamp(self) -> tuple[Any, str]:
        """What the index must say for its code to be run."""
        return self.__dict__["_source_stamp"], compiled_sources()

    def _load_index(self) -> Any:
        try:
            return super()._load_index()  # type: ignore[no-untyped-call]  # numba's
        # What a damaged pickle raises is open.
        except Exception:
            Path(self._index_path).unlink(missing_ok=True)
            return {}

    def _load_data(self, name: str) -> Any:
        path = Path(self._data_path(name))  # type: ignore[no-untyped-call]  # numba's
        content = path.read_bytes()
        code = content[_CHECKSUM_BYTES:]
        if hashlib.sha256(code).digest() != content[:_CHECKSUM_BYTES]:
            path.unlink(missing_ok=True)
            # numba takes this for a file that was removed, and compiles.
            raise FileNotFoundError(path)
        return pickle.loads(code)  # noqa: S301  a private file that this class has written

    def _save_data(self, name: str, data: Any) -> None:
        code = self._dump(data)  # type: ignore[no-untyped-call]  # numba's
        with self._open_for_write(self._data_path(name)) as file:  # type: ignore[no-untyped-call]  # numba's
            file.write(hashlib.sha256(code).digest() + code)


_CHECKSUM_BYTES = hashlib.sha256().digest_size


@cache
def compiled_sources() -> str:
    """A hash of all modules with compiled functions."""
    digest = hashlib.sha256()
    for folder in filter(None, locate_packages().values()):
        for path in sorted(folder.rglob("*.py")):
            if (content := path.read_bytes()).find(__name__.encode()) >= 0:
                digest.update(content)
    return digest.hexdigest()


def compiled(function: _Function, **options: Any) -> _Function:
    """*function* as machine code that runs without Python's lock; *options* as numba has them."""
    made: Any = numba.njit(**{"cache": CACHES, "nogil": True, **options})(function)
    if isinstance(files := getattr(made._cache, "_cache_file", None), IndexDataCacheFile):
        files.__class__ = _CheckedFiles
    found: _Function = made
    return found


class _CompileListener(Listener):
    def __init__(self, tell: Callable[[bool], None]) -> None:
        self._tell = tell

    def on_start(self, _: object) -> None:
        self._tell(True)

    def on_end(self, _: object) -> None:
        self._tell(False)


@contextmanager
def watch_compiling(tell: Callable[[bool], None]) -> Iterator[None]:
    """Call *tell* with true when a function begins to be compiled, and with false at its end.

    Machine code that is found in the cache is not compiled.
    """
    with install_listener("numba:compile", _CompileListener(tell)):
        yield
