"""Recorded outputs: what import, replay and trace print and write.

Names come from traces, so they are printed as plain text and never as markup.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import InputError
from perfmodel.reports.text import printable

if TYPE_CHECKING:
    from traces.packed import Limits

WIDTH = 100
_PARTS = ("lookup", "gemm", "memory", "communication", "other", "idle")


def limits_of(factor: float) -> Limits:
    """The usual limits of files, *factor* times as high."""
    from traces.packed import DEFAULT_LIMITS

    if not 0 < factor <= 1e6:
        raise InputError(f"--limits-factor: must be above 0 and at most 1000000, got {factor}.")
    return DEFAULT_LIMITS.scaled(factor)


class FileProgress:
    """Says which file is read and how fast: a bar on a terminal, else a line every ten seconds."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._is_quiet = is_quiet
        self._stack = ExitStack()
        self._since_s = time.monotonic()
        self._read_bytes = 0
        self._last_bytes = 0

    def __enter__(self) -> FileProgress:
        from perfmodel.reports.progress import show_progress

        self._bar = self._stack.enter_context(show_progress(is_quiet=self._is_quiet))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def tell(self, path: Path, place: int, count: int) -> None:
        """The file *path*, number *place* of *count*, is read next; behind the last, all are."""
        self._read_bytes += self._last_bytes
        self._last_bytes = path.stat().st_size
        rate = self._read_bytes / 1e6 / max(time.monotonic() - self._since_s, 1e-3)
        said = f"reading {printable(path.name)} ({place + 1} of {count}, {rate:.1f} MB/s)"
        if place == count:
            said = f"matching and replaying {count} ranks (read at {rate:.1f} MB/s)"
        self._bar(said, place / count)


def print_import(document: dict[str, Any]) -> None:
    """What was found in the traces of a job."""
    _say(f"{document['job']}  ->  {document['folder']}", style="bold")
    if document["self_replay"] is None:
        _print_shapes(document)
        return
    _say(
        f"  {document['ranks']} ranks, {document['events_read']:,} events read, "
        f"{document['launches_linked']:,} of {document['device_tasks']:,} launches linked, "
        f"{document['collectives_matched']} of {document['collectives']} collective kernels "
        f"matched in {document['rendezvous']} rendezvous, {document['steps']} step(s)"
    )
    _say_score(document["self_replay"])
    say_known_work(document["known_work"])
    for reason, count in document["recorded_starts"].items():
        _say(f"  starts taken from the recording: {reason}: {count}")
    _say_faults(document)
    _say_trust(document)


def _print_shapes(document: dict[str, Any]) -> None:
    work = ", ".join(f"{count:,} {kind}" for kind, count in document["work"].items())
    _say(
        f"  {document['ranks']} ranks, {document['operators_read']:,} operators read from "
        f"{document['source']}, {document['device_tasks']:,} device tasks ({work})"
    )
    if document["known_work"]["device_time_ms"]:
        say_known_work(document["known_work"])
    else:
        _say("  it has shapes and no durations: `predict --job` prices it on a --topology")
    for sentence in document["assumptions"]:
        _say(f"  assumed: {sentence}")
    _say_faults(document)
    _say_trust(document)


def say_known_work(known: dict[str, Any]) -> None:
    """How much of the device time another machine can be priced for."""
    _say(
        f"  device time with known work: {known['known_pct']:.1f} % ({known['counted_pct']:.1f} % "
        f"counted from shapes and sizes, {known['estimated_pct']:.1f} % estimated from launches; "
        "estimates scale with their family)"
    )


def _say_trust(document: dict[str, Any]) -> None:
    score = document["self_replay"]
    is_replayed_badly = score is not None and not score["is_trusted"] and not score["faults"]
    if not document["is_trusted"] and not is_replayed_badly:
        _say("  not trusted, because of these faults (--strict refuses them)", style="red")


