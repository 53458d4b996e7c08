"""Recipes: every name in them is known."""

from __future__ import annotations

import pytest

from perfmodel.base.dtypes import DType
from perfmodel.extensions.whatif import load_recipes
from perfmodel.extensions.whatif.parameters import kind_of
from perfmodel.extensions.whatif.patterns import LabelPattern
from perfmodel.extensions.whatif.primitives import arguments_of
from perfmodel.extensions.whatif.recipes import COMPUTED_WORDS, PLACEHOLDER, is_reference
from perfmodel.extensions.whatif.recosting import bytes_of
from perfmodel.graph.ops import Attention


def iter_sentences(recipe):
    yield from (*recipe.assumes, recipe.counts)
    for alternatives in recipe.words.values():
        for one in alternatives:
            # An alternative for a parameter that the recipe lacks is never said.
            if recipe.parameters.keys() >= {key for key, is_ in one.when.items() if is_ != "none"}:
                yield one.say


@pytest.mark.parametrize("name", load_recipes())
def test_sentences_and_conditions_name_what_the_recipe_has(name):
    recipe = load_recipes()[name]
    steps = {step.primitive for step in recipe.steps}
    computed = {word for word, primitive in COMPUTED_WORDS.items() if primitive in steps}
    own = recipe.parameters.keys() | recipe.words.keys() | computed
    said = {word for text in iter_sentences(recipe) for word, _ in PLACEHOLDER.findall(text)}

    assert said <= own
    assert set(recipe.one_of) <= recipe.parameters.keys()
    assert {key for step in recipe.steps for key in step.when} <= recipe.parameters.keys()


@pytest.mark.parametrize("name", load_recipes())
def test_arguments_of_steps_have_the_kind_of_the_parameters_they_are_taken_from(name):
    recipe = load_recipes()[name]
    for step in recipe.steps:
        for argument in arguments_of(step.primitive):
            value = step.arguments.get(argument.key)
            if is_reference(value):
                kind = recipe.parameters[value[1:]].kind
                assert kind_of(argument.name, argument.hint) == kind.replace("word", "text")


def test_kernels_of_torch_optimizers_are_found_by_its_own_names_but_not_clipping():
    parameters = load_recipes()["optimizer"].parameters
    match, unless = (LabelPattern(str(parameters[key].default)) for key in ("match", "unless"))

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
