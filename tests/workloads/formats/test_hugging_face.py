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
    # model_type: fields, and the number of parameters that the model's own page states.
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
        shape(48, 2048, 32, 6144, 151936, num_key_value_heads=4, num_experts=128,
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
    "bert": (shape(24, 1024, 16, 4096, 30522), 336_226_108),
}  # fmt: skip


def write(folder, content):
    path = folder / "config.json"
    path.write_text(json.dumps(content))
    return path


def test_every_table_but_those_of_wrappers_is_checked_against_a_published_size():
    assert set(load_tables()) - set(PUBLISHED) == {"gemma3", "kimi_k2"}


@pytest.mark.parametrize("model_type", PUBLISHED)
def test_a_model_has_as_many_parameters_as_its_page_states(tmp_path, model_type):
    fields, published = PUBLISHED[model_type]
    workload = load_workload(write(tmp_path, {"model_type": model_type, **fields}))
    assert count_parameters(workload.model) == pytest.approx(published, rel=PUBLISHED_WITHIN)


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


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "mamba2"}, "model_type must be one of llama, mistral"),
        ({"model_type": "llama4"}, "got llama4. Nearest: llama."),
        ({"architectures": ["LlamaForSequenceClassification"]}, "must name one of LlamaFor"),
        ({"hidden_size": None}, "hidden_size: must be given, but is missing"),
        ({"hidden_size": "${width}"}, "hidden_size: is the reference '${width}'"),
        ({"num_attention_heads": 31}, "hidden must divide by heads"),
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
