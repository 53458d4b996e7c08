"""Settings of Megatron-LM, NeMo, torchtitan and DeepSpeed, as workloads and as layouts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from perfmodel.api import Scenario, fits, predict
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import WorkloadError
from perfmodel.extensions.formats.models import Use, read_foreign
from perfmodel.workloads import load_workload
from perfmodel.workloads.transformer.model import blocks_of
from perfmodel.workloads.transformer.shapes import count_parameters
from perfmodel.workloads.transformer.words import Head, Recompute, StateSharding

SCRIPT = """#!/bin/bash
TP=${TP:-4}
LAYERS=32  # of them all
MODEL_ARGS=(
    --num-layers $LAYERS --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope
    --swiglu --normalization RMSNorm --disable-bias-linear
    --untie-embeddings-and-output-weights --hidden-dropout 0.0
)
torchrun pretrain_gpt.py ${MODEL_ARGS[@]} --bf16 --fp8-format hybrid \\
    --micro-batch-size 1 --global-batch-size 128 --lr 1e-4 "--vocab-size 128256" \\
    --tensor-model-parallel-size ${TP} --sequence-parallel --pipeline-model-parallel-size 2 \\
    --num-layers-per-virtual-pipeline-stage 4 --use-distributed-optimizer --overlap-grad-reduce \\
    --recompute-granularity selective --data-path $DATA
"""
NEMO = """
trainer: {precision: bf16-mixed, devices: 8}
model:
  global_batch_size: 128
  micro_batch_size: 2
  tensor_model_parallel_size: 8
  encoder_seq_length: 4096
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 11008
  num_attention_heads: 32
  hidden_dropout: 0.0
  normalization: rmsnorm
  bias: false
  activation: fast-swiglu
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  tokenizer: {vocab_size: 32000}
  optim: {name: distributed_fused_adam}
