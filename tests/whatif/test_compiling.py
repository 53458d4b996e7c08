"""Kernels that a compiler joins."""

from __future__ import annotations

from perfmodel.base.dtypes import DType
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts
from perfmodel.graph.ops import Gemm, HostPart, HostWork, MemoryBound
from perfmodel.graph.program import LaneKind
from perfmodel.whatif.compiling import Compile, join_works


def kernel(word, read, write):
    return MemoryBound(word, read, write, DType.BF16)


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
    assert join_works(chain) == kernel("add", 16, 12)


def test_chains_end_at_products_and_their_launches_go():
    job = Compile().apply(
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
    assert kernels_of(Compile().apply(before)) == kernels_of(before)
