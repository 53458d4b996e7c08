"""Self-test: proves the device in a process of its own, before any user code runs.

Slots of virtual tables belong to one version of torch. A wrong one crashes here, and the
exit code of this process says so.
"""

from __future__ import annotations

import torch

from perfmodel.emulation.device.gpu import VirtualGpu


def test_device(gpu: VirtualGpu) -> None:
    """Make tensors, go back through a layer, use streams and events, and count bytes."""
    gpu.recorder.is_on = True
    inputs = torch.ones(4, 3, device="cuda")
    weight = torch.ones(3, 2, device="cuda", requires_grad=True)
    assert inputs.device == torch.device("cuda", 0)
    assert inputs.is_cuda
    (inputs @ weight).relu().sum().backward()
    assert weight.grad is not None
    assert weight.grad.shape == weight.shape
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        inputs.add_(1)
    torch.cuda.current_stream().wait_stream(side)
    event = torch.cuda.Event()
    event.record()
    event.synchronize()
    numbers = torch.tensor([3, 4]).cuda()
    assert (numbers + 1).tolist() == [4, 5]
    held = torch.cuda.memory_allocated()
    del inputs
    assert torch.cuda.memory_allocated() == held - 512
    operators = {
        gpu.recorder.kinds[call[1]]["operator"] for call in gpu.recorder.calls if not call[0]
    }
    assert {"aten.mm.default", "aten.threshold_backward.default"} <= operators


test_device.__test__ = False
