from dataclasses import replace

import numpy as np
import pytest

from collectives.calibration import load_calibration, load_default_calibration
from collectives.collective import CollectiveKind
from collectives.measurements import CollectiveMeasurement
from perfmodel.base.errors import CalibrationError
from perfmodel.extensions.measurements.calibration.collective_blocks import fit_collectives
from perfmodel.extensions.measurements.calibration.collective_fit import HeldOut, fit_uncertainty
from perfmodel.extensions.measurements.calibration.collective_shift import measured_spans
from perfmodel.extensions.measurements.calibration.collectives import (
    IN_EVERY_FIT,
    assign_folds,
    predict_left_out,
    predict_rows,
    write_calibration,
)

KINDS = (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL)


def rows(topology="dgx_a100", hosts=1, slower=1.0):
    """What the shipped constants predict, as if it had been measured."""
    made = [
        CollectiveMeasurement(
            row=f"{topology}-{kind.value}-{ranks}-{power}",
            topology=topology,
            hosts=hosts,
            ranks=ranks * hosts,
            kind=kind,
            size_bytes=2**power,
            duration_ns=1.0,
        )
        for kind in KINDS
        for ranks in (2, 4, 8)
        for power in range(10, 30, 2)
    ]
    held = predict_rows(made, load_default_calibration())
    return [replace(one.measurement, duration_ns=one.predicted_ns * slower) for one in held]


@pytest.fixture(scope="module")
def slower_machine():
    """Constants fitted to a machine that takes 1.3 times as long in everything."""
    return fit_collectives(rows(slower=1.3))


def test_a_fit_finds_the_machine_that_made_the_rows(slower_machine):
    held = predict_rows(rows(slower=1.3), slower_machine)
    errors = [abs(one.predicted_ns / one.measurement.duration_ns - 1) for one in held]
    assert np.mean(errors) < 0.03


def test_fitting_twice_gives_the_same_blocks_of_the_machines_with_rows(slower_machine):
    assert fit_collectives(rows(slower=1.3)).hosts == slower_machine.hosts
    names = [entry.name for entry in slower_machine.hosts]
    assert "ampere_nvswitch" in names
    assert "volta_nvlink_mesh" not in names


def test_a_machine_left_out_is_predicted_from_the_others():
    table = [*rows(), *rows("dgx_h100")]
    held = predict_left_out(table, ["dgx_h100"])
    assert {one.measurement.topology for one in held} == {"dgx_h100"}


@pytest.mark.parametrize("machine", ["dgx_h100:10", "dgx_h100:ten"])
def test_leaving_out_what_is_not_there_is_refused(machine):
    with pytest.raises(CalibrationError, match=machine):
        predict_left_out(rows(), [machine])


def test_folds_are_made_of_sizes():
    table = rows()
    folds = assign_folds(table, 5)
    by_size = {}
    for row, fold in zip(table, folds, strict=True):
        by_size.setdefault(row.size_bytes, set()).add(fold)
    assert all(len(found) == 1 for found in by_size.values())
    assert set(folds) == set(range(5))


def test_folds_by_hosts_keep_rows_of_one_host_in_every_fit_and_by_ranks_hold_out_whole_sizes():
    table = [*rows(hosts=1), *rows(hosts=2), *rows(hosts=4)]
    of_hosts = zip(table, assign_folds(table, 2, by="hosts"), strict=True)
    assert {row.hosts: fold for row, fold in of_hosts} == {1: IN_EVERY_FIT, 2: 0, 4: 1}
    of_ranks = zip(rows(), assign_folds(rows(), 3, by="nranks"), strict=True)
    assert {row.ranks: fold for row, fold in of_ranks} == {2: 0, 4: 1, 8: 2}
    with pytest.raises(CalibrationError, match="from 2 to the number of values of size_bytes"):
        assign_folds(rows(), 1000)


def test_uncertainty_covers_nine_of_ten_rows():
    # Errors of 1 % to 100 % in the logarithm: nine of ten are below 90 %, so sigma is 0.9 / 1.645.
    row = rows()[0]
    held = [
        HeldOut(replace(row, duration_ns=1.0), float(np.exp(percent / 100)), 0.1)
        for percent in range(1, 101)
    ]
    [scope, _] = list(fit_uncertainty(held))
    assert fit_uncertainty(held)[scope] == pytest.approx(0.9 / 1.645, rel=0.01)


def test_a_written_fit_reads_back(tmp_path, slower_machine):
    path = tmp_path / "fit.yaml"
    about = dict.fromkeys(("source", "hardware", "software", "date", "licence", "command"), "test")
    write_calibration(replace(slower_machine, spans=measured_spans(rows())), path, about=about)
    again = load_calibration(path)
    for entry, read in zip(slower_machine.hosts, again.hosts, strict=True):
        assert read.constants.launch_ns == pytest.approx(entry.constants.launch_ns, rel=1e-5)
    assert len(again.spans) == 9