"""
TOML = """
[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 2
global_batch_size = 64
seq_len = 4096
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 8
tensor_parallel_degree = 4
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
"""
DEEPSPEED = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": 3, "overlap_comm": True},
    "bf16": {"enabled": True},
}


@pytest.fixture
def file(tmp_path):
    def write(text, name="settings"):
        path = tmp_path / name
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        return path

    return write


def test_a_megatron_script_is_the_model_that_it_trains(file):
    workload = load_workload(file(SCRIPT, "train.sh"))
    # As published for Llama 3 8B.
    assert count_parameters(workload.model) == 8_030_261_248
    parallel, training = workload.parallel, workload.training
    assert (parallel.tp, parallel.pp, parallel.micro_batch, parallel.interleaving) == (4, 2, 1, 4)
    assert (parallel.sharding, parallel.sequence_parallel) == (StateSharding.ZERO1, True)
    assert (training.precision, training.gemm_dtype) == (DType.BF16, DType.FP8)
    assert training.recompute is Recompute.ATTENTION
    assert (workload.batch, workload.sequence_length, workload.stack) == (128, 8192, "megatron")


@pytest.mark.parametrize(
    ("words", "share"),
    [
        ("", 0.0),
        ("--optimizer-cpu-offload", 1.0),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0.25", 0.25),
        ("--optimizer-offload-fraction 0.25", 0.0),
    ],
)
def test_the_share_of_an_offloaded_optimizer_counts_only_where_megatron_offloads(
    file, words, share
):
    text = SCRIPT.replace("--bf16", f"--bf16 {words}")
    assert load_workload(file(text, "train.sh")).training.offload_optimizer == share


def test_arguments_in_yaml_read_the_same(file):
    text = "MODEL_ARGS:\n  --num-layers: 2\n  --hidden-size: 64\n  --num-attention-heads: 4\n"
    text += "  --global-batch-size: 8\n  --micro-batch-size: 1\n  --seq-length: 128\n"
    text += "  --vocab-size: 100\n  --max-position-embeddings: 128\n"
    workload = load_workload(file(text))
    # Without its argument, a network that is not gated is four times as wide.
    assert (workload.model.ffn, workload.model.gated_ffn) == (256, False)


def test_nemo_resolves_references_inside_its_file(file):
    workload = load_workload(file(NEMO, "nemo.yaml"))
    # As published for Llama 2 7B.
    assert count_parameters(workload.model) == 6_738_415_616
    assert workload.model.max_positions == 4096
    assert (workload.parallel.tp, workload.parallel.sharding) == (8, StateSharding.ZERO1)
    assert workload.stack == "nemo"


def test_torchtitan_names_a_model_whose_shape_is_known(file):
    workload = load_workload(file(TOML, "job.toml"))
    assert count_parameters(workload.model) == 70_553_706_496
    parallel = workload.parallel
    assert (parallel.sharding, parallel.shard_group, parallel.tp) == (StateSharding.HSDP, 8, 4)
    assert workload.training.recompute is Recompute.OPS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SCRIPT.replace('"--vocab-size 128256"', ""), "vocab_size: must be given, but is missing"),
        (SCRIPT.replace("--global-batch-size 128", "--global-batch-size $GBS"),
         "global_batch_size: is the reference '$GBS'"),
        (SCRIPT.replace("rope", "kerple"), "position_embedding_type: must be one of"),
        (NEMO.replace("vocab_size: 32000", "vocab_size: '${oc.env:WORDS}'"), "vocab_size: is the"),
        (SCRIPT.replace("pretrain_gpt", "pretrain_t5"), "pretrain_t5.py says that it trains an"),
        (NEMO + "  bert_binary_head: false\n", "bert_binary_head says that it trains BERT"),
        (TOML.replace("70B", "34B"), "model.flavor must be one whose shape is known"),
        (SCRIPT.replace("--micro-batch-size 1", ""), "micro_batch_size: must be given, but is"),
        (NEMO + "  activations_checkpoint_recurrent: false\n", "mixes attention with recurrent"),
        ("[model\n[a]\n", "not valid TOML"),
        (DEEPSPEED, "is a DeepSpeed configuration, which describes no model"),
    ],
)  # fmt: skip
def test_what_only_the_program_knows_is_refused_by_name(file, text, said):
    with pytest.raises(WorkloadError) as fault:
        load_workload(file(text))
    assert said in str(fault.value)


def test_bert_predicts_the_masked_tokens_of_its_script(file):
    text = SCRIPT.replace("pretrain_gpt", "pretrain_bert") + " --mask-prob 0.25"
    workload = load_workload(file(text))
    # A quarter of 8,192.
    assert (workload.model.head, workload.masked_tokens) == (Head.MASKED_TOKENS, 2048)
    assert (workload.model.causal, workload.model.token_types) == (False, 2)


def test_a_script_that_chooses_takes_the_values_of_its_branch(file):
    choice = """SCALE="small" # or big
case "${SCALE}" in
    "small")
        PATTERN="M-M*"
        HIDDEN=1024
        ;;
    "big")
        PATTERN="MM**"
        HIDDEN=4096
        ;;
esac
"""
    text = choice + SCRIPT.replace(
        "--num-layers $LAYERS --hidden-size 4096", "--hidden-size $HIDDEN"
    )
    text = text.replace("--lr", "--hybrid-layer-pattern ${PATTERN} --lr")
    model = load_workload(file(text.replace("--num-layers-per-virtual-pipeline-stage 4", ""))).model
    assert (model.hidden, model.layers) == (1024, 4)
    kinds = [f"{one.mixer.value}/{one.ffn.value}" for one in blocks_of(model)]
    assert kinds == ["state_space/none", "none/dense", "state_space/none", "full/none"]
    # Megatron's Mamba-2 is twice as wide as the model, in heads of 64.
    assert blocks_of(model)[0].model.heads == 32


REGISTRY = """
def small() -> Trainer.Config:
    spec = model_registry("8B")
    return Trainer.Config(
        model_spec=spec,
        training=TrainingConfig(
            num_tokens_per_microbatch_per_dp_rank=2 * 4096, max_context_length=4096, steps=9
        ),
        parallelism=ParallelismConfig(tensor_parallel_degree=4),
        activation_checkpoint=FullAC.Config(),
    )


def small_fp8() -> Trainer.Config:
    config = small()
    config.parallelism.tensor_parallel_degree = 2
    config.model_spec = model_registry("8B", converters=[Float8LinearConverter.Config()])
    return config
