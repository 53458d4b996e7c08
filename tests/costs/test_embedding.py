"""Embedding kernels against what V100 and A100 took, and against common sense."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embeddings.distribution import ObservedRows, Zipf
from embeddings.table import EmbeddingTable, Lookup, TableMemory
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import CalibrationError
from perfmodel.base.provenance import Provenance
from perfmodel.costs.embedding import lookups_terms, price_embeddings
from perfmodel.costs.embedding_constants import parse_constants
from perfmodel.costs.embedding_terms import Term, TermsSetting, find_terms, tables_terms
from perfmodel.graph.ops import EmbeddingOp, Pass
from perfmodel.stacks.profiles import load_stack
from topologies import load_device

V100 = load_device("v100_sxm2_16gb")
A100 = load_device("a100_sxm_40gb")
STACK = load_stack("pytorch_eager")
CRITEO_ROWS = (
    39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208,
    11938, 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36,
)  # fmt: skip


def _time_us(lookup: Lookup, direction: Pass, device=V100) -> float:
    op = EmbeddingOp(lookup, direction)
    return float(price_embeddings([op], device, STACK).duration_ns[0]) / 1e3


def _alike(count: int, **fields) -> tuple[EmbeddingTable, ...]:
    return tuple(EmbeddingTable(f"t{place}", **fields) for place in range(count))


DEFAULT = _alike(8, rows=10**6, width=64, pooling_factor=100.0)
MLPERF = tuple(EmbeddingTable(f"t{rows}", rows, 128) for rows in CRITEO_ROWS)


@pytest.mark.parametrize(
    ("tables", "forward_us", "backward_us"),
    [(DEFAULT, 519, 1275), (MLPERF, 51.4, 110.7)],
    ids=["default", "mlperf"],
)
def test_models_take_what_a_v100_took(tables, forward_us, backward_us):
    lookup = Lookup(tables, 2048, kernel="table_batched")
    assert _time_us(lookup, Pass.FORWARD) == pytest.approx(forward_us, rel=0.15)
    assert _time_us(lookup, Pass.BACKWARD) == pytest.approx(backward_us, rel=0.15)


def test_micro_benchmarks_that_were_never_fitted_are_met_within_30_percent(shared_data):
    with (shared_data / "paper" / "microbench_samples_V100.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["kernel"].startswith("embedding")]
    assert len(rows) == 20
    for row in rows:
        batch, height, count, pooling, width = (
            int(part.split("=")[1]) for part in row["shape"].split(";")
        )
        tables = _alike(count, rows=height, width=width, pooling_factor=float(pooling))
        lookup = Lookup(tables, batch, kernel="table_batched", is_repeated=True)
        direction = Pass.FORWARD if " fwd " in row["kernel"] else Pass.BACKWARD
        assert _time_us(lookup, direction) == pytest.approx(float(row["kernel_us"]), rel=0.3)


def test_the_fbgemm_lookup_takes_what_an_a100_took():
    # 122 tables with 90,837 rows and 8,720 columns together, 15.8 million indices, batch 8192.
    tables = tuple(
        EmbeddingTable(f"t{place}", 744 + (place < 69), 71 + (place < 58), 15.8e6 / 122 / 8192)
        for place in range(122)
    )
    assert sum(table.rows for table in tables) == 90_837
    assert sum(table.width for table in tables) == 8_720
    lookup = Lookup(tables, 8192, optimizer="rowwise_adagrad", kernel="fbgemm_2022")
    assert _time_us(lookup, Pass.FORWARD, A100) == pytest.approx(2538, rel=0.15)
    # Linearise, sort, run-length code, update: 9.45 ms over all its kernels.
    assert _time_us(lookup, Pass.BACKWARD, A100) == pytest.approx(9450, rel=0.15)


TABLE = EmbeddingTable("t", 100_000, 64, 10.0)


def _forward_us(*tables: EmbeddingTable, device=V100) -> float:
    return _time_us(Lookup(tables, 8192), Pass.FORWARD, device)


def test_skewed_indices_are_read_faster_and_two_tables_pay_one_floor():
    assert _forward_us(replace(TABLE, distribution=Zipf(1.2))) < _forward_us(TABLE)
    assert _forward_us(TABLE, replace(TABLE, name="u")) < 2 * _forward_us(TABLE)


@pytest.mark.parametrize("direction", Pass)
def test_heavier_optimizers_and_wider_numbers_take_longer(direction):
    times = [
        _time_us(Lookup((TABLE,), 8192, optimizer), direction)
        for optimizer in ("sgd", "rowwise_adagrad", "adagrad", "adam")
    ]
    assert times == sorted(times)
    by_dtype = [
        _time_us(Lookup((replace(TABLE, dtype=dtype),), 65536), direction)
        for dtype in (DType.INT8, DType.FP16, DType.FP32)
    ]
    assert by_dtype == sorted(by_dtype)


@pytest.mark.parametrize(
    "change", [{"is_pooled": False}, {"is_weighted": True}, {"pooling_deviation": 30.0}]
)
def test_sequences_weights_and_bags_of_very_different_lengths_take_longer(change):
    assert _forward_us(replace(TABLE, **change)) > _forward_us(TABLE)


def test_a_host_table_waits_for_the_link_and_a_faster_link_helps():
    big = replace(TABLE, rows=10**7, memory=TableMemory.HOST_CACHED)
    slow, fast = (_forward_us(big, device=load_device(name)) for name in ("h100_sxm", "gh200"))
    assert slow > 3 * _forward_us(replace(big, memory=TableMemory.DEVICE))
    assert fast < slow / 2


def test_the_longest_of_bags_that_differ_as_much_as_they_are_long_is_exponential():
    def tail_rows(mean: float, deviation: float) -> float:
        uneven = replace(TABLE, pooling_factor=mean, pooling_deviation=deviation)
        setting = TermsSetting(batch_size=1000, optimizer="sgd", l2_bytes=1)
        return tables_terms([uneven], setting)[0, Term.TAIL_ROWS] / 1000

    # Of 1,000 exponential lengths with a mean of 10 one is beyond 10 ln 1000 = 69.1.
    assert tail_rows(10.0, 10.0) == pytest.approx(10 * math.log(1000) - 10, rel=1e-5)
    # Lengths that differ little are all but normal, and one of 1,000 is 3.09 deviations above.
    assert tail_rows(10_000.0, 100.0) == pytest.approx(309, rel=0.02)
    assert tail_rows(0.0, 10.0) == tail_rows(10.0, 0.0) == 0


def test_sums_that_go_through_memory_cost_their_traffic_and_short_gradients_less():
    lookup = Lookup((replace(TABLE, pooling_factor=20.0),), 65536, optimizer="adagrad")
    apart, short = (
        _time_us(one, Pass.BACKWARD, A100)
        for one in (
            replace(lookup, kernel="two_step"),
            replace(lookup, kernel="two_step", gradient_dtype=DType.FP16),
        )
    )
    assert short < apart


@given(
    batch=st.integers(1, 10**5),
    rows=st.integers(1, 10**8),
    pooling=st.floats(0.1, 200),
    width=st.integers(4, 512),
    exponent=st.floats(0.1, 3.0),
    kernel=st.sampled_from(["fbgemm", "two_step", "table_batched"]),
)
def test_skewed_indices_are_never_slower_than_uniform_ones(
    batch, rows, pooling, width, exponent, kernel
):
    uniform = EmbeddingTable("t", rows, width, pooling)
    skewed = replace(uniform, distribution=Zipf(exponent))
    for device in (V100, load_device("b200_sxm")):
        for direction in Pass:
            limit = _time_us(Lookup((uniform,), batch, kernel=kernel), direction, device)
            time = _time_us(Lookup((skewed,), batch, kernel=kernel), direction, device)
            # Terms are whole bytes. Additions in place wait for each other at a hot row.
            if (kernel, direction) != ("table_batched", Pass.BACKWARD):
                assert time <= limit * (1 + 1e-6)


def test_a_hot_row_holds_up_additions_in_place_the_more_the_hotter_it_is():
    skews = (0.0, 0.5, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
    tables = [replace(TABLE, distribution=Zipf(skew)) for skew in skews]
    times = [
        _time_us(Lookup((table,), 65536, kernel="table_batched"), Pass.BACKWARD, A100)
        for table in tables
    ]
    assert times == sorted(times)
    assert times[-1] > 1.5 * times[0]
    # Half of 7.77 million indices on one row of 512 numbers: 46.0 ms were measured.
    b200 = load_device("b200_sxm")
    hot = ObservedRows((3_885_000.0, 3.0), (1, 1_295_000))
    table = EmbeddingTable("t", 1_295_001, 512, 1.0, distribution=hot)
    time = _time_us(Lookup((table,), 7_770_000, kernel="table_batched"), Pass.BACKWARD, b200)
    assert 0.5 < time / 46_000 < 2


def test_rows_in_the_cache_are_gathered_faster_on_newer_gpus():
    hot = Lookup((replace(TABLE, pooling_factor=20.0, distribution=Zipf(3.0)),), 65536)
    for kernel in ("table_batched", "fbgemm"):
        times = [
            _time_us(replace(hot, kernel=kernel), Pass.FORWARD, device)
            for device in (V100, A100, load_device("h100_sxm"))
        ]
        assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    ("device", "in_cache_gb_per_s", "in_memory_gb_per_s"),
    [
        ("a100_sxm_80gb", 5436, 1732),
        ("h100_pcie", 7034, 1934),
        ("h200_sxm", 9765, 3888),
        ("l40", 5188, 796),
    ],
)
def test_gathers_from_the_cache_are_slower_than_measured_streams_and_at_most_three_times(
    device, in_cache_gb_per_s, in_memory_gb_per_s
):
    # Read rates of gpu-l2-cache (RRZE-HPC/gpu-benches) for 8 or 16 MB and for 4 GiB. Gathers of
    # rows of 512 bytes reach less than streams in the cache, and about as much in memory.
    def rate(size_bytes: int, kernel: str) -> float:
        table = EmbeddingTable("t", size_bytes // 512, 128, pooling_factor=64.0)
        lookup = Lookup((table,), 65536, kernel=kernel)
        return 65536 * 64 * 512 / (1e3 * _time_us(lookup, Pass.FORWARD, load_device(device)))

    for kernel in ("table_batched", "fbgemm"):
        assert in_cache_gb_per_s / 3 < rate(8 * 2**20, kernel) < in_cache_gb_per_s
        # Few rows from memory are in flight at once, which limits fast memories most: FBGEMM
        # reaches 65 % of 3.9 TB/s on one production workload.
        assert 0.6 < rate(2**32, kernel) / in_memory_gb_per_s < 1.16


def test_rows_with_many_updates_held_up_the_kernels_of_2022():
    mild = replace(TABLE, pooling_factor=100.0, distribution=Zipf(0.9))
    long_rows = lookups_terms([Lookup((mild,), 65536)], A100)[0][Term.LONG_ROWS]
    assert long_rows > 10_000 * 1000
    old, new = (
        _time_us(Lookup((mild,), 65536, kernel=kernel), Pass.BACKWARD, A100)
        for kernel in ("fbgemm_2022", "fbgemm")
    )
    assert old > new


def test_a_repeated_lookup_that_fits_in_the_cache_is_not_read_from_memory():
    small = Lookup((EmbeddingTable("t", 1000, 64, 8.0),), 128, is_repeated=True)
    assert lookups_terms([small], V100)[0][Term.READ_BYTES] == 0
    large = Lookup((EmbeddingTable("t", 10**6, 64, 80.0),), 4096, is_repeated=True)
    assert lookups_terms([large], V100)[0][Term.READ_BYTES] > V100.l2_bytes


@given(
    batch=st.integers(1, 10**5),
    pooling=st.floats(0.1, 200),
    width=st.integers(4, 512),
    exponent=st.floats(0, 1.5),
)
def test_more_samples_never_take_less_time(batch, pooling, width, exponent):
    table = EmbeddingTable("t", 10**6, width, pooling, distribution=Zipf(exponent))
    for direction in Pass:
        small = _time_us(Lookup((table,), batch), direction)
        # Fewer tables run at once when there are more samples, so compare whole multiples.
        assert _time_us(Lookup((table,), 2 * batch), direction) >= small


def test_other_generations_borrow_constants_and_say_so():
    priced = price_embeddings([EmbeddingOp(Lookup((TABLE,), 64))], load_device("h100_sxm"), STACK)
    assert priced.provenance[0] == Provenance.EXTRAPOLATED
    assert priced.relative_sigma[0] == pytest.approx(0.2)


def test_a_calibration_file_with_faults_is_refused_with_all_of_them():
    text = (
        "source: a\nhardware: a\nsoftware: a\ndate: a\nlicence: a\ncommand: a\n"
        "generations:\n  ampere: {floor: 4, memory_ratio: -1}\n"
    )
    with pytest.raises(CalibrationError) as error:
        parse_constants(text, document="x.yaml")
    assert "generations.ampere.floor" in str(error.value)
    assert "memory_ratio (line 8): must be above 0" in str(error.value)


@pytest.mark.parametrize("memory", TableMemory)
@pytest.mark.parametrize("is_pooled", [True, False])
def test_a_piece_has_the_same_terms_alone_and_with_others(memory, is_pooled):
    table = EmbeddingTable(
        "t", 300_000, 64, 20.0, distribution=Zipf(1.1), memory=memory, is_pooled=is_pooled
    )
    bounds = [table.rows * number // 16 for number in range(17)]
    pieces = [
        table.piece(first_row=first, rows=after - first, width=64)
        for first, after in pairwise(bounds)
    ]
    # Whole, it does not fit in the cache; some of the pieces do.
    setting = TermsSetting(4096, "adagrad", l2_bytes=18_800 * 64 * 4)
    together = tables_terms([*pieces[:3], table, *pieces], setting)
    assert (together[:3] == together[4:7]).all()
    for piece, found in zip(pieces, together[4:], strict=True):
        assert (find_terms(table, [piece], setting) == found).all()
    # Pieces look up what the table does, and update the rows that it does.
    for term in (Term.DRAWS, Term.ROWS, Term.UPDATE_BYTES, Term.LONG_ROWS):
        assert together[4:, term].sum() == pytest.approx(together[3, term], abs=16)
    assert len(np.unique(together[4:, Term.DRAWS])) == 16


def test_tables_that_run_at_once_share_the_cache():
    alone, of_four = (
        TermsSetting(100, "sgd", l2_bytes=2**20, **how).share_bytes for how in ({}, {"at_once": 4})
    )
    # A tenth of the cache is for other data.
    assert alone == pytest.approx(0.9 * 2**20)
    assert of_four == pytest.approx(alone / 4)


def test_copied_frequent_rows_are_summed_before_they_are_added():
    table = EmbeddingTable("t", rows=1000, width=8, pooling_factor=4.0, distribution=Zipf(1.2))
    frequent, others = table.split_by_popularity(10)
    whole, copied, left = tables_terms([table, frequent, others], TermsSetting(100, "sgd", 2**20))
    assert copied[Term.HOT_NUMBERS] == 0
    assert 0 < left[Term.HOT_NUMBERS] < whole[Term.HOT_NUMBERS]


def test_rows_from_a_fast_memory_are_limited_by_those_in_flight():
    # A million uniform draws of 512 bytes from 20 GB, hardly any of them twice: each takes 25 ns
    # on one of 148 multiprocessors, 3.0 TB/s, and the memory would give 8.
    table = EmbeddingTable("t", 40_000_000, 128, pooling_factor=16.0)
    b200 = load_device("b200_sxm")
    alone_us = _time_us(Lookup((table,), 65536), Pass.FORWARD, b200)
    assert alone_us == pytest.approx(6.3 + 65536 * 16 * 25e-3 / 148, rel=0.1)
    # Rows of 1,024 bytes are two pieces, those of 256 bytes one.
    narrow, wide = (
        _time_us(Lookup((replace(table, width=width),), 65536), Pass.FORWARD, b200)
        for width in (64, 256)
    )
    assert narrow == pytest.approx(alone_us, rel=0.1)
    assert wide == pytest.approx(2 * alone_us, rel=0.1)
