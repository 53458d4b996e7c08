"""Two stages of torch's own pipeline, four micro-batches, one forward and one backward in turn."""

import os

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
layer = torch.nn.Linear(64, 64).to(device)
stage = PipelineStage(layer, rank, size, device)
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda out, target: (out - target).sum())
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(4):
    batch = torch.ones(16, 64, device=device)
    if rank == 0:
        schedule.step(batch)
    else:
        schedule.step(target=batch)
    optimizer.step()
    optimizer.zero_grad()
