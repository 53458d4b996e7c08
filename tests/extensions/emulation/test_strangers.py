"""What scripts of strangers do that the virtual device once refused, lost or never ended."""

from __future__ import annotations

import pytest

from tests.extensions.emulation.emulating import Run, emulate

TRAINING = """
import torch

model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(steps=6):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(32, 64).cuda()).mean().backward()
        optimizer.step()

"""


@pytest.fixture
def run(tmp_path):
    def of(text: str, *options: str) -> Run:
        path = tmp_path / "script.py"
        path.write_text(TRAINING + text)
        found = emulate(path, tmp_path, "--ranks", "1", "--timeout", "60", *options)
        assert found.code == 0, found.stderr
        return found

    return of


EXTENSION = """
from torch.utils.cpp_extension import load_inline

SOURCE = '''
torch::Tensor halve_cuda(torch::Tensor x, int rows) {
  const int columns = x.size(1) / 2;  // half of them
  auto out = torch::empty({rows, columns}, x.options().dtype(torch::kHalf));
  kernel<<<1, 1>>>(x.data_ptr(), out.data_ptr());
  return out;
}
torch::Tensor halve(torch::Tensor x, int rows) { return halve_cuda(x, rows); }
std::vector<torch::Tensor> both(torch::Tensor x, torch::Tensor y) {
  auto sums = torch::zeros_like(y);
  return {x, sums};
}
torch::Tensor odd(torch::Tensor x) { return x.index({Slice()}).clever(); }
void quiet(torch::Tensor x) {}
'''
mine = load_inline(name="mine", cpp_sources="", cuda_sources=SOURCE, functions=["halve"])
x, y = torch.ones(8, 6, device="cuda"), torch.ones(3, device="cuda", dtype=torch.int64)
half = mine.halve(x, 4)
assert (half.shape, half.dtype, half.device) == ((4, 3), torch.float16, x.device), half
first, sums = mine.both(x, y)
assert first is x
assert (sums.shape, sums.dtype) == (y.shape, y.dtype)
assert mine.odd(x).shape == x.shape
assert mine.quiet(x) is None
alone = load_inline(name="allocator", cpp_sources="void keep(int n);", with_cuda=True)
assert alone.keep(3) is None
train()
"""


def test_an_extension_in_cuda_returns_what_its_source_allocates(run):
    assert "The extension mine is CUDA code and was not built" in run(EXTENSION).stderr


THREADS = """
import queue, threading

inputs, outputs = queue.Queue(), queue.Queue()


def forward():
    while True:
        outputs.put(model(inputs.get()))


threading.Thread(target=forward).start()
for _ in range(20):
    optimizer.zero_grad()
    inputs.put(torch.randn(32, 64))
    batch = outputs.get()
    batch.mean().backward()
    optimizer.step()
"""


def test_a_script_is_stopped_in_the_thread_that_runs_its_forward_pass(run):
    text = THREADS.replace("inputs.get()", "inputs.get().cuda()")
    assert "the script was stopped" in run(text).stderr


SELECTIONS = """
labels = torch.zeros(8, 65536, dtype=torch.int64)
labels[:, ::2] = -100
labels = labels.cuda()
kept = labels != -100
scores = torch.randn(8, 65536, device="cuda")
assert scores.masked_select(kept).shape == (8 * 32768,)
wide = torch.randn(8, 65536, 2, device="cuda").masked_select(kept.unsqueeze(-1))
assert wide.view(-1, 2).shape == (8 * 32768, 2)
counts = torch.tensor([3, 0, 2]).cuda()
rows = torch.randn(3, 4, device="cuda").repeat_interleave(counts, dim=0)
assert rows.shape == (5, 4)
unknown = scores[0, :3].long()
assert torch.randn(3, 4, device="cuda").repeat_interleave(unknown, 0, output_size=7).shape == (7, 4)
assert torch.randn(3, 4, device="cuda").repeat_interleave(unknown, 0).shape == (3, 4)
train()
"""


def test_masks_and_counts_that_are_known_decide_how_much_is_selected(run):
    assert "shape that depends on values (1 times)" in run(SELECTIONS).stderr


FLASH = """
from flash_attn.flash_attn_interface import _flash_attn_varlen_forward, flash_attn_func
from flash_attn.layers.rotary import RotaryEmbedding, apply_rotary_emb
from flash_attn.modules.mha import flash_attn_varlen_kvpacked_func
from flash_attn.ops.triton.layer_norm import layer_norm_fn

scale = torch.nn.Parameter(torch.ones(64, device="cuda"))
angles = torch.zeros(16, 8, device="cuda")
for _ in range(4):
    optimizer.zero_grad()
    x = layer_norm_fn(model(torch.randn(2, 16, 64).cuda()), scale, None, is_rms_norm=True)
    heads = apply_rotary_emb(x.view(2, 16, 4, 16), angles, angles, interleaved=False)
    heads = heads.bfloat16()
    flash_attn_func(heads, heads, heads, causal=True).float().mean().backward()
    assert scale.grad.shape == scale.shape
    optimizer.step()
"""


def test_rotary_embeddings_and_norms_of_flash_attn_are_kernels_with_gradients(run):
    rotary = [op for op in run(FLASH).ops() if getattr(op, "operator", "") == "user_kernel"]
    # The heads (2 x 16 x 64 floats) are read and written, forward and backward; angles are read.
    assert [(op.read_bytes, op.write_bytes) for op in rotary] == [(8192 + 2 * 512, 8192)] * 2
