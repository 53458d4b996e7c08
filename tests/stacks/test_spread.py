"""How unsure whole predictions are, and what that rests on."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, asdict, replace

import pytest

from perfmodel.base.errors import CalibrationError
from perfmodel.base.forms import read_mapping
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.spread import SpreadFile, find_spread, load_spread
from perfmodel.stacks.stack import Evidence

PLAIN = replace(load_stack("generic"), evidence={})
KNOWN = replace(PLAIN, evidence={"hopper": Evidence(rows=40, sources=2, hosts=4, spread=0.05)})


def spread(stack, architecture="hopper", hosts=1, **words):
    return find_spread(stack, architecture=architecture, hosts=hosts, **words)


def test_runs_on_the_same_chip_make_the_narrowest_interval_and_none_the_widest():
    own = spread(KNOWN)
    other = spread(KNOWN, "ampere")
    none = spread(PLAIN)
    assert own.relative_sigma == 0.05
    assert own.relative_sigma < other.relative_sigma <= none.relative_sigma
    assert "40 runs of 2 publishers with" in own.sentence
    assert "none on ampere" in other.sentence
    assert "none with generic" in none.sentence


def test_hosts_beyond_the_evidence_widen_the_interval():
    near, far = (spread(KNOWN, hosts=hosts) for hosts in (4, 16))
    # Two doublings beyond four hosts, in addition to the spread itself.
    further = 2 * load_spread().families["transformer"].per_doubling
    assert near.relative_sigma == 0.05
    assert far.relative_sigma == pytest.approx(math.hypot(0.05, further))
    assert "16 hosts are beyond the 4" in far.sentence


def test_smaller_batches_than_the_evidence_has_widen_the_interval():
    seen = {"hopper": Evidence(rows=40, sources=2, hosts=4, samples=4096, spread=0.05)}
    stack = replace(PLAIN, family="dlrm", evidence=seen)
    near, small = (spread(stack, samples=samples) for samples in (4096, 512))
    # Three halvings below 4,096 samples, in addition to the spread itself.
    fewer = 3 * load_spread().families["dlrm"].per_halving
    assert near.relative_sigma == spread(stack).relative_sigma == 0.05
    assert small.relative_sigma == pytest.approx(math.hypot(0.05, fewer))
    assert "512 samples per rank are fewer than the 4,096" in small.sentence


def test_constants_that_were_fitted_do_not_make_an_interval_wider():
    fitted = replace(PLAIN, kernel_time_ratio={"memory": {"default": 1.5}})
    assert spread(fitted) == spread(PLAIN)


def test_recommendation_models_have_a_spread_of_their_own():
    known = load_spread()
    of_dlrm = spread(replace(PLAIN, family="dlrm"))
    of_transformer = spread(replace(PLAIN, family="transformer"))
    of_both = spread(replace(PLAIN, family=None))
    assert of_dlrm.relative_sigma == known.families["dlrm"].no_runs
    assert (
        of_transformer.relative_sigma
        == of_both.relative_sigma
        == known.families["transformer"].no_runs
    )


def test_another_chip_is_no_surer_than_the_chips_that_are_known():
    wide = replace(PLAIN, evidence={"hopper": Evidence(rows=4, sources=1, hosts=1, spread=5.0)})
    assert spread(wide, "ampere").relative_sigma == 5.0
    other = spread(KNOWN, "ampere")
    assert other.relative_sigma == max(0.05, load_spread().families["transformer"].other_chip)
    assert "4 runs of 1 publisher with" in spread(wide).sentence


def test_hosts_are_counted_against_the_most_that_any_evidence_has():
    two = replace(
        KNOWN,
        evidence={
            "hopper": Evidence(rows=40, sources=2, hosts=4, spread=0.05),
            "ampere": Evidence(rows=40, sources=2, hosts=16, spread=0.05),
        },
    )
    assert spread(two, hosts=16).relative_sigma == 0.05
    # Without evidence one host is what is covered: a doubling to two.
    alone = load_spread().families["transformer"]
    far = spread(PLAIN, hosts=2)
    assert far.relative_sigma == pytest.approx(math.hypot(alone.no_runs, alone.per_doubling))
    assert "beyond the 1 that" in far.sentence


def test_what_the_file_says_does_not_change_under_a_question():
    known = load_spread()
    assert load_spread() is known
    for value, field in ((known, "date"), (known.families["dlrm"], "rows")):
        with pytest.raises(FrozenInstanceError):
            setattr(value, field, None)
    content = asdict(known)
    content["families"]["dlrm"]["other_chip"] = 2.1
    with pytest.raises(CalibrationError) as caught:
        read_mapping(
            SpreadFile,
            {**content, "colour": "red"},
            document="spread.yaml",
            error_type=CalibrationError,
        )
    assert "colour: unknown key" in str(caught.value)
    assert "families.dlrm.other_chip: must be at most 2, got 2.1" in str(caught.value)


def test_what_a_job_has_of_a_feature_widens_its_interval_by_as_much():
    known = load_spread().families["transformer"].features
    features = {"experts": 1.0, "host of experts": 0.5}
    wide = spread(KNOWN, features=features)
    parts = known["experts"], 0.5 * known["host of experts"]
    assert wide.relative_sigma == pytest.approx(math.hypot(0.05, *parts))
    assert f", experts {known['experts']:.0%}" in wide.sentence
    # Features of kernels are counted, so their errors are not drawn besides.
    assert wide.includes_kernels
    assert not spread(replace(KNOWN, family="dlrm"), features=features).includes_kernels


def test_one_source_is_told_as_one():
    lone = replace(KNOWN, evidence={"hopper": replace(KNOWN.evidence["hopper"], sources=1)})
    assert "40 runs of 1 publisher with" in spread(lone).sentence


def test_the_spread_of_scripts_includes_kernels_where_scripts_ran_on_such_chips():
    stack = load_stack("pytorch_fused")
    seen, unseen = (
        find_spread(stack, architecture=chip, hosts=1, is_emulated=True)
        for chip in ("ampere", "blackwell")
    )
    assert seen.includes_kernels
    assert seen.relative_sigma == unseen.relative_sigma == load_spread().scripts.spread
    assert not unseen.includes_kernels
    assert "none ran on blackwell" in unseen.sentence
    assert "none ran" not in seen.sentence


def test_scripts_on_more_hosts_than_those_with_published_times_are_less_sure():
    stack = load_stack("pytorch_fused")
    one, eight = (
        find_spread(stack, architecture="hopper", hosts=hosts, is_emulated=True) for hosts in (1, 8)
    )
    further = 3 * load_spread().families["transformer"].per_doubling
    assert eight.relative_sigma == pytest.approx(math.hypot(one.relative_sigma, further))
