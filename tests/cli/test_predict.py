"""`perfmodel predict`: options, outputs, refusals."""

from __future__ import annotations

import json

import pytest

from perfmodel.cli import main

SMALL = ("predict", "--topology", "dgx_h100", "--workload", "dlrm_mlperf", "--samples", "4")


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    assert isinstance(stop.value.code, int)
    return stop.value.code


def refused(capsys, *words: object) -> str:
    """The one message of a command that exits with 1."""
    assert run(*words) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err
    assert shown.err.startswith("perfmodel: ")
    assert "internal fault" not in shown.err
    return str(shown.err)


def test_json_on_standard_output_is_nothing_but_json(capsys):
    assert run(*SMALL, "--json", "-") == 0

    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert document["schema_version"] == 1
    assert document["scenario"]["workload"] == "dlrm_mlperf"
    assert document["run"]["executor"] == "serial"
    assert shown.err == ""


def test_the_same_scenario_twice_is_the_same_bytes(capsys):
    answers = []
    for _ in range(2):
        assert run(*SMALL, "--json", "-", "--seed", 3) == 0
        document = json.loads(capsys.readouterr().out)
        del document["run"]
        answers.append(json.dumps(document))

    assert answers[0] == answers[1]


def test_another_seed_moves_the_interval_and_nothing_else(capsys):
    documents = []
    for seed in (0, 1):
        assert run(*SMALL, "--json", "-", "--seed", seed) == 0
        documents.append(json.loads(capsys.readouterr().out))
    first, second = documents

    assert first["interval_ms"] != second["interval_ms"]
    assert first["iteration_time_ms"] == second["iteration_time_ms"]
    assert first["breakdown_ms"] == second["breakdown_ms"]


def test_all_files_are_written_and_named(tmp_path, capsys):
    answer, trace, page = (tmp_path / name for name in ("a.json", "t.json", "p.html"))

    assert run(*SMALL, "--json", answer, "--trace-out", trace, "--report", page) == 0

    shown = capsys.readouterr().out
    assert "per iteration" in shown
    for path in (answer, trace, page):
        assert f"Wrote {path}" in shown
    assert json.loads(answer.read_text())["schema_version"] == 1
    assert json.loads(trace.read_text())["traceEvents"]
    assert page.read_text().startswith("<!doctype html>")


def test_fields_can_be_overridden(capsys):
    assert run(*SMALL, "--json", "-", "--set", "batch=4096") == 0

    document = json.loads(capsys.readouterr().out)
    assert document["facts"]["batch"] == 4096
    assert document["scenario"]["overrides"] == ["batch=4096"]


def test_isolated_answers_with_the_isolated_time(capsys):
    assert run(*SMALL, "--json", "-", "--isolated") == 0

    document = json.loads(capsys.readouterr().out)
    assert document["iteration_time_ms"] == document["isolated_ms"]


def test_interference_can_be_left_out_to_compare(capsys):
    documents = []
    for words in ((), ("--no-interference",)):
        assert (
            run("predict", "--topology", "dgx_h100", "--samples", "4", "--json", "-", *words) == 0
        )
        documents.append(json.loads(capsys.readouterr().out))

    counted, left_out = documents
    assert counted["interference_ms"] == pytest.approx(
        counted["iteration_time_ms"] - left_out["iteration_time_ms"]
    )
    assert left_out["interference_ms"] is None
    assert left_out["scenario"]["interference"] == "left_out"


def test_list_names_workloads_and_stacks(capsys):
    assert run("predict", "--list") == 0

    shown = capsys.readouterr().out
    for name in ("dlrm_dcnv2", "dlrm_mlperf", "gpt3_175b", "llama3_8b", "llama3_70b",
                 "bert_large", "gpt2_xl", "pytorch_eager"):  # fmt: skip
        assert name in shown


@pytest.mark.parametrize(
    "words",
    [
        ("predict",),
        ("predict", "--topology"),
        ("predict", "--topology", "dgx_h100", "--hosts", "many"),
        ("predict", "--topology", "dgx_h100", "--hosts", "0"),
        ("predict", "--topology", "dgx_h100", "--executor", "moon"),
        ("predict", "--no-such-option"),
    ],
)
def test_a_wrong_command_line_exits_with_2(words, capsys):
    assert run(*words) == 2

    assert "Traceback" not in capsys.readouterr().err


def test_an_unknown_topology_is_refused_with_what_there_is(capsys):
    assert "dgx_h1000" in refused(capsys, "predict", "--topology", "dgx_h1000")


def test_an_unknown_field_is_refused_with_near_ones(capsys):
    assert "batch" in refused(capsys, *SMALL, "--set", "bacth=1")


def test_more_ranks_than_gpus_are_refused(capsys):
    assert "9" in refused(capsys, *SMALL, "--ranks-per-host", 9)


def without(option):
    """The words of the small question less *option* and its value."""
    words = list(SMALL)
    if option in words:
        place = words.index(option)
        del words[place : place + 2]
    return words


BROKEN: dict[str, str | bytes] = {
    "empty": "",
    "binary": b"\x00\xff\xfe\x80",
    "list": "- 1\n- 2\n",
    "unknown_key": "name: x\nfamily: dlrm\nwheels: 4\n",
    "bomb": "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "syntax": "name: [\n",
}


@pytest.mark.parametrize("option", ["--topology", "--workload", "--stack"])
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_file_is_refused_with_one_message(option, fault, tmp_path, capsys):
    path = tmp_path / f"{fault}.yaml"
    content = BROKEN[fault]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())

    assert fault in refused(capsys, *without(option), option, path)


@pytest.mark.parametrize("option", ["--topology", "--workload", "--stack"])
def test_a_directory_instead_of_a_file_is_refused(option, tmp_path, capsys):
    assert "directory" in refused(capsys, *without(option), option, tmp_path)


@pytest.mark.parametrize("option", ["--json", "--trace-out", "--report"])
def test_a_place_that_cannot_be_written_is_refused_before_any_work(option, tmp_path, capsys):
    assert "does not exist" in refused(capsys, *SMALL, option, tmp_path / "nowhere" / "file")
    assert "directory" in refused(capsys, *SMALL, option, tmp_path)


def test_debug_shows_the_traceback(capsys):
    assert run("--debug", "predict", "--topology", "nowhere") == 1
    assert "Traceback" in capsys.readouterr().err

    assert run("predict", "--topology", "nowhere", "--debug") == 1
    assert "TopologyError" in capsys.readouterr().err
