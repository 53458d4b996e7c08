"""What a reader of the manual has: recordings, logs, tables and files of other programs."""

from __future__ import annotations

import json
from pathlib import Path

from perfmodel.extensions.recordings.storage import save_recorded_job
from tests.extensions.formats.machines.test_nccl_xml import host, pair
from tests.extensions.formats.machines.test_smi_matrix import SWITCHED
from tests.extensions.formats.models.test_hugging_face import LLAMA
from tests.extensions.formats.test_nccl_tests import COLUMNS, HEADING, ranks
from tests.extensions.recordings.builders import import_spans
from tests.traces.builders import kernel, launch, span

SCRIPT = """\
import os
import torch
from torch.nn.parallel import DistributedDataParallel

torch.distributed.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
model = DistributedDataParallel(torch.nn.Linear(1024, 1024).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(64, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""
RUNS = """\
id,framework,gpu,machine,n_gpus,layers,hidden,heads,ffn,vocab,seq_len,precision,gbs,mbs,step_time_s
one,torchtitan,H100,dgx_h100,8,8,4096,32,14336,128256,8192,bf16,16,2,1.05
"""
DEEPSPEED = {
    "train_batch_size": 128,
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 3},
    "bf16": {"enabled": True},
}


def prepare(folder: Path) -> None:
    """Put all of it into *folder*."""
    spans = [
        span("user_annotation", "ProfilerStep#1", 0, 90),
        span("cpu_op", "aten::mm", 0, 15), launch(1, 0), kernel(1, 10, 50, name="sgemm"),
        span("cpu_op", "aten::add", 20, 15), launch(2, 20), kernel(2, 60, 30),
    ]  # fmt: skip
    job = import_spans(folder / "traces", spans, spans)
    save_recorded_job(job, folder / "recorded_job")
    model = folder / "Llama-3.1-8B"
    model.mkdir()
    (folder / "timing").mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "llama", **LLAMA}))
    for name, text in {
        "ds_config.json": json.dumps(DEEPSPEED),
        "topo.xml": host(pair(0), pair(1)),
        "matrix.txt": SWITCHED,
        "all_reduce.log": nccl_log("all_reduce", 2.0),
        "all_gather.log": nccl_log("all_gather", 1.0),
        "products.csv": gemm_table(),
        "timing/table.csv": gemm_table(),
        "collectives.csv": collective_table(),
        "train.py": SCRIPT,
        "my_runs.csv": RUNS,
    }.items():
        (folder / name).write_text(text)


def sizes() -> list[int]:
    """From 64 KiB to 256 MiB."""
    return [4**power * 1024 for power in range(3, 10)]


def nccl_log(kind: str, passes: float) -> str:
    """What nccl-tests prints on two hosts at 200 GB/s and 50 us."""
    lines = []
    for size in sizes():
        time_us = 50 + passes * size / 2e5
        rate = size / time_us / 1e3
        bus = passes * rate * 15 / 16
        lines.append(f"{size} {size // 2} half sum -1 {time_us:.2f} {rate:.2f} {bus:.2f} 0\n")
    heading = HEADING.replace("alltoall", kind).replace("maxBytes 4096", f"maxBytes {sizes()[-1]}")
    return heading + ranks(16).replace("A100-SXM4-80GB", "H100") + COLUMNS + "".join(lines)


def gemm_table() -> str:
    """Products on an H100 at 600 TFLOP/s and 5 us."""
    shapes = [(m, n, k) for m in (512, 2048, 8192) for n in (1024, 4096) for k in (1024, 4096)]
    rows = [f"h100_sxm,{m},{n},{k},{5 + 2 * m * n * k / 6e8:.3f}" for m, n, k in shapes]
    return "\n".join(["device,m,n,k,time_us", *rows, ""])


def collective_table() -> str:
    """All-reduces inside a host and over two."""
    rows = [
        f"dgx_h100,{hosts},{8 * hosts},all_reduce,{size},bf16,2.27.5,"
        f"{50 * hosts + size / 1.5e5:.2f},mine"
        for hosts in (1, 2)
        for size in sizes()
    ]
    heading = "topology,hosts,nranks,collective,size_bytes,dtype,nccl_version,time_us,source"
    return "\n".join([heading, *rows, ""])
