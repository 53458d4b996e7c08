"""The command line: words typed by a person, one module a word.

Only the module of the word that was typed is imported, and it imports what is
heavy inside its functions, so that `perfmodel --help` answers at once.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import NoReturn

from perfmodel.base.errors import PerfModelError
from perfmodel.cli.words import build_app

DEBUG = "--debug"


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command in *arguments* (those of the process by default) and exit."""
    given = sys.argv[1:] if arguments is None else arguments
    words = [word for word in given if word != DEBUG]
    sys.exit(_run(words, is_debug=DEBUG in given))


def _run(words: list[str], *, is_debug: bool) -> int:
    try:
        build_app(words)(args=words, prog_name="perfmodel")
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
    elif isinstance(fault, PerfModelError):
        print(f"perfmodel: {fault}", file=sys.stderr)
    else:
        print(
            f"perfmodel: internal fault: {type(fault).__name__}: {fault}\n"
            f"This is a mistake in perfmodel, not in your input. Run again with {DEBUG} to see "
            "where it happened.",
            file=sys.stderr,
        )
