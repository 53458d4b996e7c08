"""Times the kernels and collectives of kernels.json under load, and writes table.csv beside it.

    python measure.py                                 kernels of one GPU
    torchrun --nproc-per-node GPUS measure.py         all GPUs at once, as in training, and collectives
    python measure.py --dry-run                       small tensors on a CPU: everything but the times

Needs torch alone (lookups: FBGEMM too). A kernel is repeated for --seconds, so that the GPU reaches
the clock of a long run, and the second half counts. Operands rotate over copies larger than a cache,
as in training. Products are timed in the three layouts of training. Then, where perfmodel is:

    perfmodel calibrate kernels table.csv --out my_kernels.yaml
"""

import argparse
import csv
import json
import math
import os
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32,
          "fp64": torch.float64, "int64": torch.int64, "int32": torch.int32, "int8": torch.int8}  # fmt: skip
ROTATED_BYTES, MOST_COPIES = 512 * 2**20, 16
BATCH_S = 0.05
SMALL, SMALL_BYTES = 32, 2**14


class Untimed(Exception):
    """A row that cannot be timed here."""


def shrink(row):
    """The row of a dry run: every size small."""
    small = dict(row)
    for name, value in row.items():
        if isinstance(value, int) and not isinstance(value, bool) and name not in ("ranks", "hosts"):
            small[name] = min(value, SMALL_BYTES if name.endswith("_bytes") else SMALL)
    if row["kind"] == "attention":
        small |= {"heads": 4, "kv_heads": 2, "query_length": SMALL, "key_length": SMALL}
    if row["kind"] == "lookup":
        small["tables"] = "64x8x2+32x8x1"
    return small


def dtype_of(row):
    if row["dtype"] not in DTYPES:
        raise Untimed(f"torch has no plain kernel in {row['dtype']}")
    return DTYPES[row["dtype"]]


