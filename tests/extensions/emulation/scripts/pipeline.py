"""Two stages of a pipeline that tell each other shapes, then send activations and gradients."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
layer = torch.nn.Linear(32, 32).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(5):
    if rank == 0:
        out = layer(torch.ones(4, 32, device="cuda"))
        dist.send_object_list([tuple(out.shape)], dst=1)
        dist.send(out.detach(), dst=1)
        gradient = torch.empty_like(out)
        dist.recv(gradient, src=1)
        out.backward(gradient)
    else:
        shape = [None]
        dist.recv_object_list(shape, src=0)
        inputs = torch.empty(shape[0], device="cuda").requires_grad_()
        dist.recv(inputs.data, src=0)
        layer(inputs).sum().backward()
        dist.send(inputs.grad, dst=0)
    optimizer.step()
    optimizer.zero_grad()
