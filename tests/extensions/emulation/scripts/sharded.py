"""Fully sharded data parallelism (FSDP2): four layers and the root, in bf16."""

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(64)
        self.inner = torch.nn.Linear(64, 256)
        self.outer = torch.nn.Linear(256, 64)

    def forward(self, x):
        return x + self.outer(torch.nn.functional.gelu(self.inner(self.norm(x))))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(128, 64)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(4))
        self.head = torch.nn.Linear(64, 128)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = Model().cuda()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.layers:
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
while True:
    tokens = torch.randint(0, 128, (4, 32), device="cuda")
    model(tokens).float().logsumexp(-1).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
