"""Doors: whole commands over damaged files of other programs.

The question is not only whether a command crashes, but whether a damaged file may give another
answer without a word. A case passes if the file is refused, if the answer is equal, or if the
answer says what happened: in its warnings, its unknown keys, its assumptions (of what is no longer
stated), or its verdict on memory.
"""

from __future__ import annotations

import contextlib
import copy
import csv
import io
import json
import random
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from perfmodel.cli import main
from tests.extensions.formats.machines.test_smi_matrix import SWITCHED
from tests.extensions.formats.models.test_torchrec_benchmark import BENCHMARK
from tests.fuzz.readers import ATTENTION, COLLECTIVES, MEMORY, ROOT

OWN = ("run", "perfmodel_version", "scenario", "warnings", "unknown_keys", "assumptions", "lines",
       "row", "groups")  # fmt: skip
"""Keys of an answer that say how it was found, or something about it, or name rows."""
FACTORS = (0, 0.001, 1000)
IMPOSSIBLE = (-1, float("nan"), float("inf"))
"""Times any amount, no amount."""
RETYPED = ("soon", "8", 8.5, True, [1], {"a": 1}, "", "-5", "64mb", "0x10", 10**20)


@dataclass(frozen=True)
class Door:
    """A way in: a good *file*, where *command* names it as FILE and the answer as OUT."""

    name: str
    file: str
    good: Any
    command: tuple[str, ...]
    write: Callable[[Any], str]
    is_own: bool = False
    """A document of `perfmodel schema`, whose keys have documented defaults."""


LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512,
    "intermediate_size": 1408, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 4096, "max_position_embeddings": 2048,
    "tie_word_embeddings": True, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1e4,
    "torch_dtype": "bfloat16", "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
QWEN_MOE = LLAMA | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 256, "norm_topk_prob": True,
    "decoder_sparse_step": 1, "head_dim": 64, "mlp_only_layers": [],
}  # fmt: skip
MEGATRON = {
    "num-layers": 4, "hidden-size": 512, "ffn-hidden-size": 1408, "num-attention-heads": 8,
    "group-query-attention": True, "num-query-groups": 4, "seq-length": 1024,
    "max-position-embeddings": 1024, "position-embedding-type": "rope", "swiglu": True,
    "normalization": "RMSNorm", "disable-bias-linear": True, "vocab-size": 4096, "bf16": True,
    "untie-embeddings-and-output-weights": True, "hidden-dropout": 0.0, "micro-batch-size": 1,
    "global-batch-size": 16, "lr": 1e-4, "tensor-model-parallel-size": 2, "sequence-parallel": True,
    "pipeline-model-parallel-size": 2, "use-distributed-optimizer": True,
    "overlap-grad-reduce": True, "recompute-granularity": "selective",
}  # fmt: skip
NEMO = {
    "trainer": {"precision": "bf16-mixed", "devices": 8},
    "model": {
        "global_batch_size": 16, "micro_batch_size": 2, "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 2, "encoder_seq_length": 1024, "num_layers": 4,
        "max_position_embeddings": 1024, "hidden_size": 512, "ffn_hidden_size": 1408,
        "num_attention_heads": 8, "normalization": "rmsnorm", "activation": "fast-swiglu",
        "bias": False, "position_embedding_type": "rope", "hidden_dropout": 0.0,
        "share_embeddings_and_output_weights": False, "sequence_parallel": True,
        "activations_checkpoint_granularity": "selective", "vocab_size": 4096,
        "optim": {"name": "distributed_fused_adam", "lr": 1e-4},
    },
}  # fmt: skip
TITAN = {
    "job": {"description": "debug"},
    "model": {"name": "llama3", "flavor": "debugmodel"},
    "optimizer": {"name": "AdamW", "lr": 8e-4},
    "training": {"local_batch_size": 2, "seq_len": 1024, "steps": 10},
    "parallelism": {
        "data_parallel_replicate_degree": 1, "data_parallel_shard_degree": -1,
        "tensor_parallel_degree": 2, "pipeline_parallel_degree": 1, "context_parallel_degree": 1,
        "enable_async_tensor_parallel": False,
    },
    "activation_checkpoint": {"mode": "full"},
    "compile": {"enable": True},
}  # fmt: skip
DEEPSPEED = {
    "train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8}, "gradient_clipping": 1.0,
}  # fmt: skip


