"""Scripts as users write them, emulated end to end."""

from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import suppress

import psutil
import pytest

from perfmodel.base.dtypes import DType
from perfmodel.graph.ops import (
    Attention,
    Communication,
    Convolution,
    EmbeddingOp,
    Gemm,
    HostSpan,
    MemoryBound,
    Pass,
)
from perfmodel.graph.program import LaneKind
from tests.extensions.emulation.emulating import COMMAND, MOST_S, ROOT, emulate, run_perfmodel

pytestmark = pytest.mark.slow


def test_ddp_reduces_all_gradients_and_computes_all_layers(emulated):
    run = emulated("ddp")
    # 100 x 64, 64 x 256 + 256, 256 x 100 + 100 parameters of four bytes.
    assert run.collectives(0) == {("all_reduce", 4 * (6400 + 16640 + 25700)): 1}
    # 8 x 16 tokens through 64 x 256 and 256 x 100, forward and twice backward.
    assert run.gemm_flops == 3 * 2 * 128 * (64 * 256 + 256 * 100)
    programs = run.job.rank_program.tolist()
    assert programs[0] not in programs[1:]
    assert len(set(programs[1:])) == 1


def test_lookups_carry_the_real_indices(emulated):
    lookups = [op for op in emulated("ddp").ops(0) if isinstance(op, EmbeddingOp)]
    assert [op.direction for op in lookups] == [Pass.FORWARD, Pass.BACKWARD]
    table = lookups[0].lookup.tables[0]
    seen = table.distribution
    assert (table.rows, table.width, lookups[0].lookup.batch_size) == (100, 64, 128)
    assert sum(t * n for t, n in zip(seen.times, seen.rows_seen, strict=True)) == 128


def test_what_the_script_prints_is_its_own_and_the_rest_goes_to_stderr(emulated):
    run = emulated("ddp")
    # Stopped behind the fourth step, before it could print a loss for it.
    assert run.stdout.splitlines() == [f"step {step} loss 1.0" for step in range(3)]
    for words in (
        "ranks 0, 4, 7 were run; all but rank 0 do the same",
        "the script was stopped at its first device call after 4 optimizer steps",
        "2 steady iterations were recorded, all equal",
        "value of a device tensor",
    ):
        assert words in run.stderr


def test_fsdp_gathers_and_scatters_beside_compute(emulated):
    run = emulated("sharded")
    # Four layers and the root: all are gathered forward, all but the root again backward.
    layer = 2 * 64 + (64 * 256 + 256) + (256 * 64 + 64)
    root = 128 * 64 + 64 * 128 + 128
    assert run.collectives(3) == {
        ("all_gather", 2 * layer): 8,
        ("all_gather", 2 * root): 1,
        ("reduce_scatter", 4 * layer): 4,
        ("reduce_scatter", 4 * root): 1,
    }
    kinds = [lane.kind for lane in run.job.program_of(0).lanes]
    assert (kinds.count(LaneKind.COMMUNICATION), kinds.count(LaneKind.HOST)) == (2, 2)


def test_tensor_parallel_layers_reduce_once_forward_and_once_backward(emulated):
    # 16 x 32 fp32 after each row-wise layer, and before the second column-wise one's input
    # gradient; the first pair's input needs none.
    run = emulated("tensor_parallel")
    assert run.collectives(0) == {("all_reduce", 16 * 32 * 4): 3}
    # All ranks work on one batch.
    assert run.job.facts.samples == 16


def test_uneven_all_to_alls_say_who_sends_what(emulated):
    run = emulated("recommender")
    moved = [op.collective for op in run.ops(0) if isinstance(op, Communication)]
    forward, backward = [one for one in moved if one.kind.value == "all_to_all"]
    # Six tables over four ranks: two, two, one, one; 16 samples of 16 fp32 numbers to each rank.
    piece = 16 * 16 * 4
    assert forward.byte_matrix == tuple((n * piece,) * 4 for n in (2, 2, 1, 1))
    assert backward.byte_matrix == ((2 * piece, 2 * piece, piece, piece),) * 4


