"""Transformations as people type them."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import ScenarioError
from perfmodel.extensions.whatif import load_recipes, parse_sweep, parse_transformation
from perfmodel.extensions.whatif.patterns import LabelPattern
from perfmodel.extensions.whatif.selection import LaneWord, Numbers


def test_a_transformation_is_a_name_with_typed_parameters():
    made = parse_transformation("scale:match=*gemm*|conv,factor=0.5,lane=compute,rank=0+2-4")

    assert made.name == "scale"
    assert made.values == {
        "match": LabelPattern("*gemm*|conv"), "factor": 0.5, "lane": LaneWord.COMPUTE,
        "rank": Numbers((0, 2, 3, 4)),
    }  # fmt: skip


def test_durations_and_sizes_carry_their_units():
    made = parse_transformation("set:to=20.5 ms,longer=1us,number=3+12")

    assert made.values == {
        "to": 20_500_000, "longer": 1000, "number": Numbers((3, 12)), "match": None,
        "lane": LaneWord.ANY, "rank": None,
    }  # fmt: skip
    assert parse_transformation("bucket:size=25MiB").values["size"] == 25 * 2**20


def test_the_machine_of_the_command_line_is_used_where_none_is_named():
    def machines(text):
        values = parse_transformation(text, topology="dgx_h100").values
        return values["topology"], values.get("was")

    assert machines("dtype:to=fp8") == ("dgx_h100", None)
    assert machines("dtype:to=fp8,topology=dgx_a100") == ("dgx_a100", None)
    assert machines("machine:topology=dgx_a100") == ("dgx_a100", "dgx_h100")


def test_a_sweep_is_one_transformation_a_value():
    sweep = parse_sweep("scale:match=gemm,factor=0.5..0.75..1")

    assert (sweep.name, sweep.key) == ("scale", "factor")
    assert [change.values["factor"] for _, change in sweep.points] == [0.5, 0.75, 1.0]


def test_a_value_alone_is_that_of_the_first_parameter():
    assert parse_transformation("host_overhead:0.5").values["factor"] == 0.5
    assert parse_transformation("machine:dgx_h100").values["topology"] == "dgx_h100"
    assert parse_transformation("scale:gemm,factor=2") == parse_transformation(
        "scale:match=gemm,factor=2"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("skale", "Did you mean 'scale'?"),
        ("nothing", "must be one of scale, set"),
        ("scale", r"factor: must be given(.|\n)*scale takes match=\.\.\., factor=\.\.\."),
        ("scale:match=a,factor=fast", "factor: must be a number, got 'fast'"),
        ("scale:match=a,factor=nan", "factor: must be a number"),
        ("scale:match=a,factor=-1", "factor: must be zero or more, got -1"),
        ("scale:match=*,factor=1", "every alternative must hold a letter"),
        ("scale:match=a,factor=1,speed=2", "speed: unknown key"),
        ("scale:match=a,factor=1,lane=gpu", "lane: must be one of any, host, device"),
        ("scale:match=a,match=b,factor=1", "each once"),
        ("scale:match", "parameters must be key=value"),
        ("set:to=20", "to: quantity: must carry its unit"),
        ("set:to=-1ms", "to: must be zero or more"),
        ("no_straggler:rank=x", "must be a whole number"),
        ("no_straggler:rank=5-2", "must be like 2 or 0-3"),
        ("dtype:to=fp7", "number format: must be one of"),
        ("bucket:size=0B", "size: must be at least 1 B, got 0 B"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_to_do(text, words):
    with pytest.raises(ScenarioError, match=words):
        parse_transformation(text)


@pytest.mark.parametrize("text", ["scale:match=a,factor=1", "scale:match=a..b,factor=1..2"])
def test_a_sweep_has_exactly_one_parameter_with_several_values(text):
    with pytest.raises(ScenarioError, match="exactly one parameter"):
        parse_sweep(text)


@pytest.mark.parametrize("name", load_recipes())
def test_every_transformation_has_a_first_sentence_evidence_and_readable_parameters(name):
    recipe = load_recipes()[name]
    assert recipe.does.endswith(".")
    assert recipe.evidence
    for key in recipe.keys:
        assert not key.endswith(("_ns", "_bytes"))
        assert f"{key}=" in recipe.usage
