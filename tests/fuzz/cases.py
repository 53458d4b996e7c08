"""Cases: a damaged file, read once, and what became of it.

Everything but an error of perfmodel's own tree is a defect: a traceback, more
than the time or the memory that a case may take. A case is named by its seed
and number and can be run again alone.
"""

from __future__ import annotations

import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

from perfmodel.base.errors import PerfModelError
from tests.fuzz.readers import Reader, build_readers

CASE_S, COMMAND_S = 20, 60
MEMORY_BYTES = 2 * 2**30


@dataclass(frozen=True)
class Outcome:
    """What became of a case; *detail* is the last line of a traceback."""

    number: int
    reader: str
    word: str
    detail: str = ""


class TookTooLongError(Exception):
    """The alarm of a case went off."""


def run_case(reader: Reader, seed: int, number: int) -> Outcome:
    """Damage a file, read it, and say what happened."""
    source = random.Random(seed * 1_000_003 + number)
    place = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        path = reader.make(place, source)
        signal.setitimer(signal.ITIMER_REAL, CASE_S)
        reader.read(path)
    except PerfModelError as fault:
        word = "refused" if len(str(fault).splitlines()) <= 40 else "refused at length"
        return Outcome(number, reader.name, word)
    except TookTooLongError:
        return Outcome(number, reader.name, "DEFECT: hangs", _where())
    except MemoryError:
        return Outcome(number, reader.name, "DEFECT: memory", _where())
    except BaseException as fault:
        return Outcome(number, reader.name, f"DEFECT: {type(fault).__name__}", _where())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        shutil.rmtree(place, ignore_errors=True)
    return Outcome(number, reader.name, "read")


def run_doors(seed: int, first: int, count: int) -> list[Outcome]:
    """Whole commands over damaged files of other programs, *first* to *first* + *count*."""
    from tests.fuzz.doors import run_door

    signal.signal(signal.SIGALRM, _on_alarm)
    outcomes = []
    for number in range(first, first + count):
        signal.setitimer(signal.ITIMER_REAL, COMMAND_S)
        try:
            outcomes.append(Outcome(number, *run_door(seed, number)))
        except TookTooLongError:
            outcomes.append(Outcome(number, "command", "DEFECT: hangs", _where()))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    return outcomes


def run_batch(seed: int, first: int, count: int) -> list[Outcome]:
    """Cases *first* to *first* + *count*, readers in turn."""
    signal.signal(signal.SIGALRM, _on_alarm)
    readers = build_readers()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    return [
        run_case(readers[number % len(readers)], seed, number)
        for number in range(first, first + count)
    ]


def _on_alarm(number: int, frame: object) -> None:
    raise TookTooLongError


def _where() -> str:
    _, value, trail = sys.exc_info()
    frames = [frame for frame in traceback.extract_tb(trail) if "/tests/" not in frame.filename]
    last = frames[-1] if frames else None
    place = "" if last is None else f"{Path(last.filename).name}:{last.lineno} {last.name}: "
    return f"{place}{value}"[:160]
