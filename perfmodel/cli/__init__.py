"""The command line: words typed by a person, one module a word.

Only the module of the word that was typed is imported, and it imports what is
heavy inside its functions, so that `perfmodel --help` answers at once.
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
from perfmodel.cli.words import build_app, check_not_repeated

DEBUG = "--debug"
COLLECTED_AFTER = (100_000, 20, 20)
"""New objects before Python looks for rubbish; then how often it looks among older ones, too."""
MOST_LINE = 2000
"""Characters of a line of a complaint."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command in *arguments* (those of the process by default) and exit."""
    # Importing makes much that stays: looking for rubbish among it is a tenth of a short command.
    gc.set_threshold(*COLLECTED_AFTER)
    given = sys.argv[1:] if arguments is None else arguments
    words = [word for word in given if word != DEBUG]
    sys.exit(_run(words, is_debug=DEBUG in given))


def _run(words: list[str], *, is_debug: bool) -> int:
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a letter shows a question mark in its place.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app = build_app(words)
        check_not_repeated(app, words)
        app(args=words, prog_name="perfmodel")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (`head`, a pager) has seen enough. What is still buffered must
        # not complain again when the interpreter closes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as fault:  # The one place that catches broadly.
        _report(fault, is_debug=is_debug)
        return 1
    return 0


def _report(fault: Exception, *, is_debug: bool) -> None:
    if is_debug:
        traceback.print_exception(fault)
        return
    sentence = _sentence(fault)
    if sentence is None:
        sentence = (
            f"internal fault: {type(fault).__name__}: {fault}\n"
            f"This is a mistake in perfmodel, not in your input. Run again with {DEBUG} to see "
            "where it happened."
        )
    print(f"perfmodel: {sentence}", file=sys.stderr)


NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
MAKE_ROOM = (
    "Make room on the disk: beside what was asked for, compiled code is kept next to perfmodel, or "
    "in the folder that NUMBA_CACHE_DIR names."
)


def _sentence(fault: Exception) -> str | None:
    """What to tell about a fault that is not a mistake of ours, or None."""
    if isinstance(fault, PerfModelError):
        return "\n".join(map(_shortened, str(fault).split("\n")))
    if isinstance(fault, ModuleNotFoundError) and fault.name == "torch":
        return "this needs torch, which is not installed. pip install 'perfmodel[emulate]' adds it."
    if isinstance(fault, OSError):
        where = f"{fault.filename}: " if fault.filename else ""
        said = f"{where}the system refuses ({fault.strerror or type(fault).__name__})."
        return f"{said} {MAKE_ROOM}" if fault.errno in NO_ROOM else said
    if isinstance(fault, MemoryError):
        return "there is not enough memory on this machine for it. Ask for less, or use Ray."
    return None


def _shortened(line: str) -> str:
    """A line without its middle, if a file has filled it; what to do stands at the end."""
    return line if len(line) <= MOST_LINE else f"{line[: MOST_LINE - 500]} ... {line[-500:]}"
