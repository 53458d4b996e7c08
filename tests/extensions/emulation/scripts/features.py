"""Small pieces of torch.cuda that scripts rely on, in one training loop."""

import ctypes
import io

import torch
from torch.utils.checkpoint import checkpoint

assert torch.cuda.is_available()
assert torch.accelerator.current_accelerator().type == "cuda"
assert torch.cuda.get_device_properties(0).total_memory > 70e9
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(16)
).cuda()
model(torch.rand(2, 3, 9, 9, device="cuda"))
model = torch.compile(model.to(memory_format=torch.channels_last))
rnn = torch.nn.LSTM(16, 16, num_layers=2).cuda()
head = torch.nn.Linear(16, 4).cuda()
parameters = [*model.parameters(), *rnn.parameters(), *head.parameters()]
optimizer = torch.optim.Adam(parameters, lr=1e-3)
side = torch.cuda.Stream()
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for _ in range(4):
    begin.record()
    with torch.cuda.stream(side):
        images = torch.rand(2, 3, 9, 9).pin_memory().to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(side)
    images = images.to(memory_format=torch.channels_last)
    features = checkpoint(model, images, use_reentrant=False)
    sequence, _ = rnn(features.unsqueeze(0))
    heads = sequence.view(1, 2, 1, 16)
    mixed = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
    loss = head(mixed.reshape(2, 16)).square().mean()
    assert torch.isfinite(loss)
    loss.backward()
    head(torch.ones(2, 16, device="cuda")).sum().backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad()
    end.record()
    torch.cuda.synchronize()
    assert begin.elapsed_time(end) > 0
    assert torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated() > 0
labels = torch.tensor([3, 1, 3, 2]).cuda()
assert (labels == 3).nonzero().flatten().tolist() == [0, 2]
assert labels.unique().tolist() == [1, 2, 3]
assert int(labels.sum()) == 9
buffer = io.BytesIO()
torch.save(head.state_dict(), buffer)
buffer.seek(0)
head.load_state_dict(torch.load(buffer, map_location="cuda"))
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    static = head(torch.ones(2, 16, device="cuda"))
graph.replay()
cells = torch.nn.GRUCell(16, 16).cuda()
encoder = torch.nn.TransformerEncoder(
    torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), num_layers=1
).cuda()
with torch.autocast("cuda", dtype=torch.bfloat16), torch.profiler.profile():
    sequence, _ = rnn(torch.rand(3, 2, 16, device="cuda"))
    state = cells(torch.rand(2, 16, device="cuda"))
    (sequence.sum() + state.sum()).backward()
assert (sequence.dtype, state.dtype) == (torch.float16, torch.bfloat16)  # as torch casts them
assert rnn.weight_ih_l0.grad.dtype == torch.float32
# Trackers of random states hand them to the generator of the device itself.
torch.cuda.default_generators[0].set_state(torch.cuda.get_rng_state())
assert torch.cuda.default_generators[0].get_state().numel() == 16  # as DTensor's reads it
ones = torch.cuda.FloatTensor(2, 3).fill_(1.0)
assert isinstance(torch.zeros(2).type("torch.cuda.FloatTensor"), torch.cuda.FloatTensor)
assert ones.type() == "torch.cuda.FloatTensor"
assert not isinstance(ones, torch.cuda.LongTensor)
encoder.eval()
with torch.no_grad():
    encoder(
        torch.rand(2, 4, 16, device="cuda"),
        src_key_padding_mask=torch.tensor([[False] * 4, [False, False, True, True]]).cuda(),
    )
with torch.autograd.profiler.profile(enabled=False):
    torch.cuda.cudart().cudaProfilerStart()
runtime, limit = ctypes.CDLL("libcudart.so"), (ctypes.c_size_t * 1)()
runtime.cudaDeviceSetLimit(ctypes.c_int(5), ctypes.c_size_t(128))
runtime.cudaDeviceGetLimit(limit, ctypes.c_int(5))
assert limit[0] == 128
torch.cuda.memory._snapshot()
print("done")
