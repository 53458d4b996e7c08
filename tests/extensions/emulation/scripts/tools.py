"""What scripts ask of tools and packages that need a GPU."""

import copy
import subprocess

import pynvml
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

NAMES = subprocess.check_output(
    ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"], text=True
)
print("smi", NAMES.strip())
pynvml.nvmlInit()
first = pynvml.nvmlDeviceGetHandleByIndex(0)
print("nvml", pynvml.nvmlDeviceGetName(first), pynvml.nvmlDeviceGetMemoryInfo(first).total)
print("build", "CUDA Runtime" in torch.__config__.show())


@triton.jit
def add_kernel(x, y, out, count, BLOCK: tl.constexpr):  # noqa: N803  as in Triton's tutorials
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    target = out + places
    tl.store(target, tl.load(x + places) + tl.load(y + places), mask=places < count)


@triton.jit
def square_kernel(x, out):
    tile = x.load([0, 0])
    out.store([0, 0], tl.dot(tile, tile.T))


@torch.compile(fullgraph=True)
def added(x):
    total = torch.empty_like(x)
    # A break in a loop would leave the function eager.
    for _ in range(min(torch.cuda.get_device_properties("cuda").multi_processor_count, 1)):
        add_kernel[(triton.cdiv(x.numel(), 256),)](x, x, total, 512, BLOCK=256)
    return total


@torch.compile(fullgraph=True)
def squared(x):
    square = torch.empty(8, 8, device="cuda")
    square_kernel[(1,)](*[TensorDescriptor.from_tensor(one, [8, 8]) for one in (x, square)])
    return square


saxpy = torch.cuda._compile_kernel(
    'extern "C" __global__ void saxpy(const float* x, float* y, int count) {}', "saxpy"
)

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64)).cuda()
average = copy.deepcopy(model)
average[1].num_batches_tracked += 3
print("copied", model[1].num_batches_tracked.item(), average[1].num_batches_tracked.item())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    hidden = model(torch.ones(8, 64, device="cuda"))
    total = added(hidden)
    saxpy((1, 1, 1), (512, 1, 1), (hidden, total, 512))
    squared(hidden.detach())
    hidden.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    for own, new in zip(average.parameters(), model.parameters(), strict=True):
        own.detach().lerp_(new.detach(), 0.1)
print("breaks", sum(torch._dynamo.utils.counters["graph_break"].values()))
