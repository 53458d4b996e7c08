"""Two pairs of a column-wise and a row-wise layer over all ranks."""

import os

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


class Pair(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(32, 64)
        self.down = torch.nn.Linear(64, 32)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),))
model = torch.nn.Sequential(Pair(), Pair()).to("cuda")
for pair in model:
    parallelize_module(pair, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
for _ in range(5):
    torch.manual_seed(0)
    batch = torch.rand(16, 32).cuda()
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