"""


def test_an_entry_of_a_registry_is_read_and_never_executed(tmp_path):
    (tmp_path / "llama3").mkdir()
    path = tmp_path / "llama3" / "config_registry.py"
    path.write_text("raise SystemExit('executed')\n" + REGISTRY)
    small, narrow = (load_workload(f"{path}:{entry}") for entry in ("small", "small_fp8"))
    assert count_parameters(small.model) == 8_030_261_248
    assert (small.sequence_length, small.replica_batch, small.parallel.tp) == (4096, 2, 4)
    assert small.training.recompute is Recompute.FULL
    assert (narrow.parallel.tp, narrow.training.compute) == (2, DType.FP8)
    with pytest.raises(WorkloadError, match="It has small, small_fp8; got none"):
        load_workload(path)


def test_arguments_in_strings_over_several_lines_read_the_same(file):
    text = SCRIPT.replace("MODEL_ARGS=(", 'MODEL_ARGS="').replace("0.0\n)", '0.0\n"')
    text = text.replace("${MODEL_ARGS[@]} --bf16", "--bf16 ${MODEL_ARGS[@]}")
    assert load_workload(file(text)) == load_workload(file(SCRIPT))


def test_products_of_a_script_and_of_nemo_are_worked_out(file):
    script = SCRIPT.replace("LAYERS=32  # of them all", "LAYERS=$(($HALF*2))\nHALF=16")
    assert load_workload(file(script)).model.layers == 32
    nemo = NEMO.replace("ffn_hidden_size: 11008", "ffn_hidden_size: ${multiply:4, ${.hidden_size}}")
    assert load_workload(file(nemo)).model.ffn == 16384


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [("--tokenizer-type GPT2BPETokenizer", 50257), ("--merge-file $M", 50257),
     ("--tokenizer-model meta-llama/Llama-3.1-8B", 128256)],
)  # fmt: skip
def test_well_known_tokenizers_tell_the_vocabulary_and_the_answer_says_so(file, tokenizer, words):
    workload = load_workload(file(SCRIPT.replace('"--vocab-size 128256"', tokenizer)))
    assert workload.model.vocab == words
    assert f"model.vocab: {words:,} is the vocabulary of" in workload.assumed[0]


@pytest.mark.parametrize(
    ("named", "words"),
    [("{library: huggingface, type: Qwen/Qwen1.5-14B, vocab_size: null}", 152064),
     ("{library: sentencepiece, model: '${data_dir}/llama2/tokenizer.model'}", 32000),
     ("{library: sentencepiece}\n  run: {name: llama3_1_8b}", 128256),
     ("{library: sentencepiece}\n  restore_from_path: /models/Nemotron-4-340B.nemo", 256000)],
)  # fmt: skip
def test_a_file_that_names_its_model_or_tokenizer_need_not_state_a_vocabulary(file, named, words):
    workload = load_workload(file(NEMO.replace("{vocab_size: 32000}", named), "nemo.yaml"))
    assert workload.model.vocab == words
    assert f"model.vocab: {words:,} is the vocabulary of" in workload.assumed[0]


@pytest.mark.parametrize("name", ["llama-30b", "open_llama_3b", "Qwen3.5-27B", "nemotron_4b"])
def test_a_name_that_only_looks_like_a_known_one_tells_no_vocabulary(file, name):
    named = f"{{type: null}}\n  run: {{name: {name}}}"
    with pytest.raises(
        WorkloadError, match=r"names no tokenizer or .* Or give --set model\.vocab="
    ):
        load_workload(file(NEMO.replace("{vocab_size: 32000}", named), "nemo.yaml"))


@pytest.mark.parametrize(
    ("text", "batch"),
    [
        # 64 ranks / tp 4 are 16 data-parallel ranks, of two sequences each.
        (TOML.replace("global_batch_size = 64\n", ""), 32),
        (TOML.replace("global_batch_size = 64", "global_batch_size = -1"), 32),
        # 64 / (tp 4 x pp 2), of one sequence each.
        (SCRIPT.replace("--global-batch-size 128", ""), 8),
    ],
)
def test_a_file_without_a_batch_has_that_of_its_data_parallel_ranks(file, text, batch):
    path = file(text)
    workload = load_workload(path, rank_count=64)
    assert workload.batch == batch
    assert f"batch: {batch}, which is {workload.replica_batch} for each" in workload.assumed[-1]
    assert load_workload(path, rank_count=128).batch == 2 * batch
    stated = load_workload(path, ["batch=48"], rank_count=64)
    assert (stated.batch, stated.replica_batch) == (48, None)
    assert {use.target: use.use for use in read_foreign(path).uses}["batch"] is Use.DEFAULTED


def test_deepspeed_without_a_batch_has_that_of_its_accumulated_micro_batches(file):
    settings = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    settings |= {"zero_optimization": {"stage": 3}}
    workload = load_workload("llama3_8b", layout_from=file(settings), rank_count=16)
    # 16 data-parallel ranks, each with four micro-batches of two sequences.
    assert (workload.batch, workload.parallel.micro_batch) == (128, 2)
    assert (workload.parallel.tp, workload.parallel.pp) == (1, 1)


def test_torchtitan_has_its_own_defaults(file):
    text = '[model]\nname = "qwen3"\nflavor = "32B"\n[training]\nsteps = 10\n'
    workload = load_workload(file(text), rank_count=8)
    # As published for Qwen3 32B; norms of queries and keys (128 each of 64 layers) are left out.
    assert count_parameters(workload.model) == 32_762_123_264 - 64 * 2 * 128
    assert (workload.batch, workload.sequence_length) == (8 * 8, 2048)
    training = workload.training
    # Selective recomputation takes every second layer unless an option says "op".
    assert (training.recompute, training.recompute_fraction) == (Recompute.FULL, 0.5)
    assert (training.optimizer, training.compute) == ("adamw", None)


def test_torchtitan_divides_the_batch_of_a_rank_only_in_pipelines(file):
    text = TOML.replace("local_batch_size = 2", "local_batch_size = 8")
    assert load_workload(file(text)).parallel.micro_batch == 8
    text = text.replace("data_parallel_replicate_degree = 2", "pipeline_parallel_degree = 2")
    text = text.replace("[training]", 'converters = ["quantize.linear.float8"]\n[training]')
    text = text.replace(
        "tensor_parallel", 'pipeline_parallel_schedule = "Interleaved1F1B"\ntensor_parallel'
    )
    workload = load_workload(file(text))
    assert (workload.parallel.micro_batch, workload.parallel.interleaving) == (1, 2)
    # Stages keep gathered weights until their backward pass.
    assert workload.parallel.sharding is StateSharding.ZERO2
    assert workload.training.gemm_dtype is DType.FP8


def test_grouped_queries_without_a_number_of_groups_are_one_group(file):
    script = SCRIPT.replace("--num-query-groups 8", "")
    assert load_workload(file(script)).model.kv_heads == 1


def test_an_empty_field_of_a_tokenizer_tells_no_vocabulary(file):
    empty = "{library: sentencepiece, merge_file: null}"
    path = file(NEMO.replace("{vocab_size: 32000}", empty), "nemo.yaml")
    with pytest.raises(WorkloadError, match="vocab_size: must be given"):
        load_workload(path)


def test_alibi_is_counted_as_rotary_and_the_answer_says_so(file):
    workload = load_workload(file(SCRIPT.replace("rope", "alibi")))
    assert workload.model.positions.value == "rotary"
    assert "ALiBi is counted as rotary positions." in workload.assumed


def test_what_deepspeed_leaves_to_the_trainer_stays_as_the_workload_has_it(file):
    settings = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}},
        "bf16": {"enabled": "auto"},
    }
    before = load_workload("llama3_8b")
    after = load_workload("llama3_8b", layout_from=file(settings))
    assert (after.batch, after.training) == (before.batch, before.training)
    assert after.parallel.sharding is StateSharding.ZERO2
    settings["zero_optimization"]["offload_optimizer"]["device"] = "cpu"
    offloaded = load_workload("llama3_8b", layout_from=file(settings))
    assert offloaded.training.offload_optimizer == 1
    settings["zero_optimization"]["offload_optimizer"]["device"] = "nvme"
    with pytest.raises(WorkloadError, match=r"offload_optimizer\.device says that it keeps"):
        load_workload("llama3_8b", layout_from=file(settings))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DEEPSPEED, (64, None, StateSharding.ZERO3, 2, "deepspeed")),
        (SCRIPT, (128, 4, StateSharding.ZERO1, 1, "megatron")),
        (TOML, (64, 4, StateSharding.HSDP, 2, "torchtitan")),
    ],
)
def test_the_layout_of_a_file_is_that_of_any_model(file, text, expected):
    workload = load_workload("llama3_8b", layout_from=file(text))
    parallel = workload.parallel
    found = (workload.batch, parallel.tp, parallel.sharding, parallel.micro_batch, workload.stack)
    assert found == expected
    assert workload.model == load_workload("llama3_8b").model
    assert "Layout and training are those of" in workload.assumed[-1]


@pytest.mark.parametrize(("text", "hosts"), [(SCRIPT, 1), (NEMO, 1), (TOML, 8), (DEEPSPEED, 1)])
def test_files_of_other_programs_are_told_whether_they_fit(file, text, hosts):
    named = {"layout_from": file(text)} if text is DEEPSPEED else {"workload": file(text)}
    asked = Scenario("dgx_h100", hosts=hosts, **{"workload": "llama3_8b", **named})
    found = fits(asked)
    assert found.peaks
    assert found.fits
    half = replace(asked, overrides=("training.recompute=full", "parallel.micro_batch=1"))
    assert fits(half).peak_bytes < found.peak_bytes


def test_the_question_itself_comes_before_the_layout_of_a_file(file):
    path = file(DEEPSPEED)
    workload = load_workload("llama3_8b", ["parallel.micro_batch=4"], layout_from=path)
    assert workload.parallel.micro_batch == 4


def test_a_model_without_a_layout_is_no_layout(file):
    path = file({"model_type": "gpt2"}, "config.json")
    with pytest.raises(WorkloadError, match="states no layout"):
        load_workload("llama3_8b", layout_from=path)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("tensor-model-parallel-size", "tensor-model-paralel-size"),
        ("recompute-granularity", "recompute-granularty"),
    ],
)
def test_a_misspelt_argument_is_refused_with_the_one_that_is_meant(tmp_path, right, wrong):
    path = tmp_path / "pretrain.sh"
    path.write_text(SCRIPT.replace(f"--{right}", f"--{wrong}"), encoding="utf-8")
    meant = right.replace("-", "_")
    with pytest.raises(WorkloadError, match=f"{wrong.replace('-', '_')}.* {meant} is"):
        load_workload(str(path))


def test_an_unknown_argument_is_said_and_a_path_is_not(tmp_path):
    path = tmp_path / "pretrain.sh"
    path.write_text(SCRIPT.replace("--bf16", "--bf16 --quantum-mode 3"), encoding="utf-8")
    assert load_workload(str(path)).unknown_keys == ("quantum_mode",)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--spec megatron.core.models.mamba.mamba_layer_specs", "spec says that it builds"),
        ("--experimental-attention-variant gated_delta_net", "linear_num_value_heads: must be"),
    ],
)
def test_layers_of_another_kind_are_refused(tmp_path, words, told):
    path = tmp_path / "pretrain.sh"
    path.write_text(SCRIPT.replace("--bf16", f"--bf16 {words}"), encoding="utf-8")
    with pytest.raises(WorkloadError, match=told):
        load_workload(str(path))


def test_defaults_and_repeated_arguments_are_named(tmp_path):
    path = tmp_path / "pretrain.sh"
    path.write_text(SCRIPT.replace("--bf16", "--bf16 --lr 2e-4 --lr 3e-4"), encoding="utf-8")
    said = " ".join(load_workload(str(path)).assumed)
    assert "context_parallel_size (1)" in said
    assert "Stated more than once, the last counts: lr." in said


def test_a_switch_is_true_or_false(tmp_path):
    path = tmp_path / "nemo.yaml"
    path.write_text(NEMO + "  tp_comm_overlap: 'yes'\n", encoding="utf-8")
    with pytest.raises(WorkloadError, match="tp_comm_overlap: must be one of true"):
        load_workload(str(path))


@pytest.mark.parametrize(
    "value", ['"soon"', "1.5", "true", "nan", "inf", "100000000000000000000", "[1]"]
)
def test_a_degree_that_is_no_whole_number_is_refused_by_name(file, value):
    path = file(TOML.replace("seq_len = 4096", f"seq_len = {value}"), "job.toml")
    with pytest.raises(WorkloadError, match=r"training.seq_len: must be a"):
        load_workload(path)


@pytest.mark.parametrize("value", ["nan", "-0.1", "10", "some"])
def test_a_dropout_is_a_share(file, value):
    path = file(SCRIPT.replace("--hidden-dropout 0.0", f"--hidden-dropout {value}"), "train.sh")
    with pytest.raises(WorkloadError, match="hidden_dropout: must be a"):
        load_workload(path)


MODEL = """
ROUTED=4
LAYERS="${DEPTH:-6}"
FIRST=2
arr=()
for ((i=0; i<LAYERS; i++)); do
  if (( i < FIRST )); then
    arr+=(0)
  else
    arr+=(1)
  fi
