"""A few rows move the shipped constants to a machine, with an interval that says how few."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest

from collectives.calibration import calibration_for, load_calibration, load_default_calibration
from collectives.collective import CollectiveKind
from collectives.measurements import CollectiveMeasurement
from perfmodel.base.errors import CalibrationError
from perfmodel.extensions.measurements.calibration.collective_shift import Shift, shift_collectives
from perfmodel.extensions.measurements.calibration.collectives import (
    is_enough,
    predict_rows,
    write_calibration,
)
from topologies import load_topology

SLOWER = Shift(latency=log(1.5), bandwidth=log(0.6))


def rows(count=6, kind=CollectiveKind.ALL_REDUCE, topology="dgx_a100", hosts=4):
    """Measured on a machine whose network has longer latencies and less bandwidth than ours."""
    made = [
        CollectiveMeasurement(
            row=str(power), topology=topology, hosts=hosts, ranks=8 * hosts, kind=kind,
            size_bytes=4**power, duration_ns=1.0,
        )
        for power in range(15 - count, 15)
    ]  # fmt: skip
    shipped = load_default_calibration()
    networks = [replace(one, constants=SLOWER.apply(one.constants)) for one in shipped.fabrics]
    held = predict_rows(made, replace(shipped, fabrics=tuple(networks)))
    return [replace(one.measurement, duration_ns=one.predicted_ns) for one in held]


@pytest.fixture(scope="module")
def shifted():
    return shift_collectives(rows(), load_default_calibration())[0]


def test_six_rows_move_a_network_to_where_they_are(shifted):
    # Other numbers of hosts move along, though they were not measured.
    for one in predict_rows([*rows(), *rows(hosts=8)], shifted):
        assert one.predicted_ns == pytest.approx(one.measurement.duration_ns, rel=0.15)


def test_other_machines_and_the_inside_of_hosts_stay(shifted):
    for others in (rows(hosts=1), rows(topology="dgx_h100")):
        before = predict_rows(others, load_default_calibration())
        after = predict_rows(others, shifted)
        assert [one.predicted_ns for one in before] == [one.predicted_ns for one in after]


def test_the_interval_is_wide_where_nothing_was_measured(shifted):
    seen = {one.relative_sigma for one in predict_rows(rows(), shifted)}
    exchanged = rows(kind=CollectiveKind.ALL_TO_ALL)
    unseen = {one.relative_sigma for one in predict_rows(exchanged, shifted)}
    assert max(seen) < min(unseen)


def test_rows_that_contradict_each_other_widen_the_interval():
    noisy = [
        replace(row, duration_ns=row.duration_ns * (1.5 if number % 2 else 0.67))
        for number, row in enumerate(rows())
    ]
    found, _ = shift_collectives(noisy, load_default_calibration())
    for one in predict_rows(noisy, found):
        # Rows lie a factor of 1.5 off to either side; the interval must reach them.
        assert 1.645 * one.relative_sigma > log(1.5)


def test_a_written_shift_is_what_the_machine_is_priced_with(tmp_path, shifted):
    path = tmp_path / "my.yaml"
    about = dict.fromkeys(("source", "hardware", "software", "date", "licence", "command"), "test")
    write_calibration(shifted, path, about=about)
    device = load_topology("dgx_a100", calibrations=[str(path)]).device

    assert calibration_for(device).fabrics == load_calibration(path).fabrics
    assert calibration_for(load_topology("dgx_a100").device) is load_default_calibration()


def test_two_rows_are_too_few():
    with pytest.raises(CalibrationError, match="3 rows or more on several hosts, got 2"):
        shift_collectives(rows(2), load_default_calibration())


def test_only_many_rows_of_known_machines_are_fitted_from_priors():
    assert not is_enough(rows())
    assert is_enough(rows() * 40)
    assert not is_enough([replace(row, topology="mine.yaml") for row in rows() * 40])
