"""Times the kernels and collectives of kernels.json under load, and writes table.csv beside it.

    python measure.py                            kernels of one GPU
    torchrun --nproc-per-node GPUS measure.py    all GPUs at once, as in training, and collectives;
                                                 the time of the slowest GPU counts
    python measure.py --dry-run                  small tensors on a CPU: all but the times

Needs torch alone (lookups FBGEMM, flash3 flash_attn_interface, too). A kernel is repeated for
--seconds, so that the GPU reaches the clock of a long run, and the second half counts. Operands
rotate over copies larger than a cache, as in training. Products are timed in the layouts of
training. Then:

    perfmodel calibrate kernels table.csv --out my_kernels.yaml
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

Row = dict[str, Any]
Call = Callable[[], object]
Case = tuple[Row, Call]
"""What a row says besides its sizes, and what does it."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
DTYPES |= {"tf32": torch.float32, "fp64": torch.float64, "int32": torch.int32, "int64": torch.int64}
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash2": SDPBackend.FLASH_ATTENTION,
    "unfused": SDPBackend.MATH,
}
FLASH3 = "flash3"
"""Kernels of attention that torch has, and one with a package of its own."""
ROTATED_BYTES, MOST_COPIES = 512 * 2**20, 16
BATCH_S, CALLS = 0.05, 20
"""A batch of kernels takes so long; collectives are called equally often on all ranks."""
SMALL, SMALL_BYTES = 32, 2**14


class UntimedError(Exception):
    """A row that cannot be timed here."""


def shrink(row: Row) -> Row:
    """The row of a dry run: every size small."""
    sizes = {name: value for name, value in row.items() if type(value) is int}
    small = {
        name: min(value, SMALL_BYTES if name.endswith("_bytes") else SMALL)
        for name, value in sizes.items()
        if name not in ("ranks", "hosts")
    }
    if row["kind"] == "attention":
        small |= {"heads": 4, "kv_heads": 2}
    return row | small | ({"tables": "64x8x2+32x8x1"} if row["kind"] == "lookup" else {})


def dtype_of(row: Row) -> torch.dtype:
    """The type of the numbers of *row*."""
    if row["dtype"] not in DTYPES:
        raise UntimedError(f"torch has no plain kernel in {row['dtype']}")
    torch.backends.cuda.matmul.allow_tf32 = row["dtype"] == "tf32"
    return DTYPES[row["dtype"]]


