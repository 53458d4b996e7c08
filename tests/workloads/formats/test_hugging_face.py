"""config.json of Hugging Face: sizes as published, and what cannot be read is refused by name."""

from __future__ import annotations

import json

import pytest

from perfmodel.base.errors import WorkloadError
from perfmodel.workloads import load_workload
from perfmodel.workloads.formats import read_foreign
from perfmodel.workloads.formats.hugging_face import load_tables
from perfmodel.workloads.transformer.shapes import count_parameters

PUBLISHED_WITHIN = 1e-3


def shape(layers, hidden, heads, ffn, vocab, **more):
    return {
        "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
        "intermediate_size": ffn, "vocab_size": vocab, **more,
    }  # fmt: skip


LLAMA = shape(32, 4096, 32, 14336, 128256, num_key_value_heads=8, max_position_embeddings=8192)
PUBLISHED = {
    # model_type: fields, and the number of parameters. Most were compared with the model that
    # transformers 5.23 builds; `mimo` is worked out by hand.
    "llama": (LLAMA, 8_030_261_248),
    "mistral": (
        shape(32, 4096, 32, 14336, 32000, num_key_value_heads=8, sliding_window=4096),
        7_241_732_096,
    ),
    "mixtral": (
        shape(32, 4096, 32, 14336, 32000, num_key_value_heads=8, num_local_experts=8,
              num_experts_per_tok=2, sliding_window=None),
        46_702_792_704,
    ),
    "qwen2": (shape(28, 3584, 28, 18944, 152064, num_key_value_heads=4), 7_615_616_512),
    "qwen3": (
        shape(36, 4096, 32, 12288, 151936, num_key_value_heads=8, use_sliding_window=False),
        8_190_735_360,
    ),
    "qwen2_moe": (
        shape(24, 2048, 16, 5632, 151936, num_key_value_heads=16, num_experts=60,
              moe_intermediate_size=1408, shared_expert_intermediate_size=5632),
        14_315_784_192,
    ),
    "qwen3_moe": (
        shape(48, 2048, 32, 6144, 151936, num_key_value_heads=4, num_experts=128, head_dim=128,
              moe_intermediate_size=768, mlp_only_layers=[], decoder_sparse_step=1),
        30_532_122_624,
    ),
    "gemma": (shape(18, 2048, 8, 16384, 256000, num_key_value_heads=1), 2_506_172_416),
    "gemma2": (shape(42, 3584, 16, 14336, 256000, num_key_value_heads=8), 9_241_705_984),
    "gemma3_text": (
        shape(26, 1152, 4, 6912, 262144, num_key_value_heads=1, sliding_window=512),
        999_885_952,
    ),
    "deepseek_v2": (
        shape(27, 2048, 16, 10944, 102400, num_key_value_heads=16, n_routed_experts=64,
              n_shared_experts=2, num_experts_per_tok=6, moe_intermediate_size=1408,
              first_k_dense_replace=1, kv_lora_rank=512, q_lora_rank=None, v_head_dim=128),
        15_706_484_224,
    ),
    "deepseek_v3": (
        shape(61, 7168, 128, 18432, 129280, num_key_value_heads=128, n_routed_experts=256,
              n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048,
              first_k_dense_replace=3, v_head_dim=128, num_nextn_predict_layers=1),
        671_026_419_200,
    ),
    "gpt_oss": (
        shape(24, 2880, 64, 2880, 201088, num_local_experts=32, num_experts_per_tok=4,
              layer_types=["sliding_attention", "full_attention"] * 12),
        20_914_757_184,
    ),
    "gpt2": ({"n_layer": 48, "n_embd": 1600, "n_head": 25, "vocab_size": 50257}, 1_557_611_200),
    "gpt_neox": (shape(44, 6144, 64, 24576, 50432), 20_554_567_680),
    "phi": (shape(32, 2560, 32, 10240, 51200), 2_779_683_840),
    "phi3": (shape(32, 3072, 32, 8192, 32064, num_key_value_heads=32), 3_821_079_552),
    "phimoe": (
        shape(32, 4096, 32, 6400, 32064, num_key_value_heads=8, attention_bias=True,
              sliding_window=None),
        41_873_153_344,
    ),
    "olmo": (shape(32, 4096, 32, 11008, 50304), 6_888_095_744),
    "olmo2": (shape(32, 4096, 32, 11008, 100352), 7_298_617_344),
    "olmo3": (shape(32, 4096, 32, 11008, 100278), 7_298_011_136),
    "olmoe": (shape(16, 2048, 16, 1024, 50304), 6_919_161_856),
    "smollm3": (shape(36, 2048, 16, 11008, 128256), 3_075_098_624),
    "seed_oss": (shape(64, 5120, 80, 27648, 155136, num_key_value_heads=8), 36_151_104_512),
    "internlm2": (shape(32, 4096, 32, 14336, 92544, num_key_value_heads=8), 7_737_708_544),
    "granite": (
        shape(40, 4096, 32, 12800, 49155, num_key_value_heads=8, tie_word_embeddings=True),
        8_170_848_256,
    ),
    "stablelm": (shape(32, 2560, 32, 6912, 50304), 2_795_443_200),
    "cohere": (shape(40, 8192, 64, 22528, 256000), 34_980_831_232),
    "glm4_moe": (
        shape(46, 4096, 96, 10944, 151552, attention_bias=True, num_nextn_predict_layers=1),
        106_852_251_264,
    ),
    "starcoder2": (shape(32, 4608, 36, 18432, 49152, num_key_value_heads=4), 7_173_923_840),
    "gpt_bigcode": (
        {"n_layer": 40, "n_embd": 6144, "n_head": 48, "n_inner": 24576, "n_positions": 8192,
         "vocab_size": 49152, "multi_query": True},
        15_517_456_384,
    ),
    "gptj": ({"n_layer": 28, "n_embd": 4096, "n_head": 16, "vocab_size": 50400}, 6_050_882_784),
    "opt": (
        {**shape(32, 4096, 32, None, 50272), "ffn_dim": 16384, "word_embed_proj_dim": 4096},
        6_658_473_984,
    ),
    "bloom": ({"n_layer": 30, "hidden_size": 4096, "n_head": 32}, 7_069_016_064),
    "falcon": ({"multi_query": True, "num_kv_heads": 71}, 6_921_720_704),
    "roberta": (shape(12, 768, 12, 3072, 50265, max_position_embeddings=514, type_vocab_size=1),
                124_697_433),
    "xlm-roberta": (
        shape(12, 768, 12, 3072, 250002, max_position_embeddings=514, type_vocab_size=1),
        278_295_186,
    ),
    "bert": (
        shape(24, 1024, 16, 4096, 30522, architectures=["BertForPreTraining"]), 336_226_108,
    ),
    "mimo": (
        shape(36, 4096, 32, 11008, 151680, num_key_value_heads=8, attention_bias=True,
              use_sliding_window=False, num_nextn_predict_layers=1),
        7_622_254_592,
    ),
    "minimax_m2": (
        shape(62, 3072, 48, 1536, 200064, num_key_value_heads=8, shared_intermediate_size=0),
        228_689_748_992,
    ),
    "llama4_text": (
        shape(48, 5120, 40, 8192, 202048, num_key_value_heads=8, intermediate_size_mlp=16384),
        107_769_861_120,
    ),
    "ministral3": (shape(34, 4096, 32, 14336, 131072), 8_489_553_920),
    "cohere2": (shape(40, 8192, 64, 22528, 256000), 34_980_831_232),
    "nemotron": (
        shape(96, 18432, 96, 73728, 256000, num_key_value_heads=8, head_dim=192), 341_029_000_000,
    ),
    "arcee": (shape(32, 2560, 32, 18432, 32000, num_key_value_heads=32), 4_022_766_080),
    "exaone4": (
        shape(32, 4096, 32, 16384, 102400, num_key_value_heads=32, sliding_window=None),
        9_429_069_824,
    ),
    # As published with the weights.
    "exaone": (
        {**shape(None, 4096, 32, 14336, 102400, num_key_value_heads=8), "num_layers": 32},
        7_818_448_896,
    ),
    "chatglm": (
        {"num_layers": 40, "hidden_size": 4096, "num_attention_heads": 32, "kv_channels": 128,
         "multi_query_group_num": 2, "ffn_hidden_size": 13696, "padded_vocab_size": 151552,
         "multi_query_attention": True, "rmsnorm": True, "add_qkv_bias": True},
        9_399_951_360,
    ),
    # 2 x vocab x 4096 + 32 x (4 x 4096^2 + 3 x 4096 x 11008 + 2 x 4096) + 4096.
    "baichuan": (shape(32, 4096, 32, 11008, 125696), 7_505_973_248),
    "xverse": (shape(32, 4096, 32, 11008, 100534), 7_299_846_144),
    "ernie4_5": (shape(18, 1024, 16, 3072, 103424), 360_748_032),
    "hunyuan_v1_dense": (shape(32, 4096, 32, 11008, 290943), 8_859_676_672),
    "granitemoe": (shape(32, 4096, 32, 11008, 32000), 37_039_116_288),
    "glm4": (shape(40, 4096, 32, 13696, 151552), 9_400_279_040),
    "glm": (shape(40, 4096, 32, 13696, 151552), 9_399_951_360),
    "codegen": ({"n_layer": 28, "n_embd": 4096, "n_head": 16}, 6_050_882_784),
    "mpt": ({"n_layers": 24, "d_model": 2048, "n_heads": 16}, 1_311_213_568),
    "distilbert": ({"n_layers": 6, "dim": 768, "n_heads": 12}, 66_985_530),
}  # fmt: skip


