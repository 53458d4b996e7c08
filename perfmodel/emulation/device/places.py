"""Places: which line of the user's script is at work, for messages and labels."""

from __future__ import annotations

import sys
import sysconfig
import threading
from pathlib import Path
from types import FrameType

import torch

_LIBRARIES = tuple(
    str(Path(folder)) + "/"
    for folder in {
        Path(torch.__file__).parent,
        Path(__file__).parents[1],
        Path(sysconfig.get_paths()["stdlib"]),
        Path(sysconfig.get_paths()["purelib"]),
        Path(sysconfig.get_paths()["platlib"]),
    }
)


def is_user_code(filename: str) -> bool:
    """Whether a file is neither a library nor generated code."""
    return not filename.startswith(("<", *_LIBRARIES))


def script_line(frame: FrameType | None = None) -> str:
    """The innermost line of the user's code, such as `train.py:41`.

    The thread of a backward pass has no such line; then it is that of the main
    thread, which waits in `backward`.
    """
    at = frame or sys._getframe(1)
    found = _innermost(at)
    if found is None:
        main = threading.main_thread().ident
        found = _innermost(sys._current_frames().get(main or 0))
    if found is None:
        return "no line of the script"
    return f"{_short(found.f_code.co_filename)}:{found.f_lineno}"


def _innermost(frame: FrameType | None) -> FrameType | None:
    while frame is not None and not is_user_code(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _short(filename: str) -> str:
    try:
        return str(Path(filename).relative_to(Path.cwd()))
    except ValueError:
        return filename
