"""config.json of Hugging Face: sizes as published, and what cannot be read is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from perfmodel.base.errors import WorkloadError
from perfmodel.extensions.formats.models import read_foreign
from perfmodel.extensions.formats.models.hugging_face import load_tables
from perfmodel.workloads import load_workload
from perfmodel.workloads.transformer.model import blocks_of
from perfmodel.workloads.transformer.shapes import count_flops, count_parameters

PUBLISHED_WITHIN = 1e-3


def shape(layers, hidden, heads, ffn, vocab, **more):
    return {
        "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "intermediate_size": ffn, "vocab_size": vocab, **more,
    }  # fmt: skip


PUBLISHED = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))
LLAMA = PUBLISHED["llama"][1]
KINDS = yaml.safe_load(Path(__file__).with_name("published_kinds.yaml").read_text(encoding="utf-8"))


def write(folder, content):
    path = folder / "config.json"
    path.write_text(json.dumps(content))
    return path


def test_every_table_but_those_of_wrappers_is_checked_against_a_known_size():
    wrappers = {name for name, table in load_tables().items() if table.part}
    assert set(load_tables()) - set(PUBLISHED) - set(KINDS) - wrappers == {
        "kimi_k2", "minimax_m3",
    }  # fmt: skip


@pytest.mark.parametrize("model_type", KINDS)
def test_a_model_whose_layers_differ_has_as_many_parameters_as_its_publisher_says(
    tmp_path, model_type
):
    published, fields = KINDS[model_type]
    workload = load_workload(write(tmp_path, {"model_type": model_type, **fields}))
    assert count_parameters(workload.model) == pytest.approx(published, rel=0.01)
    assert not workload.unknown_keys


def test_what_every_layer_is_becomes_the_shortest_pattern(tmp_path):
    def pattern(model_type, **changed):
        fields = {**KINDS[model_type][1], "model_type": model_type, **changed}
        return load_workload(write(tmp_path, fields)).model.pattern

    assert pattern("step3p7", num_hidden_layers=6) == (
        "full/dense + 2 x windowed/dense + windowed/experts + full/experts + windowed/experts"
    )
    assert pattern("deepseek_v32", num_hidden_layers=5) == "3 x sparse/dense + 2 x sparse/experts"
    assert pattern("llama4_text") == "full/dense(ffn=16384) + full/experts"
    mixed = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    fields = {"model_type": "gpt_oss", **LLAMA, "layer_types": mixed, "num_hidden_layers": 4}
    assert load_workload(write(tmp_path, fields)).model.pattern == (
        "full/experts + 2 x windowed/experts"
    )


@pytest.mark.parametrize("model_type", PUBLISHED)
def test_a_model_has_as_many_parameters_as_transformers_builds(tmp_path, model_type):
    published, fields = PUBLISHED[model_type]
    workload = load_workload(write(tmp_path, {"model_type": model_type, **fields}))
    assert count_parameters(workload.model) == pytest.approx(published, rel=PUBLISHED_WITHIN)


def test_switches_of_a_file_decide_how_many_heads_have_keys_of_their_own(tmp_path):
    large = {
        "model_type": "falcon", "num_hidden_layers": 60, "hidden_size": 8192, "vocab_size": 65024,
        "num_attention_heads": 128, "num_kv_heads": 8, "multi_query": True,
        "new_decoder_architecture": True,
    }  # fmt: skip
    model = load_workload(write(tmp_path, large)).model
    assert model.kv_heads == 8
    assert count_parameters(model) == pytest.approx(41_303_293_952, rel=PUBLISHED_WITHIN)
    small = write(tmp_path, {**large, "new_decoder_architecture": False})
    assert load_workload(small).model.kv_heads == 1


def test_the_folder_of_a_model_is_as_good_as_its_file(tmp_path):
    folder = tmp_path / "My-Llama"
    folder.mkdir()
    path = write(folder, {"model_type": "llama", **LLAMA})
    assert load_workload(folder).model == load_workload(path).model
    assert load_workload(folder).name == "my_llama"


def test_what_no_config_states_is_assumed_and_said_until_the_question_states_it(tmp_path):
    path = write(tmp_path, {"model_type": "llama", **LLAMA})
    workload = load_workload(path)
    # A million tokens: 256 sequences of 4,096.
    assert (workload.batch, workload.sequence_length) == (256, 4096)
    assert [one.partition(":")[0] for one in workload.assumed] == [
        "batch", "sequence_length", "training", "Not stated, so as its program has it by default",
    ]  # fmt: skip
    own = load_workload(path, ["batch=8", "sequence_length=1024", "training.recompute=none"])
    assert (own.batch, own.sequence_length) == (8, 1024)
    assert [one.partition(",")[0] for one in own.assumed] == ["Not stated"]


def test_every_field_is_read_defaulted_ignored_or_unknown(tmp_path):
    content = {"model_type": "llama", **LLAMA, "rope_theta": 1e4, "surprise": 1, "head_dim": None}
    found = read_foreign(write(tmp_path, content))
    uses = {use.key: use.use.value for use in found.uses}
    assert set(content) <= set(uses)
    assert uses["hidden_size"] == "read"
    assert uses["tie_word_embeddings"] == "not stated"
    assert uses["rope_theta"] == "no effect"
    assert uses["surprise"] == "unknown"
    assert found.content["unknown_keys"] == ["surprise"]


def test_windows_are_in_the_layers_that_the_file_says(tmp_path):
    _, fields = PUBLISHED["gemma3_text"]
    model = load_workload(write(tmp_path, {"model_type": "gemma3_text", **fields})).model
    assert [block.window is not None for block in blocks_of(model)[:7]] == [True] * 5 + [
        False,
        True,
    ]


def test_the_head_of_a_model_of_several_parts_belongs_to_the_whole(tmp_path):
    text = shape(36, 2560, 32, 9728, 151936, num_key_value_heads=8, tie_word_embeddings=False)
    whole = {"model_type": "qwen3_vl", "tie_word_embeddings": True, "text_config": text}
    model = load_workload(write(tmp_path, whole)).model
    assert count_parameters(model) == pytest.approx(4_022_468_096, rel=PUBLISHED_WITHIN)


def test_the_type_of_a_part_decides_how_it_is_read(tmp_path):
    # Mistral Small 3.1: 24,011,361,280 published parameters, of which 438,958,080 see images:
    # 24 x (4 x 1024^2 + 3 x 1024 x 4096 + 2 x 1024) + 3 x 14^2 x 1024 + 1024 in the tower and
    # 1024 + 4096 x 1024 + 1024 x 5120 + 5120^2 between it and the text.
    text = shape(40, 5120, 32, 32768, 131072, num_key_value_heads=8, head_dim=128)
    whole = {"model_type": "mistral3", "text_config": {**text, "model_type": "mistral"}}
    model = load_workload(write(tmp_path, whole)).model
    assert count_parameters(model) == 24_011_361_280 - 438_958_080

    part = {**text, "model_type": "mixtral", "num_local_experts": 4}
    path = write(tmp_path, {"model_type": "llava", "text_config": part})
    assert load_workload(path).model.experts == 4
    path = write(tmp_path, {**whole, "text_config": {**text, "model_type": "mistral9"}})
    with pytest.raises(WorkloadError, match=r"text_config: model_type must be .* got mistral9"):
        load_workload(path)


def test_infinity_in_a_file_is_no_obstacle(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **LLAMA, "limit": [0.0, float("inf")]}))
    assert count_parameters(load_workload(path).model) == 8_030_261_248


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "llama5"}, "that are known (such as llama, "),
        ({"model_type": None}, "got nothing."),
        ({"model_type": "deepseek_v4"}, "keys that several tokens share"),
        ({"model_type": "mamba"}, "cannot model yet. `perfmodel emulate` predicts the"),
        ({"model_type": "t5"}, "model_type t5 is an encoder and a decoder"),
        ({"model_type": "llama4_text", "interleave_moe_layer_step": 2},
         "intermediate_size_mlp: must be given for"),
        ({"model_type": "mimo_v2_flash", "hybrid_layer_pattern": [0, 2] * 16},
         "hybrid_layer_pattern: can only be modelled as 0, 1, got '2'"),
        ({"model_type": "mimo_v2_flash", "hybrid_layer_pattern": [0]}, "each of 32 layers"),
        ({"model_type": "nemotron-nas", "block_configs": [{"attention": {"no_op": True},
          "ffn": {"no_op": True, "replace_with_linear": True}}]}, "without replace_with_linear"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "must name llama with its"),
        ({"architectures": ["MambaForCausalLM"]}, "must name llama with its language"),
        ({"hidden_size": None}, "hidden_size: must be given, but is missing"),
        ({"hidden_size": "${width}"}, "hidden_size: is the reference '${width}'"),
        ({"num_attention_heads": 31}, "hidden must be divisible by heads"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window: can only be"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [0]}, "mlp_only_layers: can only be"),
        ({"model_type": "gpt_oss", "layer_types": ["full_attention", "chunked_attention"] * 16},
         "layer_types: can only be modelled as sliding_attention, full_attention"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_by_name(tmp_path, changed, said):
    path = write(tmp_path, {"model_type": "llama", **LLAMA, **changed})
    with pytest.raises(WorkloadError, match=r"config\.json") as fault:
        load_workload(path)
    assert said in str(fault.value)


def test_a_reference_does_not_matter_where_the_question_states_the_field(tmp_path):
    path = write(tmp_path, {"model_type": "llama", **LLAMA, "vocab_size": "${vocab}"})
    assert load_workload(path, ["model.vocab=32000"]).model.vocab == 32000


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(WorkloadError, match="is a folder without config"):
        load_workload(tmp_path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_hidden_layers": {}}, "layers"),
        ({"num_hidden_layers": -3, "layer_types": []}, "layers"),
        ({"num_hidden_layers": 10**11}, "layers"),
        ({"model_type": "qwen3_vl", "text_config": "$X"}, "text_config must be a mapping"),
        ({"model_type": "step3p7", "moe_intermediate_size": 8, "share_expert_dim": [1]},
         "must be a multiple of the width"),
        ({"model_type": "qwen3_5_text", "linear_key_head_dim": "", "linear_num_value_heads": 4,
          "linear_num_key_heads": 4, "full_attention_interval": 4}, "must be given for"),
        ({"model_type": "nemotron-nas", "block_configs": [{}]}, "block_configs[0]: must state"),
    ],
)  # fmt: skip
def test_values_of_the_wrong_kind_are_refused_in_a_sentence(tmp_path, changed, said):
    path = write(tmp_path, {"model_type": "llama", **LLAMA, **changed})
    with pytest.raises(WorkloadError) as fault:
        load_workload(path)
    assert said in str(fault.value)


def test_layers_that_a_file_leaves_alike_are_said(tmp_path):
    fields = {key: value for key, value in KINDS["step3p7"][1].items() if key != "layer_types"}
    fields.pop("first_k_dense_replace", None)
    workload = load_workload(write(tmp_path, {"model_type": "step3p7", **fields}))
    assert "layer_types (windowed)" in workload.assumed[-1]


ACTIVE = {
    "qwen3_5_moe": 3e9, "qwen3_5_text": 27e9, "deepseek_v32": 37e9, "glm_moe_dsa": 40e9,
    "gemma4_text": 3.8e9, "nemotron_h": 55e9, "nemotron-nas": 49.9e9, "mimo_v2_flash": 15e9,
    "step3p7": 11e9, "llama4_text": 17e9,
}  # fmt: skip
"""Parameters that work on a token, as names and cards of the models have them (two digits)."""


@pytest.mark.parametrize("model_type", ACTIVE)
def test_operations_of_a_short_sequence_are_six_for_every_active_parameter(tmp_path, model_type):
    path = write(tmp_path, {"model_type": model_type, **KINDS[model_type][1]})
    spec = load_workload(path, ["sequence_length=64", "batch=1"])
    # Attention among 64 tokens is next to nothing. Cards count the embedding, or not.
    active = count_flops(spec).model_flops / (6 * 64)
    embedding = spec.model.vocab * spec.model.hidden
    assert 0.95 * active <= ACTIVE[model_type] <= 1.05 * (active + embedding)
