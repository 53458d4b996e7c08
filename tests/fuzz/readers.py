"""Readers: every way in which a file of a stranger gets into the program, each with a good file."""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.damage import (
    bomb,
    damage_bytes,
    damaged_csv,
    damaged_json,
    damaged_yaml,
)

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Reader:
    """*make* writes a damaged file into a folder and returns what *read* takes."""

    name: str
    make: Callable[[Path, random.Random], Path]
    read: Callable[[Path], object]


def _yaml_reader(
    name: str, folder: str, read: Callable[[Path], object], *, files: str = "*.yaml"
) -> Reader:
    def make(place: Path, source: random.Random) -> Path:
        chosen = source.choice(sorted((ROOT / folder).glob(files)))
        target = place / f"{chosen.stem}.yaml"
        target.write_bytes(damaged_yaml(chosen.read_text(encoding="utf-8"), source))
        return target

    return Reader(name, make, read)


def _csv_reader(name: str, text: str, read: Callable[[Path], object]) -> Reader:
    def make(place: Path, source: random.Random) -> Path:
        data = damaged_csv(text, source)
        packed = source.random() < 0.1
        target = place / ("table.csv.gz" if packed else "table.csv")
        target.write_bytes(gzip.compress(data) if packed else data)
        return target

    return Reader(name, make, read)


def json_reader(
    name: str, document: Any, read: Callable[[Path], object], *, ending: str = ".json"
) -> Reader:
    def make(place: Path, source: random.Random) -> Path:
        data = damaged_json(document, source)
        packed = ending == ".json" and source.random() < 0.1
        if source.random() < 0.005:
            data, packed = bomb(source), True
        elif packed:
            data = gzip.compress(data)
            data = damage_bytes(data, source) if source.random() < 0.5 else data
        target = place / f"file{ending}{'.gz' if packed else ''}"
        target.write_bytes(data)
        return target

    return Reader(name, make, read)


def bytes_reader(name: str, good: bytes, ending: str, read: Callable[[Path], object]) -> Reader:
    def make(place: Path, source: random.Random) -> Path:
        target = place / f"file{ending}"
        target.write_bytes(damage_bytes(good, source))
        return target

    return Reader(name, make, read)


def build_readers() -> list[Reader]:
    """All readers of the program."""
    from tests.fuzz.jobs import build_job_readers

    files = [*_document_readers(), *_table_readers(), *_trace_readers(), *_index_readers()]
    return [*files, *build_job_readers()]


def _document_readers() -> list[Reader]:
    from collectives.calibration import load_calibration
    from embeddings.table_files import load_tables
    from perfmodel.stacks.profiles import load_stack
    from perfmodel.workloads.catalog import load_workload
    from topologies import load_device, load_topology

    return [
        _yaml_reader("topology", "topologies/catalog", load_topology),
        _yaml_reader("device", "topologies/devices", load_device),
        _yaml_reader("workload", "perfmodel/workloads/specs", load_workload),
        _yaml_reader("stack", "perfmodel/stacks/catalog", load_stack),
        _yaml_reader("tables", "perfmodel/api/templates", load_tables, files="tables.yaml"),
        _yaml_reader("scenario", "perfmodel/api/templates", _read_scenario, files="scenario*"),
        _yaml_reader(
            "calibration", "collectives/calibrations", load_calibration, files="nccl.yaml"
        ),
        json_reader("fitted kernels", _fitted_kernels(), _read_fitted),
        json_reader("plan", _plan_document(), _read_plan),
    ]


def _read_scenario(path: Path) -> object:
    from perfmodel.prediction.question import load_setting
    from perfmodel.prediction.scenario import Scenario
    from perfmodel.prediction.scenario_file import load_scenario

    found = load_scenario(path)
    return load_setting(found) if isinstance(found, Scenario) else found


def _fitted_kernels() -> Any:
    """A shipped calibration of GEMMs, as a user's own."""
    files = sorted((ROOT / "perfmodel/costs/calibrations/gemm").glob("*.json"))
    document = json.loads(files[0].read_bytes())
    return document | {"entries": document["entries"][:2], "command": "python fit.py gemm t"}


def _read_fitted(path: Path) -> object:
    from perfmodel.costs.calibration_files import entries_for
    from topologies import load_device

    return entries_for("gemm", replace(load_device("h100_sxm"), calibrations=(str(path),)))


@cache
def _small_tables() -> tuple[Any, ...]:
    from embeddings.table import EmbeddingTable

    return tuple(EmbeddingTable(f"t{number}", 1000 * (number + 1), 64) for number in range(4))


