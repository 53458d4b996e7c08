"""A small model under DistributedDataParallel, as a user would write it."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    is_cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if is_cuda else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if is_cuda else torch.device("cpu")
    if is_cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Embedding(100, 64),
        torch.nn.Linear(64, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 100),
    ).to(device)
    model = DistributedDataParallel(model, device_ids=[local_rank] if is_cuda else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        tokens = torch.randint(0, 100, (8, 16)).to(device)
        optimizer.zero_grad()
        logits = model(tokens)
        loss = torch.nn.functional.cross_entropy(logits.view(-1, 100), tokens.view(-1))
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print("step", step, "loss", loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
