"""Answers are formatted in one place: as blocks of `perfmodel.reports`, drawn by renderers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfmodel.reports import blocks
from perfmodel.reports.html import to_page
from perfmodel.reports.showing import VIEWS
from perfmodel.reports.terminal import to_text
from tests.reports.predictions import build_evidence

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = ("perfmodel", "collectives", "embeddings", "topologies", "traces")
ALIGNED = re.compile(r"[<>^]\d+")
FORMATTERS = {"format_duration", "format_size", "format_bandwidth", "to_text", "to_page"}


def iter_modules() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((CHECKOUT / package).rglob("*.py")):
            yield path.relative_to(CHECKOUT).as_posix(), ast.parse(path.read_text())


TIMING = "perfmodel/extensions/measurements/calibration/timing_script.py"


def is_command(path: str) -> bool:
    """Whether the module at *path* holds commands, of the core or of an extension."""
    # The script that times kernels runs alone, without perfmodel.
    commands = ("perfmodel/cli/", "perfmodel/extensions/ui/", TIMING)
    return path.startswith(commands) or "commands" in path


def imported(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize(
    ("library", "renderers"),
    [
        ("rich", {"perfmodel/reports/terminal.py"}),
        # Machine files of other programs are written by a template, too.
        (
            "jinja2",
            {"perfmodel/reports/html.py", "perfmodel/extensions/formats/machines/host.py"},
        ),
    ],
)
def test_only_a_renderer_knows_the_library_it_draws_with(library, renderers):
    assert {path for path, tree in iter_modules() if library in imported(tree)} == renderers


def test_answers_are_printed_by_the_terminal_renderer_and_notices_by_commands():
    printing = {
        path
        for path, tree in iter_modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "print"
        and "file" not in {keyword.arg for keyword in node.keywords}
    }

    assert {path for path in printing if not is_command(path)} == {"perfmodel/reports/terminal.py"}


def test_commands_format_no_number():
    found = []
    for path, tree in iter_modules():
        if not is_command(path):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
                spec = ast.unparse(node.format_spec)[2:-1]
                found += [] if ALIGNED.fullmatch(spec) else [f"{path}:{node.lineno}: {spec}"]
            if isinstance(node, ast.Name) and node.id in FORMATTERS - {"to_page"}:
                found.append(f"{path}:{node.lineno}: {node.id}")

    # The limit that a mean error was beyond is part of an error, not of an answer.
    assert [
        one
        for one in found
        if not one.startswith("perfmodel/extensions/measurements/commands/validate.py")
    ] == []


SAMPLES = {
    blocks.Table: lambda: blocks.Table(("name", "time"), [["here it is", "1 ms"]], (1,)),
    blocks.Sentences: lambda: blocks.Sentences(["here it is"]),
    blocks.Bars: lambda: blocks.Bars(
        [blocks.Bar([blocks.BarPart("here it is", blocks.Look.GREEN, "1 ms", 1.0)])]
    ),
    blocks.TimelineBlock: lambda: blocks.TimelineBlock(build_evidence(label="here it is")),
    blocks.Plot: lambda: blocks.Plot(
        [blocks.Point(1.0, 1.0, "here it is"), blocks.Point(2.0, 2.0, "")], "x", "y"
    ),
    blocks.Command: lambda: blocks.Command("here it is"),
}
ON_PAGES_ONLY = (blocks.TimelineBlock, blocks.Plot)


def test_there_is_a_sample_of_every_block():
    assert set(SAMPLES) == set(blocks.Block.__args__)


@pytest.mark.parametrize("kind", SAMPLES, ids=lambda kind: kind.__name__)
def test_every_renderer_draws_every_block(kind):
    report = blocks.Report("Title", sections=[blocks.Section("Heading", [SAMPLES[kind]()])])

    assert "here it is" in to_page(report)
    assert ("here it is" in to_text(report)) == (kind not in ON_PAGES_ONLY)


def test_every_kind_of_answer_has_one_report():
    reports = [view.report for view in VIEWS.values()]

    assert len(set(reports)) == len(reports)
