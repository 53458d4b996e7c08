"""What FBGEMM's benchmark prints becomes constants of one GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.base.errors import MeasurementError
from perfmodel.costs.embedding import LookupPricer, lookups_terms
from perfmodel.costs.embedding_constants import constants_for
from perfmodel.extensions.measurements import api
from perfmodel.extensions.measurements.calibration.fbgemm_log import load_benchmark
from perfmodel.graph.ops import Pass
from topologies import load_device

H100 = load_device("h100_sxm")
LOG = """
INFO:root:Managed option: device
INFO:root:Embedding parameters:  0.41 GParam,  0.82 GB
INFO:root:Accessed weights per batch:  0.08 GB
INFO:root:Forward, B: 512, E: 100000, T: 32, D: 128, L: 20, W: False, BW:  1500.00 GB/s, T: 60us
INFO:root:Backward, B: 512, E: 100000, T: 32, D: 128, L: 20, BW:  900.00 GB/s, T: 200us
python tbe_training_benchmark.py device-with-speclist --no-row-wise --tbe-num-tables 2 \
 --tbe-num-embeddings-list 1000,2000000 --tbe-embedding-dim-list 64,128 --pooling-list 1.5,30 \
 --tbe-indices-zipf 2.75 0.89
INFO:root:Forward, B: 4096, E: 1000500, T: 2, D: 96, L: 15, W: True, BW: 900 GB/s, T: 99us
INFO:root:Forward, B: 4096, E: 1000500, T: 2, D: 96, L: 15, W: True, BW: 900 GB/s, T: 98us
"""


def test_passes_of_a_log_are_lookups_with_what_the_command_line_says(tmp_path):
    log = tmp_path / "tbe.log"
    log.write_text(LOG)
    plain, skewed, again = load_benchmark(log, H100)
    assert plain.measured_ns == {"forward": 60_000, "backward": 200_000}
    assert plain.lookup.optimizer == "rowwise_adagrad"
    assert len(plain.lookup.tables) == 32
    table = plain.lookup.tables[0]
    # 0.82 GB of 0.41 G numbers are two bytes each.
    assert (table.rows, table.width, table.pooling_factor, table.dtype.value) == (
        100_000,
        128,
        20,
        "fp16",
    )
    assert str(table.distribution) == "uniform"
    small, large = skewed.lookup.tables
    assert [(one.rows, one.width, one.pooling_factor) for one in (small, large)] == [
        (1000, 64, 1.5),
        (2_000_000, 128, 30),
    ]
    assert str(large.distribution) == "zipf(0.89)"
    assert large.is_weighted
    assert skewed.lookup.optimizer == "adagrad"
    assert again.name.endswith("(2)")


def test_a_fit_to_a_gpu_of_another_speed_predicts_it(tmp_path):
    log, made = tmp_path / "tbe.log", tmp_path / "mine.json"
    log.write_text(LOG)
    truth = constants_for(H100)
    lines = []
    # The same GPU, with every pass 1.5 times as long as predicted.
    for batch in (512, 4096, 65536):
        text = f"Forward, B: {batch}, E: 1000000, T: 8, D: 128, L: 20, W: False, BW: 1 GB/s, T: 1us"
        log.write_text(text)
        (case,) = load_benchmark(log, H100)
        pricer, terms = LookupPricer(H100, truth), lookups_terms([case.lookup], H100)
        times = [1.5 * pricer.times(terms, way, "fbgemm")[0][0] / 1000 for way in Pass]
        lines += [
            f"{way.value.title()}, {text.partition(', ')[2].rpartition(' ')[0]} {us:.2f}us"
            for way, us in zip(Pass, times, strict=True)
        ]
    log.write_text("\n".join(lines))
    fit = api.calibrate_embedding(log, device="h100_sxm", out=made)
    assert max(abs(error.error_pct) for error in fit.errors) < 8
    # Without any of the cases the constants are 33 % off.
    assert max(abs(error.held_out_pct) for error in fit.errors) < 25
    own = constants_for(replace(H100, calibrations=(str(made),)))
    assert own.memory_ratio < truth.memory_ratio
    assert own.relative_sigma < 0.2


def test_a_file_without_a_pass_is_refused(tmp_path):
    log = tmp_path / "other.log"
    log.write_text("Epoch 1 done")
    with pytest.raises(MeasurementError, match=r"other.log: has no line of FBGEMM's benchmark"):
        api.calibrate_embedding(log, device="h100_sxm")
