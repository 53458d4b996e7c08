"""A recommendation model: tables spread over ranks, dense layers replicated, an all-to-all."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BATCH, WIDTH, ROWS, TABLES = 64, 16, 1000, 6

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
own = [table for table in range(TABLES) if table % size == rank]
counts = [len(range(other, TABLES, size)) for other in range(size)]
bags = torch.nn.ModuleList(
    torch.nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=True) for _ in own
).to(device)
dense = torch.nn.Sequential(
    torch.nn.Linear(TABLES * WIDTH, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
).to(device)
dense = DistributedDataParallel(dense, device_ids=[device])
optimizer = torch.optim.SGD([*dense.parameters(), *bags.parameters()], lr=0.1)


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, pooled):
        local = BATCH // size
        out = pooled.new_empty(local * TABLES * WIDTH)
        taken = [local * count * WIDTH for count in counts]
        dist.all_to_all_single(out, pooled.view(-1), taken, [local * len(own) * WIDTH] * size)
        return out.view(local, TABLES * WIDTH)

    @staticmethod
    def backward(ctx, gradient):
        local = BATCH // size
        out = gradient.new_empty(BATCH * len(own) * WIDTH)
        sent = [local * count * WIDTH for count in counts]
        flat = gradient.contiguous().view(-1)
        dist.all_to_all_single(out, flat, [local * len(own) * WIDTH] * size, sent)
        return out.view(BATCH, len(own) * WIDTH)


for _ in range(5):
    torch.manual_seed(rank)
    offsets = torch.arange(0, BATCH * 3, 3).to(device)
    pooled = [bag(torch.randint(0, ROWS, (BATCH * 3,)).to(device), offsets) for bag in bags]
    vectors = Exchange.apply(torch.cat(pooled, 1))
    loss = torch.nn.functional.binary_cross_entropy_with_logits(
        dense(vectors), torch.ones(BATCH // size, 1, device=device)
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
