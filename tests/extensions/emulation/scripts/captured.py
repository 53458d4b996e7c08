"""A whole iteration captured as a CUDA graph, after a warm-up on a side stream."""

import torch

model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
inputs = torch.ones(8, 64, device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    model(inputs).sum().backward()
    optimizer.step()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    assert torch.cuda.is_current_stream_capturing()
    step()
for number in range(5):
    inputs.copy_(torch.ones(8, 64))
    graph.replay()
    print("replayed", number)
