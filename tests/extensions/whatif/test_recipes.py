"""Recipes of users: what they can say, and what is wrong with them."""

from __future__ import annotations

import pytest

from perfmodel.api import describe_schema
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import ScenarioError
from perfmodel.extensions.whatif import apply_all, load_recipes, parse_sweep, parse_transformation
from perfmodel.extensions.whatif.patterns import Pattern
from perfmodel.extensions.whatif.recosting import bytes_of
from perfmodel.graph.ops import Attention
from tests.extensions.whatif.jobs import span_ns, times, training_job

FASTER = """
words:
  rest: All else stays.
recipes:
  faster_gemm:
    does: GEMMs take *factor* of their time, and kernels like *gone* are not launched.
    parameters:
      factor: {is: factor, default: 0.5}
      gone: {is: pattern, optional: true}
    words:
      too: [{when: {gone: given}, say: " and {gone} disappears"}, ""]
    assumes: ["GEMMs take {factor}{too}. {rest}"]
    steps:
      - select: {match: gemm, lane: compute}
      - scale: {factor: $factor}
      - {when: {gone: given}, select: {match: $gone}}
      - {when: {gone: given}, remove: {}}
      - {when: {gone: given}, select: {match: bucket, lane: device, only: collectives}}
      - {when: {gone: given}, prioritise: {update: optimizer}}
    evidence: none
"""


def write(tmp_path, text):
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    return [str(tmp_path / "mine.yaml")]


def test_a_recipe_of_a_file_is_used_like_the_others(tmp_path):
    files = write(tmp_path, FASTER)
    wish = parse_transformation("faster_gemm", recipes=files)

    job = apply_all(training_job(), [wish])

    # As with `scale:match=gemm,factor=0.5`.
    assert span_ns(job) == 500
    assert wish.assumptions == ("GEMMs take 0.5. All else stays.",)
    assert list(load_recipes(*files))[-1] == "faster_gemm"
    sweep = parse_sweep("faster_gemm:factor=0.5,1", recipes=files)
    assert [span_ns(apply_all(training_job(), [one])) for _, one in sweep.points] == [500, 690]


def test_steps_whose_conditions_hold_run_in_order(tmp_path):
    wish = parse_transformation("faster_gemm:1,gone=gelu", recipes=write(tmp_path, FASTER))

    job = apply_all(training_job(), [wish])

    assert wish.assumptions == ("GEMMs take 1 and gelu disappears. All else stays.",)
    assert "0/layer 0/gelu forward" not in times(job)
    assert "0/update piece" in times(job)


def test_the_file_in_the_documentation_is_accepted(tmp_path):
    text = describe_schema("recipes").partition("```yaml\n")[2].partition("```")[0]
    wish = parse_transformation(
        "faster_attention:match=gemm,factor=0.5", recipes=write(tmp_path, text)
    )

    assert span_ns(apply_all(training_job(), [wish])) == 500
    assert wish.assumptions == ("Attention like gemm takes 0.5 of its time.",)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("scale: {factor", "skale: {factor", "skale (line 15): unknown key; did you mean 'scale'?"),
        ("{factor: $factor}", "{}", "scale.factor (line 15): must be given"),
        ("{factor: $factor}", "{factor: fast}", "factor (line 15): must be a number, got 'fast'"),
        ("{factor: $factor}", "{factor: {a: 1}}", "factor (line 15): must be a number, got {'a'"),
        ("{update: optimizer}", "{update: [a]}", "update (line 19): must be text to look for"),
        ("{factor: $factor}", "{factor: $fractor}", "'fractor' is unknown; did you mean 'factor'?"),
        ("{factor: $factor}", "{factor: $gone}", "must be factor, but the parameter is pattern"),
        ("lane: compute", "lane: gpu", "steps[0].select.lane (line 14): must be one of any"),
        ("default: 0.5", "default: often", "parameters.factor (line 8): must be a number"),
        ("is: factor", "is: number", "factor.is (line 8): must be one of pattern"),
        ("{factor}{too}", "{factor}{to}", "assumes[0] (line 12): 'to' is unknown; did"),
        ("and {gone} dis", "and {too} dis", "the word 'too' is made of itself"),
        ("prioritise: {update: optimizer}", "rehost: {}", "add the parameter `topology`"),
        ("when: {gone: given}, remove", "when: {gon: given}, remove", "steps[3].when"),
        ("{when: {gone: given}, remove: {}}", "{when: {gone: given}}", "exactly one primitive"),
        ("faster_gemm:", "scale:", "scale (line 5): must be a word of small letters"),
        ("    evidence", "    code: print()\n    evidence", "code (line 20): unknown key"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_recipe_is_named_with_its_place(tmp_path, old, new, words):
    assert old in FASTER
    with pytest.raises(ScenarioError) as caught:
        load_recipes(*write(tmp_path, FASTER.replace(old, new, 1)))

    assert words in str(caught.value)
    assert "mine.yaml: 1 fault" in str(caught.value)


def test_all_faults_of_a_file_are_named_at_once(tmp_path):
    bad = FASTER.replace("$factor", "$f").replace("{rest}", "{nothing}").replace("0.5", "x")

    with pytest.raises(ScenarioError, match="3 faults"):
        load_recipes(*write(tmp_path, bad))


def test_exactly_one_of_several_parameters_is_given(tmp_path):
    text = FASTER.replace(
        "    words:\n      too", "    one_of: [factor, gone]\n    words:\n      too"
    )
    files = write(tmp_path, text)

    with pytest.raises(ScenarioError, match="faster_gemm: say either factor=NAME or gone=PATTERN"):
        parse_transformation("faster_gemm:gone=gelu", recipes=files)


def test_kernels_of_torch_optimizers_are_found_by_its_own_names_but_not_clipping():
    parameters = load_recipes()["optimizer"].parameters
    match, unless = (Pattern(str(parameters[key].default)) for key in ("match", "unless"))

    assert match.matches("aten::_foreach_addcdiv_")
    assert match.matches("aten::_fused_adamw_")
    assert unless.matches("aten::_foreach_norm")
    assert not unless.matches("aten::_foreach_addcdiv_")


def test_attention_reads_and_writes_queries_and_keys_of_all_sequences():
    work = Attention(
        batch=3, heads=8, kv_heads=2, query_length=16, key_length=32, head_dim=4, dtype=DType.BF16,
        is_causal=False,
    )  # fmt: skip
    # Queries and outputs 2 x 8 x 16, keys and values 2 x 2 x 32 vectors of 4 values of 2 bytes.
    assert bytes_of(work) == 3 * (256 + 128) * 4 * 2