def write(folder, content):
    path = folder / "config.json"
    path.write_text(json.dumps(content))
    return path


def test_every_table_but_those_of_wrappers_is_checked_against_a_known_size():
    wrappers = {name for name, table in load_tables().items() if table.part}
    assert set(load_tables()) - set(PUBLISHED) - wrappers == {"kimi_k2"}


@pytest.mark.parametrize("model_type", PUBLISHED)
def test_a_model_has_as_many_parameters_as_transformers_builds(tmp_path, model_type):
    fields, published = PUBLISHED[model_type]
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
        "batch", "sequence_length", "training",
    ]  # fmt: skip
    own = load_workload(path, ["batch=8", "sequence_length=1024", "training.recompute=none"])
    assert (own.batch, own.sequence_length, own.assumed) == (8, 1024, ())


def test_every_field_is_read_defaulted_ignored_or_unknown(tmp_path):
    content = {"model_type": "llama", **LLAMA, "rope_theta": 1e4, "surprise": 1, "head_dim": None}
    found = read_foreign(write(tmp_path, content))
    uses = {use.key: use.use.value for use in found.uses}
    assert set(content) <= set(uses)
    assert uses["hidden_size"] == "read"
    assert uses["tie_word_embeddings"] == "not stated"
    assert uses["rope_theta"] == "no effect"
    assert uses["surprise"] == "unknown"
    assert "Unknown fields were ignored: surprise." in found.content["assumed"]


