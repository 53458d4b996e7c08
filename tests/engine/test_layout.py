"""Structure laid out for the compiled pass is the structure of the job."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from perfmodel.engine.layout import (
    BIG_BYTES,
    SMALL_BYTES,
    LaidOutPrograms,
    build_layout,
    build_places,
    in_big_pages,
    max_distance,
    sequence_counts,
)
from tests.execution.jobs import alternating_job
from tests.strategies import random_jobs

COLUMNS = (
    "lane_start", "slot", "sequence", "role", "dep_start", "dep_task", "dep_anchor",
    "dep_distance", "dep_lag_ns",
)  # fmt: skip


@given(made=random_jobs())
def test_programs_can_be_read_back_from_a_layout(made):
    job = made.job
    lanes = [program.lanes for program in job.programs]
    programs = LaidOutPrograms(build_layout(job), lanes)
    assert len(programs) == len(job.programs)
    for found, wanted in zip(programs[:], job.programs, strict=True):
        assert found.lanes == wanted.lanes
        assert found.task_count == wanted.task_count
        for column in COLUMNS:
            is_member = wanted.slot >= 0
            values = getattr(wanted, column)
            if column in ("sequence", "role"):
                assert getattr(found, column)[is_member].tolist() == values[is_member].tolist()
            else:
                assert getattr(found, column).tolist() == values.tolist()
    last = programs[len(programs) - 1]
    assert programs[len(programs) - 1] is last
    assert programs[0].slot.tolist() == job.programs[0].slot.tolist()
    assert len(programs[1:]) == len(programs) - 1


@given(made=random_jobs())
def test_places_are_those_of_the_layout(made):
    layout, places = build_layout(made.job), build_places(made.job)
    for name in places._fields:
        assert getattr(places, name).tolist() == getattr(layout, name).tolist()
    counts = sequence_counts(made.job)
    assert np.diff(layout.g_rendezvous).tolist() == counts.tolist()
    assert max_distance(made.job) == max(
        (int(one.dep_distance.max(initial=0)) for one in made.job.programs), default=0
    )


def test_columns_begin_at_lines_of_the_cache():
    layout = build_layout(alternating_job(ranks=2, members=7)[0])
    columns = (layout.member, layout.dep_start)
    first, second = (column.__array_interface__["data"][0] for column in columns)
    # 14 tasks of 4 bytes, and 8 bytes to the next line.
    assert (columns[0].nbytes, second - first) == (56, 64)
    full = build_layout(alternating_job(ranks=2, members=8)[0])
    columns = (full.member, full.dep_start)
    first, second = (column.__array_interface__["data"][0] for column in columns)
    assert (columns[0].nbytes, second - first) == (64, 64)


@pytest.mark.parametrize(
    ("size_bytes", "room_bytes"),
    [
        (SMALL_BYTES, SMALL_BYTES),
        (SMALL_BYTES + 8, 2 * BIG_BYTES),
        (2 * BIG_BYTES - 8, 2 * BIG_BYTES),
        (2 * BIG_BYTES, 2 * BIG_BYTES),
        (2 * BIG_BYTES + 8, 2 * BIG_BYTES + 8),
    ],
)
def test_middling_arrays_are_cut_from_one_that_gets_big_pages(size_bytes, room_bytes):
    found = in_big_pages(size_bytes // 8, np.int64)
    assert (found.nbytes, found.base.nbytes) == (size_bytes, room_bytes)
    # 256 KiB, and the 4 MiB from which numpy asks for big pages.
    assert (SMALL_BYTES, BIG_BYTES) == (262_144, 4_194_304)