def _lines(pairs: dict[str, Any]) -> str:
    words = [f"--{k}" if v is True else f"--{k} {v}" for k, v in pairs.items() if v is not False]
    return "torchrun pretrain_gpt.py " + " ".join(words) + "\n"


def _toml(content: dict[str, Any]) -> str:
    def value(one: Any) -> str:
        return str(one) if isinstance(one, float) else json.dumps(one)

    plain = [f"{k} = {value(v)}" for k, v in content.items() if not isinstance(v, dict)]
    for name, section in content.items():
        if isinstance(section, dict):
            plain += [f"[{name}]", *(f"{k} = {value(v)}" for k, v in section.items())]
    text = "\n".join(plain) + "\n"
    tomllib.loads(text)
    return text


def _xml(content: list[Any]) -> str:
    tag, attributes, *inside = content
    words = "".join(f' {key}="{value}"' for key, value in attributes.items())
    return f"<{tag}{words}>{''.join(map(_xml, inside))}</{tag}>"


def _xml_host() -> list[Any]:
    def gpu(number: int) -> list[Any]:
        link = ["nvlink", {"target": "0000:ff:00.0", "count": 12, "tclass": "0x068000"}]
        about = {
            "busid": f"0000:0{number}:00.0", "class": "0x030200", "vendor": "0x10de",
            "device": "0x20b2", "link_speed": "16.0 GT/s PCIe", "link_width": 16,
        }  # fmt: skip
        return ["pci", about, ["gpu", {"dev": number, "sm": 80, "rank": number}, link]]

    net = ["net", {"name": "mlx5_0", "dev": 0, "speed": 200000, "port": 1}]
    nic = ["pci", {"busid": "0000:11:00.0", "class": "0x020700"}, ["nic", {}, net]]
    about = {"numaid": 0, "arch": "x86_64", "vendor": "AuthenticAMD", "familyid": 175}
    return ["system", {"version": 1}, ["cpu", about, gpu(1), gpu(2), gpu(3), gpu(4), nic]]


def _log(rows: list[dict[str, Any]]) -> str:
    head = "# nThread 1 nGpus 8\n# Using devices\n"
    head += "".join(
        f"#  Rank {rank} Group  0 Pid 1 on node0 device {rank} [0x0{rank}] NVIDIA H100 80GB HBM3\n"
        for rank in range(8)
    )
    heading = dict.fromkeys(key for row in rows for key in row)
    text = f"{head}# {'  '.join(heading)}\n"
    return text + "".join("  ".join(map(str, row.values())) + "\n" for row in rows)


def _log_rows() -> list[dict[str, Any]]:
    rows = []
    for power in range(12, 30, 2):
        size, time = 2**power, round(30 + 2**power / 260e3, 2)
        rate = size / time / 1e3
        rows.append(
            {
                "size": size, "count": size // 4, "type": "float", "redop": "sum", "root": -1,
                "time": time, "algbw": f"{rate:.2f}", "busbw": f"{rate * 1.75:.2f}", "#wrong": 0,
            }
        )  # fmt: skip
    return rows


def _csv(rows: list[dict[str, Any]]) -> str:
    heading = dict.fromkeys(key for row in rows for key in row)
    lines = [",".join(str(row.get(key, "")) for key in heading) for row in rows]
    return "\n".join([",".join(heading), *lines, ""])


def _gemms() -> list[dict[str, Any]]:
    sizes = [(m, n, 4096) for m in (1024, 2048, 4096) for n in (4096, 8192)]
    return [
        {
            "device": "h100_sxm", "dtype": "bf16", "m": m, "n": n, "k": k,
            "latency_ms": 2 * m * n * k / 600e9, "tflops": 600,
        }
        for m, n, k in sizes
    ]  # fmt: skip