def tensors(device, dtype, *shapes):
    """Copies of one call's operands, more than caches hold."""
    size = sum(math.prod(shape) for shape in shapes) * torch.empty((), dtype=dtype).element_size()
    count = min(max(-(-ROTATED_BYTES // max(size, 1)), 2), MOST_COPIES) if device == "cuda" else 1

    def one(shape):
        if dtype.is_floating_point:
            return torch.randn(shape, device=device, dtype=torch.float32).to(dtype)
        return torch.ones(shape, device=device, dtype=dtype)

    return [tuple(one(shape) for shape in shapes) for _ in range(count)]


def rotate(copies, call):
    place = [0]

    def run():
        place[0] = (place[0] + 1) % len(copies)
        return call(*copies[place[0]])

    return run


def gemms(row, device):
    """A product in the layouts of forward (TN), input gradient (NN) and weight gradient (NT)."""
    batch, m, n, k, dtype = row["batch"], row["m"], row["n"], row["k"], dtype_of(row)
    lead = (batch,) if batch > 1 else ()
    torch.backends.cuda.matmul.allow_tf32 = row["dtype"] == "tf32"
    layouts = {"TN": ((m, k), (n, k)), "NN": ((m, k), (k, n)), "NT": ((k, m), (k, n))}
    for layout, (a, b) in layouts.items():
        copies = tensors(device, dtype, (*lead, *a), (*lead, *b))

        def call(x, y, layout=layout):
            x = x.transpose(-1, -2) if layout == "NT" else x
            return x @ (y.transpose(-1, -2) if layout == "TN" else y)

        yield {"layout": layout}, rotate(copies, call)


def grouped(row, device):
    groups, m, n, k, dtype = row["groups"], row["m"], row["n"], row["k"], dtype_of(row)
    if device == "cuda" and hasattr(torch, "_grouped_mm"):
        ends = torch.arange(1, groups + 1, device=device, dtype=torch.int32) * m
        copies = tensors(device, dtype, (groups * m, k), (groups, k, n))
        yield {}, rotate(copies, lambda x, y: torch._grouped_mm(x, y, offs=ends))
    else:
        yield {}, rotate(tensors(device, dtype, (groups, m, k), (groups, k, n)), torch.bmm)


def attention(row, device):
    shape = (row["batch"], row["heads"], row["query_length"], row["head_dim"])
    keys = (row["batch"], row["kv_heads"], row["key_length"], row["head_dim"])
    copies = tensors(device, dtype_of(row), shape, keys, keys, shape)

    def forward(q, k, v, _):
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=row["is_causal"], enable_gqa=row["heads"] != row["kv_heads"]
        )

    if row["direction"] == "forward":
        yield {}, rotate(copies, forward)
        return
    graphs = []
    for q, k, v, gradient in copies:
        inputs = [one.requires_grad_() for one in (q, k, v)]
        graphs.append((forward(*inputs, None), inputs, gradient))
    yield {}, rotate(
        graphs, lambda out, inputs, gradient: torch.autograd.grad(out, inputs, gradient, retain_graph=True)
    )


def memory(row, device):
    """A norm, activation or softmax by its name; others as plain traffic of as many bytes."""
    word, dtype = row["operator"], dtype_of(row)
    width = torch.empty((), dtype=dtype).element_size()
    reads, writes = row["read_bytes"] // width, row["write_bytes"] // width
    length = row["row_length"]
    rows = max(writes // max(length, 1), 1)
    if word in ("rms_norm", "layer_norm") and length:
        norm = getattr(F, word)
        yield {}, rotate(tensors(device, dtype, (rows, length)), lambda x: norm(x, (length,)))
    elif word == "softmax" and length:
        yield {}, rotate(tensors(device, dtype, (rows, length)), lambda x: F.softmax(x, -1))
    elif word == "swiglu" and reads == 2 * writes:
        yield {}, rotate(tensors(device, dtype, (writes,), (writes,)), lambda x, y: F.silu(x) * y)
    elif not writes:
        yield {}, rotate(tensors(device, dtype, (reads,)), torch.sum)
    elif not reads:
        yield {}, rotate(tensors(device, dtype, (writes,)), torch.Tensor.zero_)
    else:
        # As many inputs as fit the reads, and one output: each element is written once.
        count = max(round(reads / writes), 1)
        shapes = [(writes,)] * count
        if count == 1:
            yield {}, rotate(tensors(device, dtype, *shapes), torch.clone)
        else:
            out = torch.empty(writes, device=device, dtype=dtype)
            fused = torch.compile(lambda *parts: sum(parts[1:], parts[0])) if device == "cuda" else None
            call = fused or (lambda *parts: torch.stack(parts).sum(0, out=out))
            yield {}, rotate(tensors(device, dtype, *shapes), call)


def lookup(row, device):
    tables = [tuple(map(float, text.split("x"))) for text in row["tables"].split("+")]
    sizes = [(int(rows), int(width)) for rows, width, _ in tables]
    batch, lengths = row["batch"], [max(round(pooling), 1) for *_, pooling in tables]
    indices = torch.cat([torch.randint(rows, (batch * n,)) for (rows, _), n in zip(sizes, lengths)]).to(device)
    counts = torch.tensor([n for n in lengths for _ in range(batch)])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).to(device)
    if device != "cuda":
        weights = [torch.randn(rows, width) for rows, width in sizes]
        parts = indices.split([batch * n for n in lengths])
        yield {}, lambda: [
            F.embedding_bag(part.view(batch, -1), weight, mode="sum") for part, weight in zip(parts, weights)
        ]
        return
    try:
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )
    except ImportError:
        raise Untimed("lookups need fbgemm_gpu") from None
    module = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, width, EmbeddingLocation.DEVICE, ComputeDevice.CUDA) for rows, width in sizes],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    )
    if row["direction"] == "forward":
        yield {}, lambda: module(indices, offsets)
        return
    out = module(indices, offsets)
    gradient = torch.randn_like(out)
    yield {}, lambda: out.backward(gradient, retain_graph=True)


