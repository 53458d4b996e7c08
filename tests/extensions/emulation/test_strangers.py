"""What scripts of strangers do that emulation once refused, lost or never ended."""

from __future__ import annotations

import pytest

from perfmodel.graph.ops import Gemm
from tests.extensions.emulation.emulating import Run, emulate

TRAINING = """
import os
import torch

torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
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
        found = emulate(
            path,
            tmp_path,
            "--timeout",
            "60",
            *(options if "--ranks" in options else ("--ranks", "1", *options)),
        )
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
    assert "shape that depends on values (2 times)" in run(SELECTIONS).stderr


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


ROLLOUTS = """
for _ in range(4):
    with torch.no_grad():
        state = torch.randn(32, 64).cuda()
        for _ in range(50):
            state = model(state)
    train(3)
"""


def test_a_rollout_between_steps_is_named_or_part_of_the_period(run):
    step, sentence = run(ROLLOUTS), "launches up to 51 kernels without gradients before a step"
    assert sentence in step.stderr
    # The batch is moved, too. Two GEMMs a step: the gradient of the input is not needed.
    assert sum(isinstance(op, Gemm) for op in step.ops()) == 2

    period = run(ROLLOUTS, "--steps-per-iteration", "3", "--overwrite")
    assert sentence not in period.stderr
    assert sum(isinstance(op, Gemm) for op in period.ops()) == 50 + 3 * 2
    assert "The iteration that is written has 3 optimizer steps" in period.stderr


SHARED = """
import torch.distributed

torch.distributed.init_process_group("nccl")
rank = torch.distributed.get_rank()
model = torch.nn.parallel.DistributedDataParallel(model)
torch.manual_seed(0)
for _ in range(6):
    optimizer.zero_grad()
    batch = torch.randn(32, 64).cuda()
    model(batch.chunk(4)[rank]).mean().backward()
    optimizer.step()
"""


def test_a_batch_that_every_rank_moves_and_uses_a_part_of_counts_once(run):
    assert run(SHARED, "--ranks", "4").job.facts.samples == 32
    whole = run(SHARED.replace("batch.chunk(4)[rank]", "batch"), "--ranks", "4", "--overwrite")
    assert whole.job.facts.samples == 4 * 32


FSDP = """
import torch.distributed
from torch.distributed.fsdp import FullyShardedDataParallel

torch.distributed.init_process_group("nccl")
layers = [torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 64, bias=False)]
model = FullyShardedDataParallel(torch.nn.Sequential(*layers).cuda(), use_orig_params=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
train()
"""


def test_ranks_that_hold_different_pieces_of_parameters_are_alike(run):
    found = run(FSDP, "--ranks", "16")
    assert "ranks 0, 8, 15 were run; all do the same but for the pieces" in found.stderr