def print_replay(document: dict[str, Any]) -> None:
    """How long a job takes, and how well a recorded one replays itself."""
    _say(f"{document['job']}: {document['iteration_time_ms']:.3f} ms a step", style="bold")
    _say(
        f"  {document['ranks']} ranks, {document['tasks']:,} tasks, "
        f"{document['span_ms']:.3f} ms from the first to the last"
    )
    if "self_replay" in document:
        _say_score(document["self_replay"])
        for part in (*document["self_replay"]["periods"], *document["self_replay"]["ranks"]):
            _say(
                f"    {part['name']:12s} recorded {part['recorded_ms']:10.3f} ms, "
                f"replayed {part['replayed_ms']:10.3f} ms ({part['error_pct']:+.2f} %)"
            )
    for sentence in document["assumptions"]:
        _say(f"  assumed: {sentence}")
    _say_faults(document)


def print_stream_parts(document: dict[str, Any]) -> None:
    """What every stream spent its time on, in percent."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(str(document["job"])), title_justify="left", box=None)
    for heading in ("rank", "stream", "tasks", "window ms", *_PARTS):
        table.add_column(heading, justify="right")
    for stream in document["streams"]:
        window_ms = stream["window_ms"] or 1.0
        shares = [f"{100 * stream['parts_ms'][part] / window_ms:.1f} %" for part in _PARTS]
        first = (str(stream["rank"]), str(stream["stream"]), str(stream["tasks"]))
        table.add_row(*first, f"{window_ms:.2f}", *shares)
    Console(width=WIDTH, highlight=False).print(table)
    say_known_work(document["known_work"])


def print_diff(document: dict[str, Any], *, top: int) -> None:
    """What takes longer in one recording than in the other, a table for each way to list it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    before_ms, after_ms = document["step_ms"]
    _say(f"{document['before']}  ->  {document['after']}", style="bold")
    _say(
        f"  a step: {before_ms:.3f} ms -> {after_ms:.3f} ms ({document['change_ms']:+.3f} ms, "
        f"{100 * document['change_ms'] / max(before_ms, 1e-9):+.1f} %); "
        f"{document['same_tasks_pct']:.1f} % of the tasks are the same in the same order"
    )
    for kind, lines in document["by"].items():
        table = Table(title=f"by {kind}", title_justify="left", box=None)
        table.add_column("ms before", justify="right")
        for heading in ("after", "change", "count", "after"):
            table.add_column(heading, justify="right")
        table.add_column(kind)
        for line in lines[:top]:
            counts = [f"{line[key]:g}" for key in ("before_count", "after_count")]
            times = [f"{line['before_ms']:.3f}", f"{line['after_ms']:.3f}"]
            name = Text(printable(line["name"])[:56])
            table.add_row(*times, f"{line['change_ms']:+.3f}", *counts, name)
        if lines:
            Console(width=WIDTH, highlight=False).print(table)


def _say_score(score: dict[str, Any]) -> None:
    _say(
        f"  self-replay: iteration {score['iteration']['recorded_ms']:.3f} ms recorded, "
        f"{score['iteration_error_pct']:+.2f} % (worst {score['worst_error_pct']:.2f} %); "
        f"collective starts off by {score['collective_start_median_error_us']:.0f} us (median)"
    )
    _say(
        f"  critical path on the host: {score['critical_path_on_host_pct']:.1f} %; device starts "
        f"that nothing explains: {score['unexplained_delay_pct']:.2f} % of the time"
    )
    if not score["is_trusted"] and not score["faults"]:
        _say("  it replays badly: what-ifs on this job need --force", style="red")


def _say_faults(document: dict[str, Any]) -> None:
    for fault in document.get("faults", ()):
        _say(f"  fault: {fault}", style="yellow")
    for rank in document.get("per_rank", ()):
        for fault in rank["faults"]:
            _say(f"  fault: rank {rank['rank']}: {fault}", style="yellow")


def _say(sentence: str, *, style: str = "") -> None:
    from rich.console import Console
    from rich.text import Text

    Console(width=WIDTH, highlight=False).print(Text(printable(sentence), style=style))
