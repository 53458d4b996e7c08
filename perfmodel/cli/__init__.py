"""The command-line interface: `main` runs the command that was typed.

Only the module of that command is imported, and it imports what is heavy inside its functions, so
that `perfmodel --help` answers at once.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
import traceback
from typing import NoReturn

from perfmodel.base.errors import PerfModelError
from perfmodel.base.writing import printable_lines
from perfmodel.cli.commands import app

DEBUG = "--debug"
COLLECTED_AFTER = (100_000, 20, 20)
"""Thresholds of Python's garbage collector, in new objects and in rounds."""
MOST_LINE = 2000
"""Characters per line of an error message."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command in *arguments* (those of the process by default) and exit."""
    # Imports create many objects that stay: scanning them takes a tenth of a short command.
    gc.set_threshold(*COLLECTED_AFTER)
    given = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a letter shows a question mark instead.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    code: object = 0
    try:
        app(args=[word for word in given if word != DEBUG], prog_name="perfmodel")
    except SystemExit as stop:
        code = stop.code
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        # The reader (`head`, a pager) has closed the pipe. What is still buffered must not raise
        # again when the interpreter closes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as fault:  # The one place that catches broadly.
        _report(fault, is_debug=DEBUG in given)
        code = 1
    sys.exit(code if isinstance(code, int) else 1)


def _report(fault: Exception, *, is_debug: bool) -> None:
    if is_debug:
        traceback.print_exception(fault)
        return
    sentence = _sentence(fault)
    if sentence is None:
        sentence = (
            f"internal fault: {type(fault).__name__}: {fault}\n"
            f"This is a bug of perfmodel, not a mistake in your input. Run again with {DEBUG} to "
            "see the traceback."
        )
    # Names in a message come from files, and must not control the terminal.
    print(f"perfmodel: {printable_lines(sentence)}", file=sys.stderr)


NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
MAKE_ROOM = (
    "Make room on the disk: compiled code is cached next to perfmodel, or in the folder that "
    "NUMBA_CACHE_DIR names."
)


def _sentence(fault: Exception) -> str | None:
    """The message for a fault that is not a bug of perfmodel, or None."""
    if isinstance(fault, PerfModelError):
        return "\n".join(map(_shortened, str(fault).split("\n")))
    if isinstance(fault, ModuleNotFoundError) and fault.name == "torch":
        return "this needs torch, which is not installed. pip install 'perfmodel[emulate]' adds it."
    if isinstance(fault, OSError):
        where = f"{fault.filename}: " if fault.filename else ""
        said = f"{where}the system refused ({fault.strerror or type(fault).__name__})."
        return f"{said} {MAKE_ROOM}" if fault.errno in NO_ROOM else said
    if isinstance(fault, MemoryError):
        return (
            "this machine does not have enough memory for this question. Ask for less, or use Ray."
        )
    return None


def _shortened(line: str) -> str:
    """A line without its middle if it is very long; the advice is at the end."""
    return line if len(line) <= MOST_LINE else f"{line[: MOST_LINE - 500]} ... {line[-500:]}"