def test_windows_are_in_the_layers_that_the_file_says(tmp_path):
    fields, _ = PUBLISHED["gemma3_text"]
    model = load_workload(write(tmp_path, {"model_type": "gemma3_text", **fields})).model
    assert [model.has_window(layer) for layer in range(7)] == [True] * 5 + [False, True]


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
        ({"model_type": "deepseek_v32"}, "an indexer chooses what a token sees"),
        ({"model_type": "mamba2"}, "which no workload has. `perfmodel emulate` predicts the"),
        ({"model_type": "t5"}, "model_type t5 is an encoder and a decoder"),
        ({"model_type": "llama4_text", "interleave_moe_layer_step": 2},
         "interleave_moe_layer_step: can only be"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "must name one of LlamaFor"),
        ({"hidden_size": None}, "hidden_size: must be given, but is missing"),
        ({"hidden_size": "${width}"}, "hidden_size: is the reference '${width}'"),
        ({"num_attention_heads": 31}, "hidden must be divisible by heads"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window: can only be"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [0]}, "mlp_only_layers: can only be"),
        ({"model_type": "deepseek_v3", "v_head_dim": 64, "qk_nope_head_dim": 128}, "must be equal"),
        ({"model_type": "gpt_oss", "layer_types": ["full_attention", "sliding_attention"] * 16},
         "layer_types: must repeat"),
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
