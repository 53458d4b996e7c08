"""A few random scenarios keep the laws; `make laws` asks thousands."""

from __future__ import annotations

import random

import pytest

from tests.laws.__main__ import check
from tests.laws.drawing import draw_case
from tests.laws.laws import LAWS, OPEN, Relation

HOLDING = [law for law in LAWS if law.name not in OPEN]


@pytest.mark.parametrize("law", HOLDING, ids=lambda law: law.name)
def test_scenarios_keep_the_law(law, tmp_path):
    chooser = random.Random(law.name)
    cases = (draw_case(chooser) for _ in range(100))
    asked = [case for case in cases if law.change(case) is not None][:2]
    assert len(asked) == 2
    for case in asked:
        assert not check(case, law, tmp_path), str(case)


def test_laws_tell_more_from_less():
    assert Relation.NOT_FASTER.holds(1000, 999)
    assert not Relation.NOT_FASTER.holds(1000, 990)
    assert Relation.NOT_SLOWER.holds(1000, 1001)
    assert not Relation.NOT_SLOWER.holds(1000, 1010)
    assert not Relation.EQUAL.holds(1000, 1001)
    assert set(OPEN) < {law.name for law in LAWS}
