"""Histograms of reuse: their bins, and lookups under one as a V100 measured them."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from embeddings.table import Lookup
from perfmodel.extensions.measurements.calibration.embedding_cases import histogram_from_bins
from perfmodel.graph.ops import Pass
from tests.costs.test_embedding import _alike, _time_us


def test_the_skewed_model_takes_what_a_v100_took(shared_data):
    with (shared_data / "embeddings" / "index_reuse_histograms.csv").open() as file:
        row = next(csv.DictReader(file))
    of_rows = tuple(float(row[key]) for key in row if key.startswith("uniq_rows_frac"))
    of_lookups = tuple(float(row[key]) for key in row if key.startswith("lookup_frac"))
    draws = 3.29e6 / 197
    # The histogram is taken as the reuse within a batch; taken as that of all 65,536 samples the
    # forward pass would be predicted twice too long.
    histogram = histogram_from_bins(of_rows, of_lookups, draws=draws, reuse=float(row["avg_reuse"]))
    tables = _alike(197, rows=10**7, width=64, pooling_factor=draws / 512, distribution=histogram)
    lookup = Lookup(tables, 512, kernel="table_batched")
    assert _time_us(lookup, Pass.FORWARD) == pytest.approx(389, rel=0.15)
    assert _time_us(lookup, Pass.BACKWARD) == pytest.approx(2904, rel=0.15)


def test_means_of_bins_lie_in_them():
    empty = [0.0] * 13
    found = histogram_from_bins(
        (0.5, 0.3, 0.19, 0.009, *empty), (0.1, 0.2, 0.3, 0.4, *empty), draws=100.0, reuse=2.0
    )
    # 0.1 x 2 / 0.5 is below 1; 0.2 x 2 / 0.3 lies between 1 and 2; 0.3 x 2 / 0.19 between 2
    # and 4; 0.9 % of the rows are too coarse to divide by: 8 / (2 ln 2).
    assert found.mean_reuse[:4] == pytest.approx((1.0, 4 / 3, 0.6 / 0.19, 8 / (2 * np.log(2))))
    assert found.mean_reuse[16] == pytest.approx(65_536 / (2 * np.log(2)))
    exact = histogram_from_bins(
        (0.99, 0.01, *empty, 0.0, 0.0), (0.5, 0.5, *empty, 0.0, 0.0), draws=9.0, reuse=0.02
    )
    assert exact.mean_reuse[1] == 1.0