def _plan_document() -> Any:
    from embeddings.plan_document import to_plan_document
    from embeddings.sharders import ShardingTask, build_named_plan

    task = ShardingTask(
        tables=_small_tables(), rank_count=4, room_bytes=10**9, batch_size=64,
        optimizer="sgd", ranks_per_host=4, seed=0,
    )  # fmt: skip
    return to_plan_document(build_named_plan("balanced", task))


def _read_plan(path: Path) -> object:
    from embeddings.plan_document import load_plan_document

    return load_plan_document(path, tables=_small_tables(), rank_count=4)


GEMM = "collector,device,m,n,k,latency_ms,tflops\n" + "".join(
    f"trtllm/x,NVIDIA H100 80GB HBM3,{m},4096,4096,{0.01 * m:.4f},500\n" for m in (64, 128, 4096)
)
ATTENTION = (
    "collector,device,kernel_source,batch_size,isl,num_heads,num_key_value_heads,head_dim,latency_ms\n"
    "x,NVIDIA H100 80GB HBM3,fa3,1,4096,32,8,128,0.5\n"
    "x,NVIDIA H100 80GB HBM3,fa3,2,2048,32,8,128,0.3\n"
)
MEMORY = "op,device,latency_ms,B,H,M,N,K\nadd,NVIDIA A100 80GB PCIe,0.1,1,1,1024,1024,1\n"
COLLECTIVES = (
    "topology,hosts,nranks,collective,size_bytes,dtype,nccl_version,time_us,source\n"
    "dgx_h100,1,8,all_reduce,1048576,half,2.27.3,31.5,x\ndgx_a100,2,16,all_gather,4096,half,2.27.3,30,x\n"
)
RUNS = (
    "id,source,software,framework,gpu,device,machine,n_gpus,n_nodes,gpus_per_node,intra_node,inter_node,"
    "layers,hidden,heads,ffn,vocab,seq_len,precision,compute_precision,gbs,mbs,tp,pp,dp,sharding,"
    "data_sharding,act_recompute,recompute,attn_impl,attention_kernel,iter_time_s\n"
    "a,s,sw,megatron_lm,A100,a100_sxm_80gb,dgx_a100,8,1,8,NVLink,,24,1024,16,4096,50304,1024,bf16,bf16,"
    "8,1,1,1,8,none,none,none,none,flash,flash2,0.5\n"
)


def _table_readers() -> list[Reader]:
    from collectives.measurements import load_measurements
    from perfmodel.extensions.measurements.kernel_tables import KERNEL_KINDS

    return [
        _csv_reader("gemm", GEMM, KERNEL_KINDS["gemm"].load),
        _csv_reader("attention", ATTENTION, KERNEL_KINDS["attention"].load),
        _csv_reader("memory", MEMORY, KERNEL_KINDS["memory"].load),
        _csv_reader("collectives", COLLECTIVES, lambda path: load_measurements([path])),
        _csv_reader("runs", RUNS, _read_runs),
    ]


def _read_runs(path: Path) -> object:
    from perfmodel.api import validate_runs

    return validate_runs(path, executor="serial").to_json()


def kineto_document() -> Any:
    from tests.traces.builders import kernel, launch, span

    spans = [span("user_annotation", "ProfilerStep#1", 0, 100), span("cpu_op", "aten::mm", 1, 20)]
    for number in range(4):
        spans += [launch(number + 1, 5 + 20 * number), kernel(number + 1, 12 + 20 * number, 9)]
    around = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1}}
    return {"schemaVersion": 1, **around, "traceEvents": spans}


def _execution_trace() -> Any:
    from tests.extensions.recordings.test_execution_trace_jobs import step

    return {"schema": "1.0.1", "pid": 1, "nodes": step()}


def _trace_readers() -> list[Reader]:
    from perfmodel.api import import_traces

    def read(path: Path) -> object:
        return import_traces([path], path.parent / "job")

    return [
        json_reader("kineto", kineto_document(), read),
        json_reader("execution trace", _execution_trace(), read),
    ]


def _index_readers() -> list[Reader]:
    from embeddings.index_files import load_index_data

    packed = io.BytesIO()
    np.savez(packed, indices=np.arange(32), lengths=np.full((2, 4), 4), tables=np.array(2))
    return [
        bytes_reader("npz", packed.getvalue(), ".npz", load_index_data),
        bytes_reader("torch file", _torch_bytes(), ".pt", load_index_data),
    ]


def _torch_bytes() -> bytes:
    import torch

    target = io.BytesIO()
    torch.save((torch.arange(32), torch.arange(0, 33, 4), torch.full((2, 4), 4)), target)
    return target.getvalue()