def rotating(call: Callable[..., object], row: Row, *shapes: tuple[int, ...]) -> Call:
    """*call* on operands of *shapes* that are not in the caches."""
    device, dtype = row["on"], dtype_of(row)
    size = sum(map(math.prod, shapes)) * dtype.itemsize
    count = min(max(-(-ROTATED_BYTES // size), 2), MOST_COPIES) if device == "cuda" else 1
    copies = [[torch.randn(one, device=device).to(dtype) for one in shapes] for _ in range(count)]
    return in_turn(call, copies)


def in_turn(call: Callable[..., object], copies: list[Any]) -> Call:
    """*call* on each of *copies* in turn."""
    endless = itertools.cycle(copies)
    return lambda: call(*next(endless))


def gemm(row: Row) -> Iterator[Case]:
    """A product as forward (TN) and gradient of the input (NN), or added up of a weight (NT)."""
    m, n, k = row["m"], row["n"], row["k"]
    lead = (row["batch"],) if row["batch"] > 1 else ()
    if row["added_bytes"] and not lead:
        total = torch.zeros(m, n, device=row["on"], dtype=torch.float32)

        def add(x: torch.Tensor, y: torch.Tensor) -> object:
            if row["on"] == "cuda":
                return torch.addmm(total, x.mT, y, out_dtype=torch.float32, out=total)
            return total.add_(x.mT @ y)

        yield {"layout": "NT"}, rotating(add, row, (k, m), (k, n))
        return
    forward = rotating(lambda x, y: x @ y.mT, row, (*lead, m, k), (*lead, n, k))
    yield {"layout": "TN"}, forward
    yield {"layout": "NN"}, rotating(torch.matmul, row, (*lead, m, k), (*lead, k, n))


def grouped(row: Row) -> Iterator[Case]:
    """Products of experts in one launch."""
    groups, m, n, k = row["groups"], row["m"], row["n"], row["k"]
    if row["on"] == "cuda" and hasattr(torch, "_grouped_mm"):
        ends = torch.arange(1, groups + 1, device="cuda", dtype=torch.int32) * m

        def call(x: torch.Tensor, y: torch.Tensor) -> object:
            return torch._grouped_mm(x, y, offs=ends)

        yield {}, rotating(call, row, (groups * m, k), (groups, k, n))
    else:
        yield {}, rotating(torch.bmm, row, (groups, m, k), (groups, k, n))


def attention(row: Row) -> Iterator[Case]:
    """Attention, forward or backward, by the kernel of torch that the job runs."""
    kernel = row["kernel"] if row["on"] == "cuda" else "unfused"
    queries = (row["batch"], row["heads"], row["query_length"], row["head_dim"])
    keys = (row["batch"], row["kv_heads"], row["key_length"], row["head_dim"])

    def forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if kernel == FLASH3:
            turned = (one.transpose(1, 2) for one in (query, key, value))
            found = import_module("flash_attn_interface").flash_attn_func(
                *turned, causal=row["is_causal"]
            )
            return cast(torch.Tensor, found[0] if isinstance(found, tuple) else found)
        with sdpa_kernel(BACKENDS[kernel]):
            return functional.scaled_dot_product_attention(
                query, key, value, is_causal=row["is_causal"], enable_gqa=queries[1] != keys[1]
            )

    graphs = []
    try:
        for _ in range(2):
            inputs = [
                torch.randn(one, device=row["on"]).to(dtype_of(row)).requires_grad_()
                for one in (queries, keys, keys)
            ]
            out = forward(*inputs)
            graphs.append((out, inputs, torch.randn_like(out)))
    except (ImportError, KeyError, RuntimeError) as fault:
        raise UntimedError(f"{kernel} does not run here: {fault}") from None
    if row["direction"] == "forward":
        yield {}, rotating(forward, row, queries, keys, keys)
        return

    def backward(out: torch.Tensor, inputs: list[torch.Tensor], gradient: torch.Tensor) -> object:
        return torch.autograd.grad(out, inputs, gradient, retain_graph=True)

    yield {}, in_turn(backward, graphs)


def memory(row: Row) -> Iterator[Case]:
    """A norm, activation or softmax by its name; others as plain traffic of as many bytes."""
    word, width, length = row["operator"], dtype_of(row).itemsize, row["row_length"]
    reads, writes = row["read_bytes"] // width, row["write_bytes"] // width
    table = (max(writes // max(length, 1), 1), length)
    if word in ("rms_norm", "layer_norm", "softmax") and length:
        call = getattr(functional, word)
        over: Any = -1 if word == "softmax" else (length,)
        yield {}, rotating(lambda x: call(x, over), row, table)
    elif word == "swiglu" and reads == 2 * writes:
        yield {}, rotating(lambda x, y: functional.silu(x) * y, row, (writes,), (writes,))
    elif not writes:
        yield {}, rotating(torch.sum, row, (max(reads, 1),))
    elif not reads:
        yield {}, rotating(torch.Tensor.zero_, row, (writes,))
    else:
        # As many inputs as it reads, added up into one output.
        count = max(round(reads / writes), 1)
        total = (lambda *parts: sum(parts[1:], parts[0])) if count > 1 else torch.clone
        if row["on"] == "cuda":
            total = torch.compile(total)
        yield {}, rotating(total, row, *[(writes,)] * count)


def lookup(row: Row) -> Iterator[Case]:
    """Pooled lookups of several tables, uniformly drawn, and their fused update."""
    parts = [text.split("x") for text in row["tables"].split("+")]
    sizes = [(int(rows), int(width)) for rows, width, _ in parts]
    lengths = [max(round(float(pooling)), 1) for *_, pooling in parts]
    batch, on = row["batch"], row["on"]
    drawn = [
        torch.randint(rows, (batch * length,), device=on)
        for (rows, _), length in zip(sizes, lengths, strict=True)
    ]
    if on == "cpu":
        weights = [torch.randn(size) for size in sizes]
        yield (
            {},
            lambda: [
                functional.embedding_bag(one.view(batch, -1), weight, mode="sum")
                for one, weight in zip(drawn, weights, strict=True)
            ],
        )
        return
    try:
        fbgemm = import_module("fbgemm_gpu.split_table_batched_embeddings_ops_training")
        optimizers = import_module("fbgemm_gpu.split_embedding_configs").EmbOptimType
    except ImportError:
        raise UntimedError("lookups need fbgemm_gpu") from None
    place = fbgemm.EmbeddingLocation.DEVICE, fbgemm.ComputeDevice.CUDA
    module = fbgemm.SplitTableBatchedEmbeddingBagsCodegen(
        [(*size, *place) for size in sizes], optimizer=optimizers.EXACT_ROWWISE_ADAGRAD
    )
    counts = torch.tensor([0, *(length for length in lengths for _ in range(batch))], device=on)
    asked = torch.cat(drawn), counts.cumsum(0)
    out = module(*asked)
    gradient = torch.randn_like(out)
    if row["direction"] == "forward":
        yield {}, lambda: module(*asked)
    else:
        yield {}, lambda: out.backward(gradient, retain_graph=True)


def collective(row: Row) -> Iterator[Case]:
    """A collective of the first ranks of its hosts; other ranks take no part."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    step = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    hosts, of_host = row["hosts"], row["ranks"] // row["hosts"]
    if row["on"] == "cpu":
        hosts, of_host = min(hosts, world // step), min(of_host, step)
    if not dist.is_initialized() or hosts * step > world or of_host > step:
        raise UntimedError(f"needs torchrun with {row['ranks']} ranks on {row['hosts']} hosts")
    members = [host * step + place for host in range(hosts) for place in range(of_host)]
    group = dist.new_group(members)
    if dist.get_rank() not in members:
        return
    rank, count = members.index(dist.get_rank()), len(members)
    part = max(row["size_bytes"] // dtype_of(row).itemsize // count, 1)
    whole = torch.ones(part * count, device=row["on"], dtype=dtype_of(row))
    own, other = whole[:part].clone(), torch.empty_like(whole)

    def send_recv() -> None:
        if (rank ^ 1) < count:
            peer = members[rank ^ 1]
            calls = [dist.P2POp(dist.isend, whole, peer), dist.P2POp(dist.irecv, other, peer)]
            for one in dist.batch_isend_irecv(calls):
                one.wait()

    known: dict[str, Call] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, own, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(own, whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
        "broadcast": lambda: dist.broadcast(whole, members[0], group=group),
        "send_recv": send_recv,
    }
    if row["collective"] not in known:
        raise UntimedError(f"torch has no {row['collective']}")
    yield {}, known[row["collective"]]


CASES = {one.__name__: one for one in (gemm, grouped, attention, memory, lookup, collective)}


def time_ms(call: Call, row: Row, seconds: float) -> float:
    """Milliseconds of *call*: the median of the later half of batches, once the GPU is warm."""

    def batch_s(calls: int) -> float:
        wait = torch.cuda.synchronize if row["on"] == "cuda" else int
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        wait()
        return max((time.perf_counter() - start) / calls, 1e-7)

    batch_s(2)
    calls, batches = CALLS, max(round(seconds / BATCH_S), 2)
    if row["kind"] != "collective":
        once_s = batch_s(2)
        calls = max(round(BATCH_S / once_s), 1) if seconds else 1
        batches = max(round(seconds / max(BATCH_S, once_s)), 2)
    late = sorted([batch_s(calls) for _ in range(batches)][batches // 2 :])
    return 1e3 * late[len(late) // 2]


def start_ranks(*, is_dry: bool) -> bool:
    """Join the ranks of torchrun, if it started this; whether this is the first one."""
    if "RANK" in os.environ:
        if not is_dry:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("gloo" if is_dry else "nccl")
        return dist.get_rank() == 0
    if is_dry:
        store = dist.HashStore()  # type: ignore[attr-defined]  # torch has it, its stubs do not
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    return True


def take_slowest(rows: dict[str, Row]) -> None:
    """Give *rows* the time of the slowest rank: a job goes at its pace."""
    if not dist.is_initialized():
        return
    of_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, {key: row["latency_ms"] for key, row in rows.items()})
    for key, row in rows.items():
        row["latency_ms"] = max(times[key] for times in of_ranks if key in times)


def main() -> None:
    """Time all rows, and write and say what was timed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="for each kernel and layout")
    parser.add_argument("--dry-run", action="store_true", help="small tensors on a CPU")
    options = parser.parse_args()
    folder, is_dry = Path(__file__).parent, options.dry_run
    plan = json.loads((folder / "kernels.json").read_text(encoding="utf-8"))
    is_first, seconds = start_ranks(is_dry=is_dry), 0.0 if is_dry else options.seconds
    about = {"device": plan["device"], "under_load": 1, "residency": "cold", "dry_run": int(is_dry)}
    about["collector"] = f"torch {torch.__version__}"
    rows: dict[str, Row] = {}
    for number, listed in enumerate(plan["kernels"]):
        row = {**(shrink(listed) if is_dry else listed), "on": "cpu" if is_dry else "cuda"}
        try:
            for extra, call in CASES[row["kind"]](row):
                told = {**row, **extra, **about, "latency_ms": time_ms(call, row, seconds)}
                rows[f"{number} {extra}"] = told
        except (UntimedError, torch.OutOfMemoryError) as fault:
            if is_first:
                print(f"not timed: row {number}, {row['kind']}: {fault}")
    take_slowest(rows)
    if is_first:
        with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
            names = dict.fromkeys(name for row in rows.values() for name in row)
            writer = csv.DictWriter(file, list(names))
            writer.writeheader()
            writer.writerows(rows.values())
        print(f"{len(rows)} times in {folder / 'table.csv'}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
