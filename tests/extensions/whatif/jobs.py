"""Small jobs for what-ifs: two ranks that train data-parallel, with shapes on their kernels."""

from __future__ import annotations

from dataclasses import replace

from collectives import Collective, CollectiveKind
from perfmodel.base.dtypes import DType
from perfmodel.costs.priced_job import stated_durations
from perfmodel.engine.replay import replay
from perfmodel.extensions.whatif.parsing import parse_transformation
from perfmodel.graph.builder import JobBuilder
from perfmodel.graph.job import JobFacts, JobGraph
from perfmodel.graph.ops import Communication, Fixed, Gemm, MemoryBound
from perfmodel.graph.program import Dependency, LaneKind
from tests.builders import times_by_label

LAUNCH_NS = 10
GEMM = Gemm(m=64, n=64, k=64, dtype=DType.FP32)
NORM = MemoryBound("layer_norm", read_bytes=300, write_bytes=100, dtype=DType.FP32)
GELU = MemoryBound("gelu", read_bytes=100, write_bytes=300, dtype=DType.FP32)
ADAM = MemoryBound("adam", read_bytes=400, write_bytes=300, dtype=DType.FP32)

EXAMPLES = {
    # Parameters for every what-if, by its name.
    "scale": "match=gemm,factor=0.5", "set": "match=gemm,to=1us", "remove": "match=norm",
    "fuse": "match=norm|gelu", "optimizer": "",
    "dtype": "to=fp16", "batch": "factor=2", "recompute": "",
    "host_overhead": "", "gap": "before=bucket,to=1us",
    "no_stalls": "match=load", "no_straggler": "rank=1", "prefetch": "match=load",
    "bucket": "size=1kB",
    "insert": "takes=5ns,after=norm", "amp": "",
    "batch_norm": "match=norm,activation=gelu", "offload": "rate=1GB/s", "gist": "rate=10GB/s",
    "dgc": "ratio=0.01,rate=10GB/s", "blueconnect": "inner=2", "hooks": "", "priority": "",
    "data_parallel": "count=2,gradients=1kB,topology=dgx_h100,backward=backward",
    "accumulate": "count=2,match=forward|backward", "zero1": "", "compile": "",
    "channels_last": "match=norm",
    "machine": "topology=dgx_h100", "ranks": "count=4",
}  # fmt: skip


def bucket(size_bytes):
    return Communication(Collective(CollectiveKind.ALL_REDUCE, size_bytes, DType.FP32))


KERNELS = [
    # label, duration, work; launched one after the other, 10 ns each
    ("layer 0/up forward", 100, GEMM),
    ("layer 0/norm forward", 40, NORM),
    ("layer 0/gelu forward", 40, GELU),
    ("layer 0/up backward", 200, GEMM),
    ("bucket 0", 60, bucket(1000)),
    ("layer 0/down backward", 100, GEMM),
    ("bucket 1", 120, bucket(2000)),
    ("optimizer/step a", 30, ADAM),
    ("optimizer/step b", 50, ADAM),
]


def training_job(*, slow_rank=None, ranks=2) -> JobGraph:
    """Ranks that run KERNELS; a slow rank takes 500 ns longer before its first launch.

    Host: nine launches of 10 ns. Compute stream: forward 10..190, backward
    190..490. Buckets on a stream of their own: bucket 0 390..450, bucket 1
    490..610. The optimizer waits for both: 610..640..690.
    """
    job = JobBuilder()
    programs = {}
    for rank in range(ranks):
        is_slow = rank == slow_rank
        if is_slow not in programs:
            programs[is_slow] = job.add_program(_program(job, 500 if is_slow else 0))
        job.add_rank(programs[is_slow])
    job.add_group("data", range(ranks), slot=0)
    return job.build(JobFacts("training"))


def alone(*, slow_rank=None) -> JobGraph:
    """One rank that trains without a group: KERNELS but the buckets."""
    job = training_job(slow_rank=slow_rank, ranks=1)
    removed = parse_transformation("remove:match=bucket").apply(job)
    return replace(removed, groups=(), rank_group=removed.rank_group[:, :0])


def _program(job, delay_ns):
    program = job.new_program()
    host = program.add_lane("main thread", LaneKind.HOST)
    compute = program.add_lane("compute", LaneKind.COMPUTE)
    stream = program.add_lane("nccl", LaneKind.COMMUNICATION)
    program.add_task(host, Fixed("load", delay_ns), label="load batch")
    kernel, buckets = None, []
    for label, duration_ns, work in KERNELS:
        launch = program.add_task(host, Fixed("launch", LAUNCH_NS), label=f"launch {label}")
        op = Fixed(label.split("/")[-1].split()[0], duration_ns, work=work)
        if isinstance(work, Communication):
            after = [Dependency(launch), Dependency(kernel)]
            buckets.append(program.add_task(stream, op, label=label, slot=0, after=after))
        else:
            waits = buckets if label.startswith("optimizer/step a") else []
            kernel = program.add_task(compute, op, label=label, after=[launch, *waits])
    return program.build()


def times(job: JobGraph) -> dict[str, tuple[int, int]]:
    """(start, end) of every task by `rank/label`, of one iteration alone."""
    durations = stated_durations(job)
    return times_by_label(job, durations, replay(job, durations).last)


def span_ns(job: JobGraph) -> int:
    """How long one iteration alone takes."""
    return int(replay(job, stated_durations(job)).iteration_end_ns[0, 0])