RUNS = [
    {
        "id": "a", "source": "s", "framework": "megatron_lm", "device": "a100_sxm_80gb",
        "machine": "dgx_a100", "n_gpus": 8, "n_nodes": 1, "layers": 4, "hidden": 1024, "heads": 16,
        "ffn": 4096, "vocab": 50304, "seq_len": 1024, "compute_precision": "bf16", "gbs": 8,
        "mbs": 1, "tp": 1, "pp": 1, "data_sharding": "none", "recompute": "none",
        "attention_kernel": "flash2", "iter_time_s": 0.05,
    }
]  # fmt: skip


def _own(path: str) -> Any:
    document = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
    return {key: str(one) if key == "date" else one for key, one in document.items()}


def _ended(content: Any) -> str:
    return str(yaml.safe_dump(content, explicit_end=True))


def _rows(text: str) -> list[dict[str, Any]]:
    return list(csv.DictReader(io.StringIO(text)))


def _build_own_doors() -> Iterator[Door]:
    """The kinds of `perfmodel schema` that have no other door."""
    ask = ("--samples", "2", "--executor", "serial", "--quiet", "--json", "-")
    small = ("predict", "transformer_small", "--ranks-per-host", "2", *ask, "--topology")
    gemm = ("kernel", "gemm", "--m", "4096", "--n", "4096", "--k", "4096", "--json", "-")
    reduce = ("collective", "--kind", "all_reduce", "--size", "64MiB", "--json", "-")
    topology, devices = "topologies/catalog/dgx_h100.yaml", "topologies/devices"
    templates, stacks = "perfmodel/api/templates", "perfmodel/stacks/catalog"
    specs, rank = "perfmodel/workloads/specs", ("predict", "--topology", "dgx_a100", *ask)
    two = (*rank, "--ranks-per-host", "2")
    own: dict[str, tuple[str, tuple[str, ...]]] = {
        "topology": (topology, (*reduce, "--topology", "FILE")),
        "faulty topology": (topology, (*reduce, "--topology", "FILE", "--fault", "gpu:3 nvlink")),
        "device": (f"{devices}/h100_sxm.yaml", (*gemm, "--device", "FILE")),
        "transformer": (f"{specs}/transformer_small.yaml", (*two, "--workload", "FILE")),
        "dlrm": (f"{specs}/dlrm_default.yaml", (*rank, "--workload", "FILE")),
        "stack": (f"{stacks}/pytorch_fused.yaml", (*small, "dgx_a100", "--stack", "FILE")),
        "tables": (f"{templates}/tables.yaml", (*rank, "--tables", "FILE")),
        "scenario": (f"{templates}/scenario.yaml", ("predict", "--scenario", "FILE", *ask[2:])),
        "prices": ("perfmodel/prediction/prices.yaml",
                   (*small, "dgx_h100", "--tokens", "1e9", "--prices", "FILE")),
    }  # fmt: skip
    for name, (path, command) in own.items():
        yield Door(name, "mine.yaml", _own(path), command, _ended, is_own=True)
    bench = yaml.safe_load(BENCHMARK)
    yield Door("torchrec", "bench.yml", bench, (*rank, "--workload", "FILE"), yaml.safe_dump)
    for name, text in (("attention", ATTENTION), ("memory", MEMORY), ("collectives", COLLECTIVES)):
        command = ("validate", name, "FILE", "--json", "-")
        yield Door(f"{name} table", f"{name}.csv", _rows(text), command, _csv, is_own=True)


