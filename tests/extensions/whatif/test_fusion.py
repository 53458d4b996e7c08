"""Kernels that a compiler joins."""

from __future__ import annotations

from perfmodel.base.dtypes import DType
from perfmodel.extensions.whatif.compiling import compile_job, join_works
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts
from perfmodel.graph.ops import Gemm, HostPart, HostWork, MemoryBound
from perfmodel.graph.program import LaneKind

M = 1_000_000


def kernel(word, read, write, dtype=DType.BF16, row_length=0):
    return MemoryBound(word, read, write, dtype, row_length=row_length)


def fp32(word, read, write, row_length=0):
    return kernel(word, read, write, DType.FP32, row_length)


def joined(*works):
    return [chain.work for chain in join_works(works)]


def job_of(*kernels):
    builder = JobBuilder()
    program = builder.new_program()
    host = program.add_lane("main", LaneKind.HOST)
    stream = program.add_lane("compute", LaneKind.COMPUTE)
    for number, work in enumerate(kernels):
        launch = program.add_task(host, HostWork("op", HostPart.LAUNCH), label=f"launch {number}")
        program.add_task(stream, work, label=f"kernel {number}", after=[launch])
    builder.add_rank(builder.add_program(program.build()))
    return builder.build(JobFacts("test", stack="torch_compile"))


def kernels_of(job):
    program = job.program_of(0)
    start, stop = program.lane_start[1:3]
    return [job.ops[op] for op in program.op[start:stop]]


def test_a_chain_reads_once_and_writes_once():
    # add reads two tensors of 8 bytes, gelu one more, dropout writes a mask of 4 beside it.
    chain = [kernel("add", 16, 8), kernel("gelu", 8, 8), kernel("dropout", 8, 12)]
    assert joined(*chain) == [kernel("add", 16, 12)]


def test_chains_end_at_products_and_their_launches_go():
    job = compile_job(
        job_of(
            kernel("add", 16, 8), kernel("gelu", 8, 8), Gemm(4, 4, 4, DType.BF16),
            kernel("relu", 8, 8), kernel("layer_norm", 8, 8), kernel("softmax", 8, 8),
        )
    )  # fmt: skip
    assert kernels_of(job) == [
        kernel("add", 16, 8), Gemm(4, 4, 4, DType.BF16), kernel("layer_norm", 8, 8),
        kernel("softmax", 8, 8),
    ]  # fmt: skip
    # One launch per kernel that is left.
    assert job.program_of(0).task_count == 8
    assert any("joined as a compiler does" in sentence for sentence in job.facts.assumptions)


def test_kernels_that_do_not_hand_on_what_they_write_stay_apart():
    before = job_of(kernel("cast", 4, 64), kernel("cast", 8, 4))
    assert kernels_of(compile_job(before)) == kernels_of(before)


# 10 M activations of which 2 bytes each come out of a product, a residual stream of 4 bytes each,
# a weight of 1 M numbers that is cast between them. Bytes are counted by hand.


def test_a_residual_sum_is_written_beside_what_its_norm_becomes():
    before = [
        fp32("add", 60 * M, 40 * M), fp32("layer_norm", 40 * M, 40 * M + 100_000, 1000),
        kernel("cast", 4 * M, 2 * M), kernel("cast", 40 * M, 20 * M),
    ]  # fmt: skip
    assert joined(*before) == [
        # Reads product (20) and stream (40); writes the stream (40) and the norm in bf16 (20).
        fp32("layer_norm", 60 * M, 60 * M, 1000),
        kernel("cast", 4 * M, 2 * M),
    ]


def test_a_norms_backward_pass_takes_its_casts_and_the_residual_gradient_in():
    before = [
        fp32("cast", 20 * M, 40 * M), fp32("cast", 2 * M, 4 * M),
        fp32("layer_norm_backward", 80 * M, 40 * M, 1000), fp32("reduction", 80 * M, 8000, 1000),
        fp32("add", 80 * M, 40 * M), kernel("cast", 40 * M, 20 * M),
    ]  # fmt: skip
    assert joined(*before) == [
        # Reads gradient (20), input (40), the stream's gradient (40); writes that (40), bf16 (20).
        fp32("layer_norm_backward", 100 * M, 60 * M, 1000),
        fp32("cast", 2 * M, 4 * M),
        # The gradient in bf16 and the norm's input once more.
        fp32("reduction", 60 * M, 8000, 1000),
    ]


def test_a_cross_entropy_reads_logits_and_writes_their_gradient_only():
    # 1,000 rows of 10,000 logits.
    forward = [
        kernel("log_softmax", 20 * M, 20 * M, row_length=10_000), fp32("cast", 20 * M, 40 * M),
        fp32("gather", 8_000, 4),
    ]  # fmt: skip
    assert joined(*forward) == [kernel("log_softmax", 40 * M, 4, row_length=10_000)]
    backward = [
        fp32("zero", 0, 40 * M), kernel("cast", 40 * M, 20 * M),
        kernel("log_softmax_backward", 40 * M, 20 * M, row_length=10_000),
    ]  # fmt: skip
    assert joined(*backward) == [kernel("log_softmax_backward", 20 * M, 20 * M, row_length=10_000)]


def test_kernels_far_apart_or_of_other_sizes_are_left_alone():
    casts = [kernel("cast", size * M, size * M // 2) for size in (4, 8, 12, 24, 56)]
    apart = [kernel("gelu", 40 * M, 40 * M), *casts, kernel("relu", 40 * M, 40 * M)]
    assert joined(*apart) == apart
    lookup = [kernel("gelu", 40 * M, 40 * M), kernel("gather", 40 * M, 40 * M)]
    assert joined(*lookup) == lookup
    accumulated = [fp32("cast", 2 * M, 4 * M), fp32("accumulate", 8 * M, 4 * M)]
    assert kernels_of(compile_job(job_of(*accumulated))) == accumulated
    # Gradients are summed up behind the compiled code, and do not keep the others apart.
    between = [kernel("gelu", 8 * M, 8 * M), accumulated[1], kernel("relu", 8 * M, 8 * M)]
    assert joined(*between) == [kernel("gelu", 8 * M, 8 * M), accumulated[1]]
