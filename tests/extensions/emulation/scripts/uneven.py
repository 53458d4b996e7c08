"""Ranks with work of their own, so that all of them are run, and a compiled layer."""

import os

import torch
from torch._dynamo.utils import counters

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.Linear(32, 32).cuda()
layer = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = layer(torch.ones(8, 32, device="cuda")).sum()
    for _ in range(int(os.environ["RANK"])):
        loss = loss * 2
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 0:
        print("loaded", counters["aot_autograd"]["autograd_cache_hit"], flush=True)
