"""Which stack is chosen for a framework, its release and a family of workloads."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from perfmodel.base.errors import CalibrationError, WorkloadError
from perfmodel.base.forms import read_mapping
from perfmodel.extensions.measurements.validation.framework_stacks import choose_stack
from perfmodel.stacks.capabilities import FrameworkBehaviour
from perfmodel.stacks.profiles import list_stacks, load_stack
from perfmodel.stacks.stack import Claim
from perfmodel.workloads import build_job, load_workload
from perfmodel.workloads.families import FAMILIES


def read_claim(entry):
    return read_mapping(Claim, entry, document="entry", error_type=CalibrationError)


@pytest.mark.parametrize(
    ("entry", "covered", "others"),
    [
        # Releases are compared by their numbers in order. One that nobody stated is none of those
        # that a claim names.
        (
            {"from": "2.9", "before": "21"},
            [("2.10", ""), ("torch 20.12", "")],
            [("2.8.7", ""), ("21.05", ""), ("", "")],
        ),
        ({"placement": "rows"}, [("", "rows")], [("", "columns"), ("", "")]),
        ({"from": "2.0"}, [("2.0", ""), ("3", "anything")], [("1.9", "")]),
        ({"before": "2.0"}, [("1.9", "")], [("2.0", ""), ("dev", "")]),
        ({}, [("", ""), ("dev", "rows")], []),
    ],
)
def test_a_claim_covers_its_placement_and_releases_up_to_their_borders(entry, covered, others):
    claim = read_claim({"framework": "any", **entry})
    assert all(claim.covers(*run) for run in covered)
    assert not any(claim.covers(*run) for run in others)
    assert claim.has_releases is ("from" in entry or "before" in entry)


def test_a_claim_for_chips_goes_before_all_others():
    names = [
        choose_stack(
            "megatron_lm", release="24.07", family="transformer", generation=one
        ).stack.name
        for one in ("cdna3", "cdna4", "hopper")
    ]
    assert names == ["primus", "primus", "megatron"]


def test_a_claim_for_releases_goes_before_one_for_the_whole_framework():
    old, new = (
        choose_stack("megatron_lm", release=release, family="transformer").stack.name
        for release in ("v1.x", "24.07")
    )
    assert (old, new) == ("megatron_lm", "megatron")
    releases = ("24.07 vboost", "24.09", "26.04.01", "")
    names = [
        choose_stack("nemo", release=release, family="transformer").stack.name
        for release in releases
    ]
    assert names == ["nemo", "nemo_2024", "nemo_2025", "nemo"]


def test_a_framework_of_2020_exchanges_through_the_host():
    for release, is_old in (("0.2", True), ("0.5+", False), ("", False)):
        stack = choose_stack("oneflow", release=release, family="dlrm").stack
        assert stack.has(FrameworkBehaviour.UNRELAYED) is is_old


def test_bottom_layers_ran_on_one_gpu_until_the_release_that_spread_them():
    for release, is_lone in (("2021-11-16", True), ("2022-03-21", True), ("2023-03-14", False)):
        stack = choose_stack("nvidia_tf2_dlrm", release=release, family="dlrm").stack
        assert stack.has(FrameworkBehaviour.LONE_BOTTOM) is is_lone


def test_a_claim_for_a_placement_goes_before_one_for_the_whole_framework():
    names = [
        choose_stack("hugectr", family="dlrm", placement=placement).stack.name
        for placement in ("", "all_keys", "hugectr_hybrid")
    ]
    assert names == [names[0], "hugectr_hash", "hugectr_2022"]
    assert names[0] not in names[1:]


@pytest.mark.parametrize("family", list(FAMILIES))
def test_every_framework_is_served_by_a_stack_of_its_family(family):
    stacks = [load_stack(name) for name in list_stacks()]
    for framework in {
        claim.framework for one in stacks if one.family is family for claim in one.stands_for
    }:
        chosen = choose_stack(framework, family=family)
        assert chosen.stack.family is family, framework


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("framework", ["abacus", ""])
def test_what_no_file_names_gets_the_generic_stack_and_a_sentence(family, framework):
    chosen = choose_stack(framework, family=family)
    assert chosen.stack.name.startswith("generic")
    assert len(chosen.assumptions) == 1


def test_a_stack_of_another_family_is_refused():
    spec = load_workload("dlrm_mlperf")
    with pytest.raises(WorkloadError, match="'nanotron' is for transformer workloads"):
        build_job(spec, rank_count=1, ranks_per_host=1, stack=load_stack("nanotron"))


def test_a_stack_states_at_most_four_fitted_constants():
    for name in list_stacks():
        assert len(load_stack(name).kernel_time_ratio) <= 4, name


def test_the_generic_stack_may_be_named_and_still_says_so():
    chosen = choose_stack("generic", family="transformer")
    assert chosen.stack.name == "generic"
    assert "has no stack of its own" in chosen.assumptions[0]
    assert "not stated" in choose_stack("", family="dlrm").assumptions[0]
    assert choose_stack("nanotron", family="transformer").assumptions == ()
    assert "'abacus'" in choose_stack("abacus", family="dlrm").assumptions[0]


def test_a_claim_stays_what_a_file_says_and_a_name_may_be_one_letter():
    claim = read_claim({"framework": "x", "from": "2", "before": "9", "placement": "y"})
    assert (claim.since, claim.before, claim.placement) == ("2", "9", "y")
    with pytest.raises(FrozenInstanceError):
        claim.framework = "z"


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        ({"framework": ""}, "framework: must be text, not empty"),
        ({"framework": 5}, "framework: must be text, got 5"),
        ({"framework": "any", "until": "3"}, "until: unknown key"),
        (7, "file: must be a mapping"),
    ],
)
def test_a_claim_that_says_something_else_is_refused(entry, place):
    with pytest.raises(CalibrationError, match=place):
        read_claim(entry)


def test_a_placement_of_tables_wins_over_a_release_and_both_over_either():
    def name(release: str, placement: str) -> str:
        return choose_stack(
            "hugectr", release=release, family="dlrm", placement=placement
        ).stack.name

    assert name("21.05", "all_keys") == "hugectr_hash"
    assert name("21.05", "hugectr_hybrid") == "hugectr_2021"
    assert name("", "hugectr_hybrid") == "hugectr_2022"
    assert [name(release, "hugectr_auto") for release in ("23.04", "23.09")] == [
        "hugectr_2023",
        "hugectr",
    ]
