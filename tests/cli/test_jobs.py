"""`import`, `replay` and `trace` as typed by a person."""

import shutil
import subprocess
import sys

import pytest

from tests.traces.builders import kernel, launch, write_trace


@pytest.fixture
def folder(tmp_path):
    traces = tmp_path / "traces"
    traces.mkdir()
    for rank in (0, 1):
        spans = []
        for step in range(3):
            at = 1000 * step
            spans += [
                launch(2 * step, at), kernel(2 * step, at + 7, 100, name="[red]sgemm[/]"),
                launch(2 * step + 1, at + 200),
                kernel(2 * step + 1, at + 207, 50, stream=20, name="ncclDevKernel_AllReduce_x"),
            ]  # fmt: skip
        info = {"rank": rank, "world_size": 2}
        write_trace(traces / f"rank{rank}.json.gz", spans, distributedInfo=info)
    return traces


def test_a_folder_is_imported_and_replayed(folder, tmp_path, typed, ask):
    told = typed("import", folder, "--out", tmp_path / "job").out
    assert "per iteration, recorded" in told

    document = ask("replay", tmp_path / "job")
    assert document["kind"] == "replay"
    score = document["self_replay"]
    # The same collective ends every 1000 us.
    assert [round(period["recorded_ms"], 6) for period in score["periods"]] == [1.0, 1.0]
    assert abs(score["iteration_error_pct"]) < 0.01
    assert len(score["ranks"]) == 2


HEAVY = ("pandas", "scipy.special", "matplotlib", "torch", "ray", "perfmodel.costs")


@pytest.mark.parametrize(
    ("words", "heavy", "said"),
    [
        ("import {} --out job", HEAVY, "per iteration, recorded"),
        ("trace diff {} {}", ("numba", *HEAVY), "traces"),
    ],
)
def test_a_command_on_traces_loads_no_more_than_it_needs(folder, tmp_path, words, heavy, said):
    code = (
        "import sys\n"
        "from perfmodel.cli import main\n"
        f"try:\n    main({[word.format(folder) for word in words.split()]!r})\n"
        "except SystemExit:\n    pass\n"
        f"print('heavy:', [name for name in {heavy!r} if name in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)

    assert said in shown.stdout
    assert shown.stdout.splitlines()[-1] == "heavy: []"


def test_an_import_is_written_as_json(folder, tmp_path, ask):
    first = ask("import", folder, "--out", tmp_path / "job")
    assert first["events_read"] == 24
    assert first["collectives_matched"] == 6
    assert first["steps"] == 3
    assert first["recorded_starts"]["first call of a chain"] == 2


def test_trace_stats_shows_every_stream(folder, typed, ask):
    assert "communication" in typed("trace stats", folder).out
    assert len(ask("trace stats", folder)["streams"]) == 4


def test_several_jobs_are_one_document(folder, tmp_path, ask):
    for name in ("a", "b"):
        shutil.copytree(folder, tmp_path / "runs" / name)
    document = ask("import", tmp_path / "runs", "--out", tmp_path / "jobs")
    assert document["kind"] == "imports"
    assert [job["job"] for job in document["jobs"]] == ["a", "b"]
    assert [job["job"] for job in ask("trace stats", tmp_path / "runs")["jobs"]] == ["a", "b"]


def test_tables_are_extracted(folder, tmp_path, typed):
    shown = typed("trace extract --topology dgx1_v100", folder, "--out", tmp_path / "t")
    assert "host_overheads.csv" not in shown.err


@pytest.mark.parametrize(
    "words",
    [
        "import absent --out job",
        "replay absent",
        "trace stats absent.json",
    ],
)
def test_what_is_not_there_gives_one_clear_line(words, tmp_path, monkeypatch, typed):
    monkeypatch.chdir(tmp_path)
    assert typed(words, code=1).said.startswith("perfmodel: ")