@cache
def build_doors() -> tuple[Door, ...]:
    """Every kind of file, with the command that takes it."""
    ask = ("--samples", "2", "--executor", "serial", "--quiet", "--json", "-")
    small = ("--set", "batch=16", "--set", "sequence_length=512")
    layout = ("--set", "parallel.tp=1", "--set", "parallel.pp=1", "--set", "parallel.micro_batch=2")
    model = ("predict", "FILE", "--topology", "dgx_a100")
    reduce = ("--kind", "all_reduce", "--size", "64MiB", "--json", "-")
    read = ("collective", "--topology", "FILE", *reduce)
    fit = ("--out", "OUT", "--json", "-")
    return (
        Door("hugging face", "config.json", LLAMA, (*model, *small, *layout, *ask), json.dumps),
        Door("experts", "config.json", QWEN_MOE, (*model, *small, *layout, *ask), json.dumps),
        Door("megatron", "train.sh", MEGATRON, (*model, *ask), _lines),
        Door("nemo", "nemo.yaml", NEMO, (*model, *ask), yaml.safe_dump),
        Door("torchtitan", "titan.toml", TITAN, (*model, *ask), _toml),
        Door(
            "deepspeed", "ds.json", DEEPSPEED,
            ("predict", "transformer_small", "--topology", "dgx_a100", "--layout-from", "FILE",
             *ask), json.dumps,
        ),
        Door("nccl xml", "topo.xml", _xml_host(), read, _xml),
        Door("smi", "topo.txt", SWITCHED.splitlines(), ("topology", "import", "FILE", "--gpu",
             "h100_sxm", "--out", "OUT"), "\n".join),
        Door("nccl-tests", "all_reduce.log", _log_rows(), ("calibrate", "collectives", "FILE",
             "--topology", "dgx_h100", *fit), _log),
        Door("gemm table", "gemm.csv", _gemms(), ("validate", "gemm", "FILE", "--json", "-"), _csv),
        Door("run table", "runs.csv", RUNS, ("validate", "runs", "FILE", "--executor", "serial",
             "--quiet", "--json", "-"), _csv),
        *_build_own_doors(),
    )  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """What a command said: its exit *code*, JSON *document*, and text."""

    code: int
    document: Any
    text: str


def ask(door: Door, content: Any) -> Answer:
    """Run the command of *door* with a file of *content*."""
    with tempfile.TemporaryDirectory(prefix="door-") as folder:
        # Models are called as their folder is.
        place = Path(folder) / "case" / door.file
        place.parent.mkdir()
        place.write_text(door.write(content), encoding="utf-8")
        names = {"FILE": str(place), "OUT": str(Path(folder) / "out.yaml")}
        out, err, before = io.StringIO(), io.StringIO(), sys.argv
        sys.argv = ["perfmodel", *(names.get(word, word) for word in door.command)]
        code = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as stop:
                code = int(stop.code or 0)
            finally:
                sys.argv = before
        text = out.getvalue() + err.getvalue()
        written = Path(names["OUT"])
        made = written.read_text() if written.exists() else ""
    try:
        document = json.loads(out.getvalue())
    except ValueError:
        document = {}
    sentences: list[Any] = []
    numbers = _without_sentences(document, sentences)
    # The constants of a fit are its answer; headers name files and dates.
    kept = [
        one for one in made.splitlines() if not re.match(r"(command|source|date|#|assumed)", one)
    ]
    said = json.dumps(numbers, default=str).replace(folder, "") + "\n".join(kept).replace(
        folder, ""
    )
    told = json.dumps(sentences) + made.replace("-", "_")
    return Answer(code, document | {"answer": said, "told": told}, text)


def _without_sentences(value: Any, sentences: list[Any]) -> Any:
    """*value* without what is said about it, which *sentences* gets."""
    if isinstance(value, dict):
        sentences += [one for key, one in value.items() if key == "assumptions"]
        return {k: _without_sentences(v, sentences) for k, v in value.items() if k not in OWN}
    if isinstance(value, list):
        return [_without_sentences(one, sentences) for one in value]
    return value


