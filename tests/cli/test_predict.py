"""`perfmodel predict`: options, outputs, refusals."""

from __future__ import annotations

import json

import pytest

SMALL = "predict --topology dgx_h100 --workload dlrm_mlperf --samples 4"


@pytest.fixture
def refused(typed):
    """The one message of a command that exits with 1."""

    def refuse(*words: object) -> str:
        shown = typed(*words, code=1)
        assert shown.out == ""
        assert shown.said.startswith("perfmodel: ")
        return str(shown.said)

    return refuse


def test_json_on_standard_output_is_nothing_but_json(typed):
    shown = typed(SMALL, "--json", "-")
    assert shown.document["schema_version"] == 1
    assert shown.document["scenario"]["workload"] == "dlrm_mlperf"
    assert shown.document["run"]["executor"] == "serial"
    assert shown.err == ""


def test_the_same_scenario_is_the_same_bytes_and_another_seed_moves_only_the_interval(ask):
    first, again, other = (ask(SMALL, "--seed", seed) for seed in (0, 0, 1))
    assert json.dumps(first | {"run": None}) == json.dumps(again | {"run": None})
    assert first["interval_ms"] != other["interval_ms"]
    assert first["iteration_time_ms"] == other["iteration_time_ms"]
    assert first["breakdown_ms"] == other["breakdown_ms"]


def test_all_files_are_written_and_named(tmp_path, typed):
    answer, trace, page = (tmp_path / name for name in ("a.json", "t.json", "p.html"))
    shown = typed(SMALL, "--json", answer, "--trace-out", trace, "--report", page).out
    assert "per iteration" in shown
    for path in (answer, trace, page):
        assert f"Wrote {path}" in shown
    assert json.loads(answer.read_text())["schema_version"] == 1
    assert json.loads(trace.read_text())["traceEvents"]
    assert page.read_text().startswith("<!doctype html>")


def test_fields_can_be_overridden(ask):
    document = ask(SMALL, "--set", "batch=4096")
    assert document["facts"]["batch"] == 4096
    assert document["scenario"]["overrides"] == ["batch=4096"]


def test_isolated_answers_with_the_isolated_time(ask):
    document = ask(SMALL, "--isolated")
    assert document["iteration_time_ms"] == document["isolated_ms"]


def test_interference_can_be_left_out_to_compare(ask):
    words = "predict --topology dgx_h100 --samples 4"
    counted, left_out = ask(words), ask(words, "--no-interference")
    assert counted["interference_ms"] == pytest.approx(
        counted["iteration_time_ms"] - left_out["iteration_time_ms"]
    )
    assert left_out["interference_ms"] is None
    assert left_out["scenario"]["interference"] == "left_out"


def test_list_names_workloads_and_stacks(typed):
    shown = typed("workload list").out
    for name in ("dlrm_dcnv2", "dlrm_mlperf", "gpt3_175b", "llama3_8b", "llama3_70b",
                 "bert_large", "gpt2_xl", "pytorch_eager"):  # fmt: skip
        assert name in shown


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--topology",
        "--topology dgx_h100 --hosts many",
        "--topology dgx_h100 --hosts 0",
        "--topology dgx_h100 --executor moon",
        "--no-such-option",
    ],
)
def test_a_wrong_command_line_exits_with_2(words, typed):
    assert typed(f"predict {words}", code=2).said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("predict --topology dgx_h1000", "dgx_h1000"),
        (f"{SMALL} --set bacth=1", "batch"),
        (f"{SMALL} --ranks-per-host 9", "9"),
    ],
)
def test_what_there_is_not_is_refused_with_what_there_is(words, message, refused):
    assert message in refused(words)


BROKEN: dict[str, str | bytes] = {
    "empty": "",
    "binary": b"\x00\xff\xfe\x80",
    "list": "- 1\n- 2\n",
    "unknown_key": "name: x\nfamily: dlrm\nwheels: 4\n",
    "bomb": "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "syntax": "name: [\n",
}
WITHOUT = {
    "--topology": "predict --workload dlrm_mlperf --samples 4",
    "--workload": "predict --topology dgx_h100 --samples 4",
    "--stack": SMALL,
}


@pytest.mark.parametrize("option", WITHOUT)
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_file_is_refused_with_one_message(option, fault, tmp_path, refused):
    path = tmp_path / f"{fault}.yaml"
    content = BROKEN[fault]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert fault in refused(WITHOUT[option], option, path)


@pytest.mark.parametrize("option", WITHOUT)
def test_a_directory_instead_of_a_file_is_refused(option, tmp_path, refused):
    assert "directory" in refused(WITHOUT[option], option, tmp_path)


@pytest.mark.parametrize("option", ["--json", "--trace-out", "--report"])
def test_a_place_that_cannot_be_written_is_refused_before_any_work(option, tmp_path, refused):
    assert "does not exist" in refused(SMALL, option, tmp_path / "nowhere" / "file")
    assert "directory" in refused(SMALL, option, tmp_path)


@pytest.mark.parametrize(
    "words", ["--debug predict --topology nowhere", "predict --topology nowhere --debug"]
)
def test_debug_shows_the_traceback(words, typed):
    shown = typed(words, code=1).err
    assert "Traceback" in shown
    assert "TopologyError" in shown
