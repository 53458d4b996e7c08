"""Layers whose kernels a build without CUDA does not know: groups of GEMMs, recurrent steps,
attention with wide heads and with a bias that is trained, compiled convolutions."""

from importlib.metadata import packages_distributions, version

import torch
from flash_attn.bert_padding import pad_input, unpad_input
from torch._six import container_abcs, inf
from torch.nn import functional
from torch.utils.cpp_extension import load_inline

assert issubclass(list, container_abcs.Iterable)
assert inf > 0
assert packages_distributions()["flash_attn"] == ["flash_attn"]
assert version("flash-attn") > "2.3"
kept = torch.tensor([[1, 1, 0], [1, 1, 1]], device="cuda")
rows, places, starts, longest, _ = unpad_input(torch.zeros(2, 3, 4, device="cuda"), kept)
assert (len(rows), longest, starts.tolist()) == (5, 3, [0, 2, 5])
assert pad_input(rows, places, 2, 3).shape == (2, 3, 4)
experts = torch.nn.Parameter(torch.rand(4, 32, 16, device="cuda"))
recurrent = torch.nn.LSTM(32, 64, num_layers=2).cuda()
bias = torch.nn.Parameter(torch.zeros(8, 8, device="cuda", dtype=torch.float16))
convolutions = torch.nn.Sequential(
    torch.nn.Conv2d(8, 32, 3), torch.nn.GELU(), torch.nn.Conv2d(32, 32, 3, groups=2)
)
convolutions = convolutions.cuda().half().to(memory_format=torch.channels_last)
compiled = torch.compile(convolutions)
parameters = [experts, bias, *recurrent.parameters(), *convolutions.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1)
tokens = torch.rand(64, 32, device="cuda")
mine = load_inline("mine", "", cuda_sources="void twice(torch::Tensor);", functions=["twice"])
ends = torch.tensor([16, 32, 48, 64], dtype=torch.int32, device="cuda")
for _ in range(3):
    # Gradients of a sum have no strides, which this operator refuses.
    grouped = torch._grouped_mm(tokens, experts, offs=ends).square()
    states, _ = recurrent(tokens.view(16, 4, 32))
    wide = torch.rand(1, 2, 8, 512, device="cuda")
    mixed = functional.scaled_dot_product_attention(wide, wide, wide)
    narrow = torch.rand(1, 2, 8, 64, device="cuda", dtype=torch.float16)
    biased = functional.scaled_dot_product_attention(narrow, narrow, narrow, bias)
    images = torch.rand(2, 8, 16, 16, device="cuda", dtype=torch.float16)
    seen = compiled(images.to(memory_format=torch.channels_last))
    sum(one.float().sum() for one in (grouped, states, mixed, biased, seen)).backward()
    mine.twice(tokens)
    optimizer.step()
    optimizer.zero_grad()
