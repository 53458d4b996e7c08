"""Labels that differ only in numbers become one."""

from __future__ import annotations

from perfmodel.prediction.explain import merge_numbers


def test_layers_are_merged_and_words_with_digits_are_not():
    assert merge_numbers("layer 12/ffn/up forward") == "layer */ffn/up forward"
    assert merge_numbers("conv2d/step 3") == "conv2d/step *"