def iter_places(
    value: Any, path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, inner in items:
        yield (*path, key), value, key
        yield from iter_places(inner, (*path, key))


def scaled(value: Any, factor: float) -> Any:
    """*value*, a number or an amount such as `25 GB/s`, times *factor*; None if it is neither."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value // 8 if isinstance(value, int) and 0 < factor < 1 else value * factor
    found = re.fullmatch(r"(\d+(?:\.\d+)?)( ?[A-Za-z/%]\S*)?", str(value))
    return f"{float(found[1]) * factor:.12g}{found[2] or ''}" if found else None


@dataclass(frozen=True)
class Damage:
    """What was done: *how*, to which *key*."""

    how: str
    key: str
    content: Any

    def __str__(self) -> str:
        return f"{self.how} {self.key}"


def _damage_column(rows: list[Any], key: str, how: str) -> Damage:
    """A column of a table under another name, or gone."""
    name = f"x_{key}s"[len(rows) % 2 * 2 :]
    for row in rows:
        row[name] = row.pop(key, "")
        if how == "delete":
            del row[name]
    return Damage(how, name if how == "rename" else key, rows)


def damage(good: Any, source: random.Random) -> Damage:
    """*good* with one key or value wrong."""
    content = copy.deepcopy(good)
    path, holder, key = source.choice(list(iter_places(content)))
    value = holder[key]
    name = next((str(one) for one in reversed(path) if isinstance(one, str)), str(key))
    how = source.choice(("rename", "delete", "double", "retype", "scale"))
    if isinstance(value, str) and isinstance(holder, list):
        words = value.split("\t")
        spot = source.randrange(len(words))
        words[spot] = source.choice(("", "NV1", "NV1800", "SYS", "PIX", "soon", "X", "NV-4"))
        holder[key] = "\t".join(words)
        return Damage("cell", name, content)
    is_table = isinstance(content, list) and all(isinstance(row, dict) for row in content)
    if how in ("rename", "delete") and is_table and holder is not content:
        return _damage_column(content, key, how)
    if how == "rename" and isinstance(holder, dict):
        odd = source.choice((f"{key}s", f"x_{key}", str(key)[:-1], str(key).title(), "y"))
        pairs = [(odd if one == key else one, other) for one, other in holder.items()]
        holder.clear()
        holder.update(pairs)
        name = odd
    elif how == "double" and isinstance(holder, list):
        how = "cell"
        holder.insert(key, copy.deepcopy(value))
    elif how == "double":
        holder[f"{key}_2"] = value
        name = f"{key}_2"
    elif how == "scale" and scaled(value, 1) is not None:
        factor = source.choice((*FACTORS, *IMPOSSIBLE))
        holder[key] = scaled(value, factor)
        if factor in IMPOSSIBLE and scaled(value, 0) != value and not str(value).startswith("-"):
            how = "impossible"
    elif how == "retype":
        holder[key] = source.choice(RETYPED)
    else:
        # A row less is another table.
        how = "cell" if isinstance(holder, list) else "delete"
        del holder[key]
    return Damage(how, name, content)


@cache
def _good(name: str) -> Answer:
    [door] = [one for one in build_doors() if one.name == name]
    found = ask(door, door.good)
    assert found.code == 0, f"{name}: {found.text}"
    return found


def judge(door: Door, done: Damage) -> tuple[str, str]:
    """A word for what the command of *door* made of the damage *done*, and details."""
    try:
        text = door.write(done.content)
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, RecursionError):
        return "not a file", ""
    if text == door.write(door.good):
        return "not damaged", ""
    found, good = ask(door, done.content), _good(door.name)
    if "internal fault" in found.text or "Traceback" in found.text:
        return "DEFECT: crashes", f"{done}: {found.text.strip()[:300]}"
    if found.code:
        return "refused", ""
    document = found.document
    if document["answer"] == good.document["answer"]:
        return "same answer", ""
    told = [
        [one.get(key) for key in ("warnings", "unknown_keys")] for one in (document, good.document)
    ]
    if told[0] != told[1] or re.search(r"\d warnings?:", found.text):
        return "said", ""
    if document["told"] != good.document["told"] and done.how not in ("scale", "retype"):
        return "assumed", ""
    memory = document.get("memory_gib") or {}
    if memory.get("fits") is False or document.get("unsupported"):
        return "verdict", ""
    if done.how in ("scale", "retype", "cell") or (door.is_own and done.how == "delete"):
        # Another value of the right kind is another question, and so is a documented default.
        return "another value", str(done)
    return "DEFECT: another answer without a word", str(done)


def run_door(seed: int, number: int) -> tuple[str, str, str]:
    """Case *number*: the door, a word, and details."""
    source = random.Random(f"{seed}-{number}")
    doors = build_doors()
    door = doors[number % len(doors)]
    word, detail = judge(door, damage(door.good, source))
    return door.name, word, detail
