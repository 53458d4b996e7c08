"""What is said in a round, as bytes."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.engine.block import Arrivals, no_arrivals
from perfmodel.execution.messages import Order, Report

SAID = Arrivals(np.array([[0, 7, 1], [1, 9, 2]]), np.array([[100, 200, 300], [400, 500, 600]]))


@pytest.mark.parametrize("arrivals", [SAID, no_arrivals(3)])
def test_an_order_arrives_as_it_was_sent(arrivals):
    order = Order.from_bytes(Order(4, arrivals).to_bytes())

    assert order.number == 4
    assert np.array_equal(order.resolved.rendezvous, arrivals.rendezvous)
    assert np.array_equal(order.resolved.ready_ns, arrivals.ready_ns)


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("can_walk", [True, False])
def test_a_report_arrives_as_it_was_sent(is_done, can_walk):
    report = Report.from_bytes(Report(5, is_done, can_walk, SAID).to_bytes())

    assert (report.number, report.is_done, report.can_walk) == (5, is_done, can_walk)
    assert np.array_equal(report.arrivals.rendezvous, SAID.rendezvous)
    assert np.array_equal(report.arrivals.ready_ns, SAID.ready_ns)


def test_a_message_without_rows_is_only_its_header():
    # number, word, rows, vectors: 4 x 8 bytes
    assert len(Order(0, no_arrivals(3)).to_bytes()) == 32


def test_arrays_of_a_message_can_be_written_because_numba_compiles_anew_for_others():
    order = Order.from_bytes(Order(4, SAID).to_bytes())

    assert order.resolved.rendezvous.flags.writeable
    assert order.resolved.ready_ns.flags.writeable
