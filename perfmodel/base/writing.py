"""Writing: files appear whole under their name, or not at all.

A draft next to the target is filled, flushed to the disk and renamed in one step. An error of the
system (disk full, folder missing, no permission) becomes one sentence, and no partial file stays.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from perfmodel.base.errors import OutputError
from perfmodel.base.units import is_number

STDOUT = "-"
"""Typed instead of a file name: standard output."""
_FORMULA = ("=", "+", "-", "@")
"""What spreadsheets take for the beginning of a formula."""


PRIVATE = 0o700
"""The mode of a folder that only its user may read and write."""


def is_private(folder: Path) -> bool:
    """Whether *folder* is a folder of this user that others may neither read nor write."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return is_ours and stat.S_IMODE(found.st_mode) == PRIVATE


def check_writable(option: str, path: Path) -> None:
    """Raise unless *path* can become a file, before any work is done for it."""
    if path.is_dir():
        raise OutputError(f"{option} {path}: must be a file, but it is a directory.")
    if not path.parent.is_dir():
        raise OutputError(
            f"{option} {path}: the folder {path.parent} does not exist. Make it first."
        )
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OutputError(f"{option} {path}: may not be written. Choose another place.")


def check_apart(files: Mapping[str, Path | None]) -> None:
    """Raise where two options (the keys) name one file: the second would replace the first."""
    seen: dict[Path, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        place = path.absolute()
        if place in seen:
            raise OutputError(
                f"{option} {path}: is also the output of {seen[place]}. Name another file."
            )
        seen[place] = option


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """A file to fill in place of *path*, which takes its name once the block has ended well.

    A device or a pipe keeps its name and gets the content; a link stays a link.
    """
    if path.exists() and not path.is_file():
        with _draft_for_stream(path) as draft:
            yield draft
        return
    path = path.resolve() if path.is_symlink() else path
    with _as_output_error(path):
        handle, name = tempfile.mkstemp(
            prefix=f".{path.name[:32]}-", suffix=path.suffix, dir=path.parent
        )
        os.close(handle)
    draft = Path(name)
    try:
        yield draft
        with _as_output_error(path):
            draft.chmod(0o666 & ~_UMASK)
            _flush(draft)
            draft.replace(path)
    except OSError as fault:
        raise _sentence(path, fault) from None
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _draft_for_stream(path: Path) -> Iterator[Path]:
    with _as_output_error(path), tempfile.TemporaryDirectory() as place:
        draft = Path(place) / f"draft{path.suffix}"
        yield draft
        with draft.open("rb") as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)


def write_file(path: Path, content: str | bytes) -> None:
    """Write *content* to *path*, whole or not at all."""
    with draft_of(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


def write_output(target: str | None, text: str) -> None:
    """Write *text* to the file *target*, to standard output for `-`, or nowhere."""
    if target == STDOUT:
        sys.stdout.write(text)
    elif target is not None:
        write_file(Path(target), text)


def printable(text: str) -> str:
    """*text* with control characters replaced by question marks."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def printable_lines(text: str) -> str:
    """*text* with control characters replaced, but for the ends of its lines."""
    return "\n".join(map(printable, text.split("\n")))


def _cell(value: Any) -> Any:
    """*value* for a cell of a CSV file: text that a spreadsheet would run is quoted."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(_FORMULA) and not is_number(text) else text


def to_json(document: Mapping[str, Any]) -> str:
    """*document* as text, the same bytes for the same values."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(target: str | None, document: Mapping[str, Any]) -> None:
    """Write *document* where `write_output` writes text."""
    if target is not None:
        write_output(target, to_json(document))


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write *rows* to *path*, a column for every key; empty where a row does not have it."""
    text = io.StringIO()
    keys = dict.fromkeys(key for row in rows for key in row)
    writer = csv.DictWriter(text, fieldnames=list(keys), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    write_file(path, text.getvalue())


@contextmanager
def draft_folder_of(folder: Path) -> Iterator[Path]:
    """A folder to fill in place of *folder*; the old one stays until the new one is whole.

    A second writer of the same folder is refused while the first is at work.
    """
    with _as_output_error(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        with _as_output_error(folder):
            recover_folder(folder)
            # One writer has the lock, so a draft that is there was left by one that was killed.
            draft = folder.parent / f".{folder.name}.draft"
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(mode=PRIVATE)
        try:
            yield draft
            with _as_output_error(folder):
                draft.chmod(0o777 & ~_UMASK)
                for path in draft.rglob("*"):
                    _flush(path)
                _exchange(draft, folder)
        except OSError as fault:
            raise _sentence(folder, fault) from None
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def recover_folder(folder: Path) -> None:
    """Put back the old *folder* where a writer was killed between its two renames.

    One that another user made is not ours.
    """
    kept = _kept_name(folder)
    is_ours = kept.is_dir() and not kept.is_symlink() and kept.stat().st_uid == os.getuid()
    if is_ours and not folder.exists():
        kept.rename(folder)


def _exchange(draft: Path, folder: Path) -> None:
    kept = _kept_name(folder)
    if folder.exists():
        shutil.rmtree(kept, ignore_errors=True)
        folder.rename(kept)
    draft.rename(folder)
    _flush(folder.parent)
    shutil.rmtree(kept, ignore_errors=True)


def _kept_name(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.old"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    path = folder.parent / f".{folder.name}.lock"
    try:
        with _as_output_error(folder):
            lock = _take_lock(path)
    except BlockingIOError:
        raise OutputError(
            f"{folder}: another process is writing it. Wait for it, or name another folder."
        ) from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(lock)


def _take_lock(path: Path) -> int:
    """The open file at *path*, locked by this process alone."""
    while True:
        # In a folder of all users, a link may lead to a file of ours.
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous owner may have removed it, and another process made a new one.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), path.stat()):
                    return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _as_output_error(path: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError:
        # Another process is writing it.
        raise
    except OSError as fault:
        raise _sentence(path, fault) from None


def _sentence(path: Path, fault: OSError) -> OutputError:
    reason = fault.strerror or type(fault).__name__
    return OutputError(
        f"{path}: cannot be written ({reason}). Nothing was left behind; make room or name "
        "another place."
    )


def _read_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


_UMASK = _read_umask()
"""Drafts are made private; what they become has the rights that any new file has."""