done
printf -v WHERE "[%s]" "$(IFS=', '; echo "${arr[*]}")"
MODEL_ARGS=(
  --num-layers $LAYERS --hidden-size 64 --num-attention-heads 4 --ffn-hidden-size 96
  --vocab-size 100 --swiglu --disable-bias-linear --use-rotary-position-embeddings
  --num-experts $((ROUTED * 2 + (FIRST - 2))) --moe-ffn-hidden-size 32
  --moe-layer-freq "$WHERE"
)
"""
RUN = """
DIR="$(dirname "$0")"
source "${DIR}/models/small.sh"
PERF_ARGS=(--tensor-model-parallel-size 1 --use-dynamic-batch-size --max-tokens-per-gpu 512)
ROLLOUT_ARGS=(--rollout-batch-size 8 --n-samples-per-prompt 4 --num-steps-per-rollout 2)
ray job submit -- python3 train.py ${MODEL_ARGS[@]} ${PERF_ARGS[@]} ${ROLLOUT_ARGS[@]} --bf16
"""


def scripts(folder, model=MODEL, run=RUN):
    (folder / "models").mkdir(exist_ok=True)
    (folder / "models" / "small.sh").write_text(model, encoding="utf-8")
    path = folder / "run.sh"
    path.write_text(run, encoding="utf-8")
    return path


def test_a_script_that_sources_its_model_computes_and_fills_lists(tmp_path):
    spec = load_workload(scripts(tmp_path))
    assert (spec.model.layers, spec.model.experts) == (6, 8)
    assert spec.model.pattern == "2 x full/dense + 4 x full/experts"
    # 8 prompts with 4 samples each, in two steps, packed to 512 tokens.
    assert (spec.batch, spec.sequence_length, spec.parallel.micro_batch) == (16, 512, 1)
    assert any("packed to max_tokens_per_gpu" in said for said in spec.assumed)


def test_a_script_sources_nothing_outside_its_folder(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    path = scripts(inner, run=RUN.replace("/models/small.sh", "/../small.sh"))
    (tmp_path / "small.sh").write_text(MODEL, encoding="utf-8")
    with pytest.raises(WorkloadError, match="num_layers: must be given"):
        load_workload(path)


@pytest.mark.parametrize(
    ("stated", "pattern"),
    [
        ("[1]*6", None),
        ("([0]*1+[1]*5)", "full/dense + 5 x full/experts"),
        ("2", "full/experts + full/dense"),
        ("[0,1,1,0,1,1]", "full/dense + 2 x full/experts"),
    ],
)
def test_where_experts_are_may_be_a_list_a_product_or_a_number(tmp_path, stated, pattern):
    path = scripts(tmp_path, MODEL.replace('"$WHERE"', f'"{stated}"'))
    assert load_workload(path).model.pattern == pattern


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        ('--spec "slime_plugins.models.qwen3_next" "get_qwen3_next_spec"', "2 x linear("),
        ('--spec "slime_plugins.models.glm5.glm5" "get_glm5_spec"', "2 x sparse(index_heads=32"),
        ("--hybrid-override-pattern M*M-EE --mamba-num-heads 8", "state_space(heads=8"),
    ],
)
def test_layers_of_known_specs_become_a_pattern(tmp_path, words, pattern):
    path = scripts(tmp_path, MODEL.replace("--swiglu", f"--swiglu {words}"))
    assert load_workload(path).model.pattern.startswith(pattern)


DEEP = """
torchrun --nnodes 4 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 \\
    --ffn-hidden-size 4096 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 \\
    --position-embedding-type rope --swiglu --disable-bias-linear --hidden-dropout 0 --bf16 \\
    --micro-batch-size 1 --global-batch-size 32 --pipeline-model-parallel-size 2 \\
    --untie-embeddings-and-output-weights"""


def read_deep(tmp_path, more):
    path = tmp_path / "deep.sh"
    path.write_text(f"{DEEP} {more}\n")
    return load_workload(path)


def test_parts_that_megatron_recomputes_are_read_as_such(tmp_path):
    training = read_deep(
        tmp_path, "--recompute-granularity selective --recompute-modules layernorm mlp core_attn"
    ).training

    assert training.recompute is Recompute.NONE
    assert [part.value for part in training.recompute_modules] == ["layernorm", "mlp", "core_attn"]


def test_layers_recomputed_in_every_stage_are_a_share_of_all(tmp_path):
    block = "--recompute-granularity full --recompute-method block --recompute-num-layers 1"
    # One of four layers of each of two stages.
    assert read_deep(tmp_path, block).training.recompute_fraction == 2 / 8
    # One of two layers of each of four virtual stages.
    halves = f"{block} --num-layers-per-virtual-pipeline-stage 2"
    assert read_deep(tmp_path, halves).training.recompute_fraction == 4 / 8
    uniform = block.replace("block", "uniform")
    assert read_deep(tmp_path, uniform).training.recompute_fraction == 1


def test_layers_of_stages_are_read_from_a_pattern_and_from_the_ends(tmp_path):
    layout = '--pipeline-model-parallel-layout "Et|(tt|)*2,ttt|L"'.replace("ttt|L", "tttL")
    parallel = read_deep(tmp_path, layout).parallel
    assert (parallel.stage_layers, parallel.interleaving) == ((1, 2, 2, 3), 2)

    ends = "--decoder-first-pipeline-num-layers 3"
    assert read_deep(tmp_path, ends).parallel.stage_layers == (3, 5)
    with pytest.raises(WorkloadError, match="must place 8 layers"):
        read_deep(tmp_path, f"{ends} --decoder-last-pipeline-num-layers 4")


def test_experts_dispatcher_graphs_and_formats_of_megatron_are_read(tmp_path):
    experts = "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 512 --mtp-num-layers 1"
    spec = read_deep(
        tmp_path,
        f"{experts} --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep "
        "--overlap-moe-expert-parallel-comm --moe-grouped-gemm --fp8-format e4m3 "
        "--fp8-recipe mxfp8 --cuda-graph-impl local --cp-comm-type a2a",
    )
    assert spec.parallel.dispatcher.value == "hybridep"
    assert spec.parallel.expert_overlap
    assert spec.parallel.cp_kind.value == "all_to_all"
    assert (spec.training.compute, spec.training.grouped_experts) == (DType.MXFP8, True)
    assert spec.training.cuda_graph.value == "partial"
    assert spec.model.mtp_layers == 1
    assert spec.unknown_keys == ()

    assert (
        read_deep(tmp_path, f"{experts} --moe-token-dispatcher-type flex").parallel.dispatcher.value
        == "deepep"
    )
    assert read_deep(tmp_path, "--fp4-format e2m1").training.compute is DType.NVFP4
    # A dense model has nothing to send.
    assert read_deep(tmp_path, "--moe-token-dispatcher-type alltoall").parallel.dispatcher is None


def test_a_stated_compiler_fuses_what_the_stack_runs_eagerly(tmp_path):
    path = tmp_path / "titan.toml"
    path.write_text(TOML + "[compile]\nenable = true\n")
    assert load_workload(path).compiled
    path.write_text(TOML)
    assert not load_workload(path).compiled

    eager = Scenario(topology="dgx_h100", workload="gpt2_124m", stack="fsdp")
    compiled = replace(eager, overrides=("compiled=true",))
    assert predict(compiled).iteration_ns < predict(eager).iteration_ns


def test_recipes_and_buckets_of_megatron_bridge_are_read(tmp_path):
    path = tmp_path / "bridge.yaml"
    path.write_text(
        NEMO + "mixed_precision: bf16_with_mxfp8_mixed\n"
        "ddp: {grad_reduce_in_fp32: false, bucket_size: 40000000}\n"
    )
    training = load_workload(path).training
    assert (training.compute, training.gradient_dtype) == (DType.MXFP8, DType.BF16)
    # 40 million gradients of two bytes.
    assert training.bucket_size == 80_000_000


def test_buckets_of_deepspeed_are_as_large_as_stated(tmp_path):
    path = tmp_path / "zero.json"
    zero = {"stage": 2, "overlap_comm": True, "reduce_bucket_size": 5e8}
    path.write_text(json.dumps(DEEPSPEED | {"zero_optimization": zero}))
    training = load_workload("gpt2_124m", layout_from=path).training
    assert training.bucket_size == 1_000_000_000


def test_a_file_that_states_no_layout_is_refused_as_one(tmp_path):
    path = tmp_path / "accelerate.yaml"
    path.write_text("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n")
    with pytest.raises(WorkloadError, match="must be a workload with `parallel` or `training`"):
        load_workload("gpt2_124m", layout_from=path)
    path.write_text("parallel: {tp: 2}\nparalel: {pp: 2}\n")
    with pytest.raises(WorkloadError, match="paralel"):
        load_workload("gpt2_124m", layout_from=path)
    path.write_text("parallel: {tp: 2}\n")
    assert load_workload("gpt2_124m", layout_from=path).parallel.tp == 2


@pytest.mark.parametrize("stated", ["[0]*99999999999", "[0]*2-[1]", "2**9", "print(1)", "[0,2]*3"])
def test_a_list_of_layers_that_says_something_else_is_refused(tmp_path, stated):
    path = scripts(tmp_path, MODEL.replace('"$WHERE"', f'"{stated}"'))
    with pytest.raises(WorkloadError, match=r"moe_layer_freq: must be a number or like"):
        load_workload(path)


def test_a_registry_whose_number_only_the_program_knows_is_refused(tmp_path):
    (tmp_path / "llama3").mkdir()
    path = tmp_path / "llama3" / "config_registry.py"
    path.write_text(REGISTRY.replace("tensor_parallel_degree=4", "tensor_parallel_degree=DEGREE"))
    with pytest.raises(WorkloadError, match=r"tensor_parallel_degree: is the reference '\$DEGREE'"):
        load_workload(f"{path}:small")
    path.write_text(REGISTRY.replace("max_context_length=4096", "max_context_length=LENGTH"))
    with pytest.raises(WorkloadError, match="must state whole numbers"):
        load_workload(f"{path}:small")


def test_nvidias_hybrid_script_has_their_vocabulary_and_says_so(file):
    text = SCRIPT.replace('"--vocab-size 128256"', "--tokenizer-model $2")
    workload = load_workload(file(text.replace("pretrain_gpt", "pretrain_hybrid")))
    assert workload.model.vocab == 256_000
    assert workload.assumed[0].endswith("is the vocabulary of NVIDIA hybrid models (assumed).")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('option = "op"', 'option = "0"', "selective_ac_option: must be op or a number"),
        ("shard_degree = 8", "shard_degree = 0", "parallelism: must have degrees"),
        ("replicate_degree = 2", "replicate_degree = 0", "parallelism: must have degrees"),
    ],
)
def test_degrees_and_options_that_torchtitan_does_not_have_are_refused(file, before, after, said):
    with pytest.raises(WorkloadError, match=said):
        load_workload(file(TOML.replace(before, after), "job.toml"))


def test_groups_of_queries_that_megatron_would_ignore_are_refused(file):
    text = SCRIPT.replace("--group-query-attention ", "")
    with pytest.raises(WorkloadError, match="num_query_groups: has no effect without"):
        load_workload(file(text))


@pytest.mark.parametrize(
    "words",
    [
        "--pipeline-model-parallel-size 0", "--rollout-batch-size many", "--num-layers 99999999999",
        "--decoder-first-pipeline-num-layers x", "--hidden-size wide --ffn-hidden-size null",
        "--num-layers-per-virtual-pipeline-stage -1", "--seq-length long",
        "--recompute-granularity full --recompute-method block --recompute-num-layers x",
        '--pipeline-model-parallel-layout "Et|(tt|)*99999999999,tttL"',
    ],
)  # fmt: skip
def test_arguments_of_the_wrong_kind_are_refused_in_a_sentence(tmp_path, words):
    with pytest.raises(WorkloadError):
        read_deep(tmp_path, words)