def collective(row, device, groups):
    """A collective of the first ranks of each host; ranks outside of it take no part."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    if not dist.is_initialized() or row["ranks"] > world and device == "cuda":
        raise Untimed(f"needs torchrun with {row['ranks']} ranks on {row['hosts']} hosts")
    count = min(row["ranks"], world)
    hosts = min(row["hosts"], world)
    of_host, here = count // hosts or 1, int(os.environ.get("LOCAL_WORLD_SIZE", world))
    members = tuple(host * here + place for host in range(hosts) for place in range(of_host))
    if members not in groups:
        groups[members] = dist.new_group(list(members))
    group, kind = groups[members], row["collective"]
    if dist.get_rank() not in members:
        yield {}, None
        return
    elements = max(row["size_bytes"] // torch.empty((), dtype=dtype_of(row)).element_size(), count)
    part = elements // len(members)
    whole = torch.ones(part * len(members), device=device, dtype=dtype_of(row))
    own, other = whole[:part].clone(), torch.empty_like(whole)
    rank = members.index(dist.get_rank())
    peer = members[rank ^ 1] if rank ^ 1 < len(members) else None

    def send_recv():
        if peer is None:
            return
        calls = [dist.P2POp(dist.isend, whole, peer), dist.P2POp(dist.irecv, other, peer)]
        for one in dist.batch_isend_irecv(calls):
            one.wait()

    known = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, own, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(own, whole, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group),
        "broadcast": lambda: dist.broadcast(whole, members[0], group=group),
        "send_recv": send_recv,
    }
    if kind not in known:
        raise Untimed(f"no call of torch is a {kind}")
    yield {}, known[kind]


CASES = {"gemm": gemms, "grouped": grouped, "attention": attention, "memory": memory, "lookup": lookup}


def time_ms(call, device, seconds, calls):
    """Milliseconds of a call: the median of the second half of batches, once the GPU is warm."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    for _ in range(3):
        call()
    wait()
    start = time.perf_counter()
    for _ in range(3):
        call()
    wait()
    once_s = max((time.perf_counter() - start) / 3, 1e-7)
    # The number of calls is the same on all ranks of a collective.
    if calls is None:
        batch, batches = max(round(BATCH_S / once_s), 1), max(round(seconds / max(BATCH_S, once_s)), 2)
    else:
        batch, batches = calls, max(round(seconds / BATCH_S), 2)
    times = []
    for _ in range(batches):
        if device == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
        start = time.perf_counter()
        for _ in range(batch):
            call()
        if device == "cuda":
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / batch)
        else:
            times.append(1e3 * (time.perf_counter() - start) / batch)
    late = sorted(times[len(times) // 2 :])
    return late[len(late) // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="under load, for each kernel and layout")
    parser.add_argument("--dry-run", action="store_true", help="small tensors on a CPU")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "table.csv")
    options = parser.parse_args()
    plan = json.loads((Path(__file__).parent / "kernels.json").read_text(encoding="utf-8"))
    device, seconds = ("cpu", 0.0) if options.dry_run else ("cuda", options.seconds)
    backend = "gloo" if options.dry_run else "nccl"
    if "RANK" in os.environ:
        if device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group(backend)
    elif options.dry_run:
        store = f"file://{tempfile.mkdtemp()}/store"
        dist.init_process_group(backend, init_method=store, rank=0, world_size=1)
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    groups, rows, untimed = {}, [], []
    for number, row in enumerate(plan["kernels"]):
        row = shrink(row) if options.dry_run else row
        is_call = row["kind"] == "collective"
        try:
            cases = collective(row, device, groups) if is_call else CASES[row["kind"]](row, device)
            for extra, call in cases:
                if call is None:
                    continue
                calls = (1 if options.dry_run else 20) if is_call else None
                latency_ms = time_ms(call, device, seconds, calls)
                about = {"device": plan["device"], "under_load": 1, "residency": "cold"}
                about |= {"dry_run": int(options.dry_run), "latency_ms": latency_ms}
                rows.append({**row, **extra, **about, "collector": f"torch {torch.__version__}"})
        except (Untimed, torch.OutOfMemoryError, NotImplementedError) as fault:
            untimed.append(f"row {number} ({row['kind']}): {fault}")
        if is_first:
            print(f"{number + 1} of {len(plan['kernels'])}", end="\r", file=sys.stderr, flush=True)
        if device == "cuda":
            torch.cuda.empty_cache()
    if is_first:
        names = list(dict.fromkeys(name for row in rows for name in row))
        with options.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
        for line in untimed:
            print(f"not timed: {line}")
        print(f"{len(rows)} times in {options.out}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
