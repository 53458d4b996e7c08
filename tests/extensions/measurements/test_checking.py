"""Tables of measurements that cannot be true are refused, or their rows left out and counted."""

from __future__ import annotations

import pytest

from perfmodel import api
from perfmodel.base.errors import InputError, MeasurementError
from perfmodel.extensions.measurements.checking import check_tables
from tests.fuzz.doors import RUNS, _csv, _gemms, _log, _log_rows

PLACE = api.RunPlace("dgx_h100")


@pytest.fixture
def log(tmp_path):
    def write(change):
        path = tmp_path / "all_reduce.log"
        rows = _log_rows()
        change(rows)
        path.write_text(_log(rows))
        return path

    return write


def scale(key, factor):
    def change(rows):
        for row in rows:
            row[key] = float(row[key]) * factor

    return change


def test_a_sound_log_has_no_cautions(log):
    rows, cautions = check_tables([log(lambda rows: None)], PLACE)
    assert (len(rows), cautions.document()["warnings"]) == (9, [])


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_times_that_contradict_the_rates_of_their_rows_are_refused(log, factor):
    with pytest.raises(MeasurementError, match="times and rates of a row must agree"):
        check_tables([log(scale("time", factor))], PLACE)


def test_without_rates_the_unit_is_told_by_what_such_a_machine_takes(log):
    def change(rows):
        scale("time", 1e-3)(rows)
        for row in rows:
            row["algbw"] = 0

    with pytest.raises(MeasurementError, match="unit of their column"):
        check_tables([log(change)], PLACE)


def test_rows_that_fail_their_check_or_lack_a_size_are_left_out_and_counted(log, tmp_path):
    def change(rows):
        rows[2]["#wrong"] = 57
        del rows[4]["size"]
        rows[6]["time"] *= 1000

    path = log(change)
    rows, cautions = check_tables([path], PLACE)
    assert len(rows) == 6
    assert ("rows left out", 3) in {(one.rule, one.found) for one in cautions.warnings}
    with pytest.raises(InputError, match="--strict"):
        api.calibrate_collectives([path], tmp_path / "x.yaml", place=PLACE, is_strict=True)
    assert not (tmp_path / "x.yaml").exists()


@pytest.mark.parametrize("key", ["latency_ms", "tflops"])
def test_gemms_whose_rate_contradicts_their_time_are_refused(tmp_path, key):
    rows = _gemms()
    scale(key, 1e3)(rows)
    table = tmp_path / "gemm.csv"
    table.write_text(_csv(rows))
    with pytest.raises(MeasurementError, match="must agree"):
        api.validate("gemm", [table])


@pytest.mark.parametrize(("factor", "words"), [(1e-3, "unit"), (1e3, "unit")])
def test_gemms_in_another_unit_are_refused(tmp_path, factor, words):
    rows = [{key: one for key, one in row.items() if key != "tflops"} for row in _gemms()]
    scale("latency_ms", factor)(rows)
    table = tmp_path / "gemm.csv"
    table.write_text(_csv(rows))
    with pytest.raises(MeasurementError, match=words):
        api.calibrate_kernels([table], tmp_path / "out.yaml")


def test_a_misspelt_column_is_refused(tmp_path):
    table = tmp_path / "gemm.csv"
    table.write_text(_csv(_gemms()).replace("dtype", "dtpye"))
    with pytest.raises(MeasurementError, match="dtpye is not known; dtype is"):
        api.validate("gemm", [table])


def test_a_run_faster_than_the_peak_of_its_gpus_is_refused(tmp_path):
    table = tmp_path / "runs.csv"
    # 6 x 101 M parameters x 1,024 tokens are 0.62 TFLOP on each GPU: 2 ms at 312 TFLOP/s.
    table.write_text(_csv([RUNS[0] | {"iter_time_s": 0.001}]))
    [refused] = api.validate_runs(table, executor="serial").unsupported
    assert "times the peak of a100_sxm_80gb" in refused.reason


def test_a_time_copied_to_other_numbers_of_tokens_is_left_out_by_its_rate(tmp_path):
    # 1,024 tokens x 8 experts x 3 products of 4096 x 192: 38.7 GFLOP in 0.5 ms are 77.3 TFLOP/s.
    def row(tokens, latency_ms, tflops):
        about = f"aiter,AMD Instinct MI308X,aiter_fmoe,bf16,{tokens},4096,192,8,128,1,1,balanced"
        return f"{about},{latency_ms},{tflops}\n"

    head = (
        "collector,device,kernel_source,dtype,tokens,hidden,ffn,top_k,experts,tp,ep,distribution,"
        "latency_ms,tflops\n"
    )
    copies = [row(tokens, 0.5, 77.3) for tokens in (2048, 4096, 8192)]
    table = tmp_path / "experts.csv"
    table.write_text(head + row(1024, 0.5, 77.3) + row(512, 0.4, 48.3) + "".join(copies))
    found = api.validate("experts", [table])
    assert len(found.deviations) == 2
    assert ("rows left out", 3) in {(one.rule, one.found) for one in found.cautions.warnings}
