import pytest

from perfmodel.base.errors import InputError
from perfmodel.cli.options import parse_ranks

HEADING = "topology,hosts,nranks,collective,size_bytes,dtype,nccl_version,time_us,source\n"


@pytest.fixture
def table(tmp_path):
    def write(time_us=26.8):
        path = tmp_path / "t.csv"
        path.write_text(f"{HEADING}dgx_a100,1,8,all_gather,1048576,,,{time_us},x\n")
        return path

    return write


def test_one_collective_is_answered_with_time_choice_and_link(typed):
    out = typed("collective --topology dgx_h100 --kind all_reduce --size 64MiB").out
    for word in ("time", "bus bandwidth", "nvls", "gpu:0 -> nvswitch:0", "% latency"):
        assert word in out


def test_a_sweep_says_where_nccl_switches(typed):
    shown = typed("collective --topology dgx_a100 --kind all_reduce --ranks 2 --sweep")
    assert shown.out.count("NCCL switches here") == 1


def test_a_sweep_has_a_page(ask, tmp_path):
    page = tmp_path / "sweep.html"
    words = "collective --topology dgx_a100 --kind all_gather --sweep"
    assert len(ask(words, "--report", page)["sweep"]) == 22
    assert "<polyline" in page.read_text()


def test_an_uneven_exchange_gives_one_end_a_rank(ask, tmp_path):
    matrix = tmp_path / "bytes.csv"
    matrix.write_text("0,1000000\n1000,0\n")
    words = "collective --topology dgx_a100 --kind all_to_all --ranks 0,1 --byte-matrix"
    assert len(ask(words, matrix)["per_rank_us"]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "needs --size"),
        ("--size 1MiB --ranks 0,99", "got rank 99"),
        ("--size 1MiB --ranks 0,0", "occurs twice"),
        ("--size 12", "unit"),
        ("--size 1MiB --collective-algorithm nvls", "needs a switch that reduces"),
    ],
)
def test_nonsense_is_refused_with_what_to_do(typed, words, message):
    said = typed(f"collective --topology dgx_a100 --kind all_reduce {words}", code=1).said
    assert message in said


def test_a_byte_matrix_that_is_no_table_of_numbers_is_refused(typed, tmp_path):
    matrix = tmp_path / "bytes.csv"
    matrix.write_text("0,many\n")
    words = "collective --topology dgx_a100 --kind all_to_all --byte-matrix"
    assert "whole numbers of bytes, one line per sender" in typed(words, matrix, code=1).said


def test_validate_exits_1_beyond_the_limit(typed, table):
    shown = typed("validate collectives --limit 10", table(12.0), code=1)
    assert "dgx_a100 one host all_gather" in shown.out
    assert "beyond the limit" in shown.err


def test_validate_writes_json(ask, table):
    content = ask("validate collectives", table())
    assert content["kind"] == "collectives"
    assert content["rows"][0]["row"] == "0"


def test_calibrate_without_anything_to_do_says_so(typed, table):
    assert "nothing to do" in typed("calibrate collectives", table(), code=1).said


def test_ranges_of_ranks_may_begin_anywhere_and_run_upwards():
    assert parse_ranks("0-2, 2000000-2000001,7") == (0, 1, 2, 2_000_000, 2_000_001, 7)
    for text in ("3-1", "0-1000001", "a", "1-b"):
        with pytest.raises(InputError, match="ranks"):
            parse_ranks(text)
