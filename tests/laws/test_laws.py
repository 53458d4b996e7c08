"""A few random scenarios keep the laws; `make laws` asks thousands."""

from __future__ import annotations

import random

import pytest

from tests.laws.__main__ import applies, check
from tests.laws.agreements import AGREEMENTS
from tests.laws.drawing import draw_case
from tests.laws.laws import LAWS, TOLERANCE, Relation

MOST_EXEMPTIONS = 5


@pytest.mark.parametrize("law", [*LAWS, *AGREEMENTS], ids=lambda law: law.name)
def test_scenarios_keep_the_law(law, tmp_path):
    chooser = random.Random(law.name)
    # A file of a rack takes seconds to wire up.
    cases = (draw_case(chooser) for _ in range(100))
    quick = [case for case in cases if "nvl72" not in case.machine["name"]]
    case = next(case for case in quick if applies(law, case))
    broken = check(case, law, tmp_path)
    assert broken is None or broken.exemption, f"{case}: {broken.words}"


def test_laws_tell_more_from_less():
    assert Relation.NOT_LESS.holds(1000, 999)
    assert not Relation.NOT_LESS.holds(1000, 990)
    assert Relation.NOT_MORE.holds(1000, 1001)
    assert not Relation.NOT_MORE.holds(1000, 1010)
    assert not Relation.EQUAL.holds(1000, 1001)


def test_exemptions_are_few_and_have_a_source_and_a_bound():
    exemptions = {one for law in LAWS for one in law.exemptions}
    assert len(exemptions) <= MOST_EXEMPTIONS
    for one in exemptions:
        assert one.source
        assert TOLERANCE < one.bound < 0.5
