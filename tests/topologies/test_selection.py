import pytest

from perfmodel.base.errors import TopologyError
from topologies.link_notation import parse_selection

COUNTS = {"gpu": 8, "cpu": 2}


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("gpu:3", [3]),
        ("gpu:0-2", [0, 1, 2]),
        ("gpu:0,5", [0, 5]),
        ("gpu:0-1, 6-7", [0, 1, 6, 7]),
        ("gpu:*", list(range(8))),
    ],
)
def test_a_selection_names_vertices(text, indices):
    assert parse_selection(text, COUNTS) == tuple(f"gpu:{index}" for index in indices)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("gpu:8", "dangles: there is no gpu:8, only gpu:0 to gpu:7"),
        ("tpu:0", "names no vertex kind"),
        ("gpu:3-1", "runs backwards"),
        ("gpu", "must look like"),
        ("gpu:-1", "must look like"),
        ("gpu:99999999999", "too large"),
        (7, "must look like"),
        (None, "must look like"),
    ],
)
def test_a_wrong_selection_says_what_is_wrong(text, complaint):
    with pytest.raises(TopologyError, match=complaint):
        parse_selection(text, COUNTS)
