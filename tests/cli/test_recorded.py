"""`import`, `replay` and `trace` as typed by a person."""

import json

import pytest

from perfmodel.cli import main
from tests.traces.builders import kernel, launch, write_trace


def run(*words):
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return stop.value.code


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


def test_a_folder_is_imported_and_replayed(folder, tmp_path, capsys):
    assert run("import", folder, "--out", tmp_path / "job") == 0
    told = capsys.readouterr().out
    assert "ranks                        2" in told
    assert "launches linked              12 of 12" in told
    assert "per iteration, recorded; replayed" in told

    assert run("replay", tmp_path / "job", "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "replay"
    score = document["self_replay"]
    # The same collective ends every 1000 us.
    assert [round(period["recorded_ms"], 6) for period in score["periods"]] == [1.0, 1.0]
    assert abs(score["iteration_error_pct"]) < 0.01
    assert len(score["ranks"]) == 2


def test_import_writes_what_it_found_as_json(folder, tmp_path, capsys):
    assert run("import", folder, "--out", tmp_path / "job", "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["events_read"] == 24
    assert document["collectives_matched"] == 6
    assert document["steps"] == 3
    assert document["recorded_starts"]["first call of a chain"] == 2


def test_a_job_goes_out_as_chakra_and_comes_back(folder, tmp_path, capsys):
    assert run("import", folder, "--out", tmp_path / "job", "--json", "-") == 0
    first = json.loads(capsys.readouterr().out)
    assert run("trace", "chakra", tmp_path / "job", "--out", tmp_path / "chakra") == 0
    capsys.readouterr()
    assert run("import", tmp_path / "chakra", "--out", tmp_path / "back", "--json", "-") == 0
    second = json.loads(capsys.readouterr().out)
    assert second["self_replay"] == first["self_replay"]


def test_trace_stats_shows_every_stream_and_draws_them(folder, tmp_path, capsys):
    picture = tmp_path / "streams.png"
    assert run("trace", "stats", folder, "--plot", picture) == 0
    assert "communication" in capsys.readouterr().out
    assert picture.read_bytes()[:4] == b"\x89PNG"

    assert run("trace", "stats", folder, "--json", "-") == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["streams"]) == 4


def test_tables_are_extracted(folder, tmp_path, capsys):
    assert run("trace", "extract", folder, "--topology", "dgx1_v100", "--out", tmp_path / "t") == 0
    assert "host_overheads.csv" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["import", "absent", "--out", "job"],
        ["replay", "absent"],
        ["trace", "stats", "absent.json"],
        ["trace", "chakra", "absent", "--out", "x"],
    ],
)
def test_what_is_not_there_gives_one_clear_line(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(*words) == 1
    told = capsys.readouterr().err
    assert told.startswith("perfmodel: ")
    assert "internal fault" not in told
