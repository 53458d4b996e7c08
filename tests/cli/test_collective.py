import json

import pytest

from perfmodel.cli import main

HEADING = "topology,hosts,nranks,collective,size_bytes,dtype,nccl_version,time_us,source\n"


def run(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    captured = capsys.readouterr()
    return stop.value.code, captured.out, captured.err


def ask(capsys, *words):
    code, out, err = run(capsys, "collective", *words, "--json", "-")
    assert code == 0, err
    return json.loads(out)


def test_one_collective_is_answered_with_time_choice_and_link(capsys):
    code, out, _ = run(
        capsys, "collective", "--topology", "dgx_h100", "--kind", "all_reduce", "--size", "64MiB"
    )
    assert code == 0
    for word in ("time", "bus bandwidth", "nvls", "gpu:0 -> nvswitch:0", "% latency"):
        assert word in out


def test_disjoint_rails_do_not_slow_each_other_and_one_nic_does(capsys):
    words = ("--topology", "dgx_h100", "--hosts", 2, "--kind", "all_reduce", "--size", "1GiB")
    alone = ask(capsys, *words, "--ranks", "0,8")["time_us"]
    rails = ask(capsys, *words, "--ranks", "0,8", "--with", "all_reduce:1GiB:1,9")["together"]
    nic = ask(capsys, *words, "--ranks", "0,8", "--with", "all_reduce:1GiB:0,8")["together"]
    assert [one["time_us"] for one in rails] == [alone, alone]
    assert nic[0]["time_us"] == pytest.approx(2 * alone, rel=0.01)


def test_a_sweep_says_where_nccl_switches(capsys):
    code, out, _ = run(
        capsys,
        "collective",
        "--topology",
        "dgx_a100",
        "--kind",
        "all_reduce",
        "--ranks",
        2,
        "--sweep",
    )
    assert code == 0
    assert out.count("NCCL switches here") == 1


def test_a_sweep_draws_measured_points(capsys, tmp_path):
    table, picture = tmp_path / "t.csv", tmp_path / "sweep.png"
    table.write_text(HEADING + "dgx_a100,1,8,all_gather,1048576,,,26.8,x\n", encoding="utf-8")
    answer = ask(
        capsys, "--topology", "dgx_a100", "--kind", "all_gather", "--sweep",
        "--plot", picture, "--measured", table,
    )  # fmt: skip
    assert picture.stat().st_size > 10_000
    assert answer["measured"] == [[1048576, 26.8]]


def test_an_uneven_exchange_gives_one_end_a_rank(capsys, tmp_path):
    matrix = tmp_path / "bytes.csv"
    matrix.write_text("0,1000000\n1000,0\n", encoding="utf-8")
    answer = ask(
        capsys, "--topology", "dgx_a100", "--kind", "all_to_all", "--ranks", "0,1",
        "--byte-matrix", matrix,
    )  # fmt: skip
    assert len(answer["per_rank_us"]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--kind", "all_reduce"), "needs --size"),
        (("--kind", "all_reduce", "--size", "1MiB", "--ranks", "0,99"), "got rank 99"),
        (("--kind", "all_reduce", "--size", "1MiB", "--ranks", "0,0"), "occurs twice"),
        (("--kind", "all_reduce", "--size", "12"), "unit"),
        (("--kind", "all_reduce", "--size", "1MiB", "--plot", "x.png"), "--sweep"),
        (("--kind", "all_reduce", "--size", "1MiB", "--with", "nonsense"), "KIND:SIZE:LIST"),
        (
            ("--kind", "all_reduce", "--size", "1MiB", "--collective-algorithm", "nvls"),
            "needs a switch that reduces",
        ),
    ],
)
def test_nonsense_is_refused_with_what_to_do(capsys, words, message):
    code, _, err = run(capsys, "collective", "--topology", "dgx_a100", *words)
    assert code == 1
    assert message in err


def test_validate_exits_1_beyond_the_limit(capsys, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text(HEADING + "dgx_a100,1,8,all_gather,1048576,,,1.0,x\n", encoding="utf-8")
    code, out, err = run(capsys, "validate", "collectives", table, "--limit", 10)
    assert code == 1
    assert "dgx_a100 one host all_gather" in out
    assert "beyond the limit" in err


def test_validate_writes_json(capsys, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text(HEADING + "dgx_a100,1,8,all_gather,1048576,,,26.8,x\n", encoding="utf-8")
    code, out, _ = run(capsys, "validate", "collectives", table, "--json", "-")
    content = json.loads(out)
    assert code == 0
    assert content["kind"] == "collectives"
    assert content["rows"][0]["row"] == "0"


def test_calibrate_without_anything_to_do_says_so(capsys, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text(HEADING + "dgx_a100,1,8,all_gather,1048576,,,26.8,x\n", encoding="utf-8")
    code, _, err = run(capsys, "calibrate", "collectives", table)
    assert code == 1
    assert "nothing to do" in err