def test_a_script_that_spawns_its_ranks_with_a_loss_scaler_and_workers_is_recorded(emulated):
    run = emulated("spawned")
    ops = run.ops(0)
    assert sum(isinstance(op, Convolution) for op in ops) == 2
    assert LaneKind.LOADER in {lane.kind for lane in run.job.program_of(0).lanes}
    # Buffers of the norm are broadcast: mean, variance and count of batches.
    assert {kind for kind, _ in run.collectives(0)} == {"broadcast", "all_reduce"}


def test_pipeline_stages_meet_in_sends(emulated):
    run = emulated("pipeline")
    told = run.collectives(0)
    assert told == run.collectives(1)
    # An object is sent as its size, a long, and its bytes.
    assert told[("send_recv", 4 * 32 * 4)] == 2
    assert told[("send_recv", 8)] == 1
    assert sum(told.values()) == 4


def test_features_of_torch_cuda_run_and_the_script_may_finish(emulated):
    run = emulated("features")
    assert run.stdout.splitlines()[-1] == "done"
    assert run.job.facts.stack == "pytorch_fused"
    assert "(regions: 1)" in " ".join(run.job.facts.assumptions)
    words = [op.operator for op in run.ops() if isinstance(op, MemoryBound)]
    # Weight and bias of the head, whose gradients come twice in an iteration.
    assert words.count("accumulate") == 2
    assert "s of processor time per rank" in run.stderr


def test_updates_by_hand_and_rare_operators_are_recorded(emulated):
    run = emulated("graph")
    assert run.stdout.splitlines()[-1] == "step 4"
    assert "an iteration ends where a module's gradients are cleared" in run.stderr
    # 50 x 16 by 16 x 16, forward and twice backward: the products with graphs are no Gemm.
    assert run.gemm_flops == 3 * 2 * 50 * 16 * 16
    reads = [op.read_bytes for op in run.ops() if isinstance(op, MemoryBound)]
    # 300 entries of four bytes at two places of eight fetch rows of 16 x 4: forward and backward.
    assert reads.count(300 * (4 + 16 + 64)) == 2


def test_tools_and_packages_that_need_a_gpu_are_answered(emulated):
    run = emulated("tools")
    name = "NVIDIA H100 SXM5 80 GB"
    assert run.stdout.splitlines() == [
        f"smi {name}, 81559", f"nvml {name} {81559 * 2**20}", "build True", "copied 0 3",
        "breaks 0",
    ]  # fmt: skip


def test_kernels_that_a_script_writes_move_the_bytes_of_their_tensors(emulated):
    moved = [
        (op.read_bytes, op.write_bytes)
        for op in emulated("tools").ops()
        if isinstance(op, MemoryBound) and op.operator == "user_kernel"
    ]
    # Tensors of 8 x 64 fp32 numbers: two are added, one is added to another.
    size = 8 * 64 * 4
    assert moved == [(2 * size, size), (size, size)]


def test_a_kernel_of_the_script_that_multiplies_is_the_gemm_of_its_shapes(emulated):
    run = emulated("tools")
    # 8 x 64 times its transpose.
    assert Gemm(8, 8, 64, DType.FP32) in run.ops()
    assert "kernel square_kernel multiplies its tensors" in run.stderr
    # A function that launches it is compiled without a break.
    assert "compiled forward 1/square_kernel" in run.job.labels


def test_a_captured_iteration_is_one_launch_with_all_its_kernels(emulated):
    run = emulated("captured")
    labels = [run.job.label_of(0, task) for task in range(run.job.program_of(0).task_count)]
    assert labels.count("graph/launch") == 1
    # Host time up to the copy of the batch, its wait, the launch of the graph, and the rest.
    assert sum(isinstance(op, HostSpan) for op in run.ops()) <= 4
    # Forward, gradients of the weight (the input needs none), and the update.
    assert run.gemm_flops == 2 * 2 * 8 * 64 * 64
    assert run.stdout.splitlines()[-1] == "replayed 4"


def test_attention_is_what_the_script_asked_for_with_the_pairs_that_are_computed(emulated):
    found = [
        (op.kernel, op.query_length, op.key_length, op.is_causal)
        for op in emulated("attention").ops()
        if isinstance(op, Attention) and op.direction is Pass.FORWARD
    ]
    assert found == [
        ("cudnn", 64, 64, True),
        ("flash2", 64, 64, False),
        ("flash2", 4, 4, True),
        # (16 x 16 + 16 x 16 + 32 x 32) / 64 keys per query.
        ("flash2", 64, 24, False),
        # A query sees itself and 7 before it: 100, 100 and 228 pairs.
        ("flash3", 64, round(428 / 64), False),
        # 10 of 16 blocks.
        ("flash2", 512, 320, False),
    ]


def test_an_earlier_release_of_torch_chooses_other_attention_kernels(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "w = torch.ones(2, 4, 64, 64, device='cuda', dtype=torch.bfloat16, requires_grad=True)\n"
        "optimizer = torch.optim.SGD([w], 0.1)\n"
        "for _ in range(4):\n"
        "    torch.nn.functional.scaled_dot_product_attention(w, w, w).sum().backward()\n"
        "    optimizer.step()\n"
    )
    run = emulate(script, tmp_path, "--ranks", "1", "--torch-release", "2.5.1")
    assert [op.kernel for op in run.ops() if isinstance(op, Attention)] == ["flash2", "flash2"]
    assert "kernels as torch 2.5.1 chooses them" in run.stderr


def test_earlier_compilers_leave_products_with_rows_of_odd_lengths(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "layer = torch.nn.Linear(1024, 1025, bias=False, device='cuda', dtype=torch.bfloat16)\n"
        "optimizer = torch.optim.SGD(layer.parameters(), 0.1)\n"
        "x = torch.ones(1024, 1024, device='cuda', dtype=torch.bfloat16, requires_grad=True)\n"
        "loss = torch.compile(lambda x: layer(x).exp().sum())\n"
        "for _ in range(4):\n"
        "    loss(x).backward()\n"
        "    optimizer.step()\n"
    )
    found = {}
    for release in ("2.4.1", "2.6.0"):
        (folder := tmp_path / release).mkdir()
        run = emulate(script, folder, "--ranks", "1", "--torch-release", release)
        gemms = [op for op in run.ops() if isinstance(op, Gemm)]
        found[release] = [(op.loads_singly, 1025 in (op.m, op.n, op.k)) for op in gemms]
    # The forward pass reads rows of 1,024; gradients read rows of 1,025.
    assert sorted(found["2.4.1"]) == [(False, True), (True, True), (True, True)]
    assert found["2.6.0"] == [(False, False)] * 3


@pytest.mark.ray
@pytest.mark.parametrize("script", ["recommender", "uneven"])
def test_an_emulated_job_is_predicted_alike_on_ray_and_here(emulated, tmp_path, script):
    job = emulated(script).folder
    answers = []
    for place in (("--executor", "serial"), ("--executor", "ray", "--workers", "2")):
        done = run_perfmodel(
            "predict", "--job", str(job), "--topology", "dgx_h100", *place, "--json", "-",
            folder=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
        del answers[-1]["run"]
    assert answers[0] == answers[1]
    assert answers[0]["memory_gib"]["peak"] > 0


STEPPING = """
import sys, time, torch
layer = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
def step():
    layer(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
"""


def run_steps(folder, ending, *options, ranks=1):
    script = folder / "train.py"
    script.write_text(STEPPING + ending)
    return emulate(script, folder, "--ranks", str(ranks), *options)


def test_a_script_with_one_rank_sees_one_gpu_and_a_job_is_not_replaced_unasked(tmp_path):
    ending = "assert torch.cuda.device_count() == 1\nfor _ in range(3): step()"
    runs = [run_steps(tmp_path, ending, *more) for more in ((), (), ("--overwrite",))]
    assert [run.code for run in runs] == [0, 1, 0]
    assert "already holds a job" in runs[1].stderr
    assert "optimizer steps" not in runs[1].stderr


@pytest.mark.parametrize(
    ("ending", "code", "words"),
    [
        ("step()\nsys.exit(3)", 3, "rank 0 ended with exit code 3"),
        ("", 1, "ended after 0 optimizer steps"),
        ("step()", 0, "The script ended during its warm-up"),
        ("step()\nstep()", 0, "The script ended during its warm-up"),
        ("torch.empty(30 * 2**30, device='cuda')", 1, "CUDA out of memory. Tried to allocate 120"),
        ("for _ in range(3): optimizer.step()", 1, "all 3 steps of the script ran on the host"),
    ],
)
def test_endings_are_the_scripts_own(tmp_path, ending, code, words):
    run = run_steps(tmp_path, ending)
    assert run.code == code, run.stderr
    assert words in run.stderr


BY_HAND = """
import torch
weight, other = (torch.ones(4, 4, device="cuda", requires_grad=True) for _ in range(2))
for _ in range(20):
    for _ in range(2):
        (other @ weight).sum().backward()
        with torch.no_grad():
            other -= other.grad
    weight.data -= weight.grad
    weight.grad = None
"""
TOLD_BY_ALL = """
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
told = [None] * 4
dist.all_gather_object(told, dist.get_rank())
assert told == [0, 1, 2, 3], told
model = torch.nn.Linear(4, 4, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
for _ in range(4):
    model(torch.ones(4, 4).cuda()).sum().backward()
    optimizer.step()
"""
UNEVEN_STEPS = """
import torch
model = torch.nn.Linear(4, 4, device="cuda")
first, second, unused = (torch.optim.SGD(model.parameters()) for _ in range(3))
images = torch.ones(4, 4).cuda()
for _ in range(20):
    for optimizer in (first, second, second):
        model(images).sum().backward()
        optimizer.step()
    model.eval()
    model(images)
    model.train()
"""


def test_an_iteration_says_that_it_has_several_steps_or_evaluations_or_lacks_steps(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(UNEVEN_STEPS)
    told = emulate(script, tmp_path, "--ranks", "1").job.facts.assumptions
    assert any("has 2 optimizer steps" in sentence for sentence in told)
    assert any("evaluations of the model (number: 1)" in sentence for sentence in told)
    assert any("(without a step: 1)" in sentence for sentence in told)


def test_a_script_that_fails_without_the_objects_of_ranks_that_are_not_run_is_run_with_all(
    tmp_path,
):
    script = tmp_path / "train.py"
    script.write_text(TOLD_BY_ALL)
    run = emulate(script, tmp_path, "--ranks", "4")
    assert "every rank was run" in run.job.facts.source
    assert "fails (AssertionError: [0, 0, 2, 3])" in run.stderr


def test_gradients_that_are_changed_between_backward_passes_end_an_iteration(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(BY_HAND)
    run = emulate(script, tmp_path, "--ranks", "1")
    assert "No optimizer of torch.optim makes a step" in run.stderr
    assert "has 2 optimizer steps" in run.stderr
    # Two passes accumulate: each multiplies forward and for both gradients.
    assert run.gemm_flops == 2 * 3 * 2 * 4**3


def test_a_hang_ends_with_the_line_it_hangs_at(tmp_path):
    run = run_steps(tmp_path, "step()\ntime.sleep(1000)\n", "--timeout", "8")
    assert run.code == 1
    # The script has ten lines; the last but one sleeps.
    assert f"hanging at {tmp_path / 'train.py'}:9 in <module>" in run.stderr


def test_a_killed_emulation_leaves_no_process(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(STEPPING + "open('began', 'w').close()\ntime.sleep(1000)\n")
    words = ("emulate", "--ranks", "1", "--device", "a100_sxm_80gb", "--out", "job", "--", script)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PERFMODEL_TEST": str(tmp_path)}
    running = subprocess.Popen([*COMMAND, *words], cwd=tmp_path, env=environment)
    try:
        wait_until((tmp_path / "began").exists)
    finally:
        running.kill()
        running.wait()
    wait_until(lambda: not processes_with(str(tmp_path)))


def wait_until(is_true) -> None:
    until_s = time.monotonic() + MOST_S
    while not is_true():
        assert time.monotonic() < until_s
        time.sleep(0.1)


def processes_with(mark: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("PERFMODEL_TEST") == mark:
                found.append(process.pid)
    return found


SKIPPING = """
import torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
layer.cuda()
values = torch.ones(16, device="cuda")
for _ in range(4):
    dist.all_reduce(values)
    if dist.get_rank() != 2:
        dist.broadcast(values, 0)
    dist.all_reduce(values)
    step()
"""


def test_a_rank_that_skips_a_collective_is_named_with_the_line_of_the_others(tmp_path):
    run = run_steps(tmp_path, SKIPPING, ranks=4)
    assert run.code == 1
    assert (
        "#1: rank 2 lacks broadcast of 64 bytes (fp32) at train.py:17, made by ranks 0, 1, 3; "
        "in its place: all_reduce of 64 bytes (fp32) at train.py:18."
    ) in run.stderr
