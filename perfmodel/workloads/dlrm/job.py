"""The job of one DLRM iteration: every rank's program, and the group they all form.

Autograd runs what was recorded last first: the exchange of embedding
gradients starts, the bottom layers run meanwhile, then the tables are updated.
"""

from __future__ import annotations

from dataclasses import replace

from embeddings.balanced import PlacementRule, build_balanced_plan
from embeddings.plan import ShardingPlan
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import PlanError, WorkloadError
from perfmodel.costs.stack_files import load_stack
from perfmodel.costs.stacks import SoftwareStack
from perfmodel.graph.builder import Dependency, JobBuilder, ProgramBuilder
from perfmodel.graph.job import JobFacts, JobGraph
from perfmodel.graph.ops import Gemm, MemoryBound, Op
from perfmodel.graph.program import LaneKind, Program
from perfmodel.workloads.buckets import BucketFill
from perfmodel.workloads.dlrm.dense import (
    DenseWriter,
    bottom_layers,
    cross_layers,
    dense_layers,
    top_layers,
)
from perfmodel.workloads.dlrm.exchange import Exchanges, build_exchanges, empty_exchanges
from perfmodel.workloads.dlrm.sparse import (
    EXCHANGE_SLOT,
    SparsePart,
    SparseWriter,
    build_sparse_part,
)
from perfmodel.workloads.dlrm.spec import DlrmSpec, Interaction
from perfmodel.workloads.eager import EagerWriter, issuing_under
from perfmodel.workloads.feeding import feed_batch, input_assumption
from perfmodel.workloads.kernels import elementwise, optimizer_step
from perfmodel.workloads.reduction import GradientReduction

_REDUCTION_SLOT = 1


def build_plan(
    spec: DlrmSpec, *, rank_count: int, given: ShardingPlan | None = None
) -> ShardingPlan:
    """The plan that was *given*, checked, or the one that *spec*'s sharding section leads to."""
    if given is not None:
        _check_plan(spec, given, rank_count)
        return given
    rule = PlacementRule(
        data_parallel_below_bytes=spec.sharding.data_parallel_below,
        min_width=spec.sharding.min_width,
        max_shard_bytes=spec.sharding.max_shard,
    )
    return build_balanced_plan(spec.embedding.tables(), rank_count=rank_count, rule=rule)


def build_dlrm_job(
    spec: DlrmSpec,
    *,
    rank_count: int,
    plan: ShardingPlan | None = None,
    stack: SoftwareStack | None = None,
) -> JobGraph:
    """One iteration of *spec* on *rank_count* ranks; *plan* overrides the placement.

    *stack* is what issues it, as a rule the one that *spec* names.
    """
    stack = stack or load_stack(spec.stack)
    samples = local_batch(spec, rank_count=rank_count)
    plan = build_plan(spec, rank_count=rank_count, given=plan)
    exchanges = None
    if rank_count > 1 and plan.shards:
        exchanges = build_exchanges(
            plan,
            local_batch=samples,
            index_dtype=spec.embedding.index_dtype,
            exchange_dtype=spec.embedding.exchange_dtype,
        )
    job = JobBuilder()
    program_of_part: dict[SparsePart, int] = {}
    for rank in range(rank_count):
        part = build_sparse_part(spec, plan, rank=rank, exchanges=exchanges)
        if part not in program_of_part:
            program = _RankWriter(job.new_program(), spec, part, rank_count, stack).write()
            program_of_part[part] = job.add_program(program)
        job.add_rank(program_of_part[part])
    _add_groups(job, rank_count)
    return job.build(_facts(spec, plan, exchanges))


def _add_groups(job: JobBuilder, rank_count: int) -> None:
    if rank_count > 1:
        for name, slot in (("embedding exchange", EXCHANGE_SLOT), ("dense", _REDUCTION_SLOT)):
            job.add_group(name, range(rank_count), slot=slot)


def build_variant_job(spec: DlrmSpec, *, plan: ShardingPlan, stack: SoftwareStack) -> JobGraph:
    """Rank 0 as a rank of *plan* that holds pieces, all others as ranks that hold none.

    These two programs are all that plans with the same data-parallel tables
    consist of; how long lookups and exchanges take is left to the plan.
    """
    rank_count = plan.rank_count
    exchanges = empty_exchanges()
    holder = next(rank for rank, shards in enumerate(plan.shards_of_rank) if shards)
    part = build_sparse_part(spec, plan, rank=holder, exchanges=exchanges)
    job = JobBuilder()
    for variant in (part, replace(part, lookup=None)):
        writer = _RankWriter(job.new_program(), spec, variant, rank_count, stack)
        job.add_program(writer.write())
    for rank in range(rank_count):
        job.add_rank(0 if rank == 0 else 1)
    _add_groups(job, rank_count)
    return job.build(_facts(spec, plan, exchanges))


def local_batch(spec: DlrmSpec, *, rank_count: int) -> int:
    """Samples of one rank; the batch must divide by the ranks."""
    if spec.batch % rank_count:
        below = spec.batch // rank_count * rank_count
        raise WorkloadError(
            f"{spec.name}: batch must divide by the number of ranks, got {spec.batch} on "
            f"{rank_count} ranks. Take batch={below or rank_count} or batch={below + rank_count}."
        )
    return spec.batch // rank_count


def _check_plan(spec: DlrmSpec, plan: ShardingPlan, rank_count: int) -> None:
    if plan.rank_count != rank_count:
        raise PlanError(
            f"plan {plan.name!r}: must be for the ranks of the job, is for {plan.rank_count} and "
            f"there are {rank_count}. Make a plan for {rank_count} ranks."
        )
    shapes = [(table.rows, table.width) for table in plan.tables]
    wanted = [(table.rows, table.width) for table in spec.embedding.tables()]
    if shapes != wanted:
        raise PlanError(
            f"plan {plan.name!r}: must place the tables of {spec.name}, in their order: "
            f"{len(wanted)} tables; it places {len(shapes)} or others. Make it from those tables."
        )


class _RankWriter:
    """Writes the program of the ranks that hold *part*."""

    def __init__(
        self,
        program: ProgramBuilder,
        spec: DlrmSpec,
        part: SparsePart,
        rank_count: int,
        stack: SoftwareStack,
    ) -> None:
        self._program = program
        self._spec = spec
        self._samples = spec.batch // rank_count
        self._dtype = spec.training.precision
        self._writer = EagerWriter(program, issuing_under(stack))
        stream = None
        self._reduction = None
        if rank_count > 1:
            # One process group has one stream, so exchanges and reductions queue up behind
            # each other in the order they are issued.
            stream = self._writer.add_stream("communication stream", LaneKind.COMMUNICATION)
            self._reduction = GradientReduction(
                self._writer,
                stream,
                _REDUCTION_SLOT,
                DType.FP32,
                BucketFill(spec.training.bucket_size),
            )
        self._dense = DenseWriter(self._writer, self._samples, self._dtype, self._reduction)
        self._sparse = SparseWriter(
            self._writer, spec, part, self._samples, stream, self._reduction
        )

    def write(self) -> Program:
        """The program."""
        writer = self._writer
        feed_batch(writer, self._program, section=self._spec.input, size_bytes=self._input_bytes())
        self._forward()
        self._loss()
        writer.hand_over(writer.autograd, label="backward")
        self._backward()
        writer.hand_over(writer.main, label="optimizer")
        self._step()
        if self._spec.sync_each_iteration:
            last = writer.compute.last_task
            writer.block([last] if last is not None else [], label="loss/read on the host")
        return writer.finish()

    def _input_bytes(self) -> int:
        lookups = sum(table.pooling_factor for table in self._spec.embedding.tables())
        index_bytes = self._spec.embedding.index_dtype.size_bytes
        dense_bytes = (self._spec.dense.features + 1) * DType.FP32.size_bytes
        return self._samples * dense_bytes + round(self._samples * lookups) * index_bytes

    def _forward(self) -> None:
        spec = self._spec
        is_ahead = spec.training.distribute_ahead
        if not is_ahead:
            indices = self._sparse.distribute_indices()
            self._writer.hold(self._writer.compute, [] if indices is None else [indices])
        tasks = self._sparse.look_up()
        if is_ahead:
            indices = self._sparse.distribute_indices()
            if indices is not None and tasks.lookup is not None:
                self._program.add_dependency(tasks.lookup, Dependency(indices, distance=1))
        self._dense.run_forward(bottom_layers(spec))
        self._sparse.join(tasks.exchange)
        self._run("cat", self._concat_kernel(), "interaction/concat forward")
        if spec.dense.interaction is Interaction.DOT:
            self._interact_forward()
        self._dense.run_cross_forward(cross_layers(spec))
        self._dense.run_forward(top_layers(spec))

    def _loss(self) -> None:
        loss = elementwise("bce_loss", self._samples, DType.FP32, reads=2)
        self._run("binary_cross_entropy", loss, "loss forward")

    def _backward(self) -> None:
        spec = self._spec
        loss = elementwise("bce_loss", self._samples, DType.FP32, reads=2)
        self._run("BinaryCrossEntropyBackward", loss, "loss backward")
        self._dense.run_backward(top_layers(spec))
        self._dense.run_cross_backward(cross_layers(spec))
        if spec.dense.interaction is Interaction.DOT:
            self._interact_backward()
        self._run("CatBackward", self._concat_kernel(), "interaction/concat backward")
        gradients = self._sparse.return_gradients()
        self._dense.run_backward(bottom_layers(spec))
        self._sparse.update(gradients)
        if self._reduction is not None:
            self._reduction.finish()

    def _step(self) -> None:
        spec, dtype = self._spec, DType.FP32
        name = spec.training.optimizer
        copied = [table.rows * table.width for table in self._sparse.copied_tables]
        sizes = [size for layer in dense_layers(spec) for size in layer.tensors] + copied
        if self._reduction is not None:
            for size in sizes:
                kernel = elementwise("copy", size, dtype)
                self._run("copy_bucket_to_grad", kernel, "gradients/copy from bucket")
        step = optimizer_step(name, sum(sizes), gradient_dtype=dtype, weight_dtype=dtype)
        self._run(f"Optimizer.step#{name.upper()}.step", step, "optimizer/step")
        zero = MemoryBound("zero", 0, sum(sizes) * dtype.size_bytes, dtype)
        operator = f"Optimizer.zero_grad#{name.upper()}.zero_grad"
        self._run(operator, zero, "optimizer/zero gradients")

    def _concat_kernel(self) -> MemoryBound:
        return elementwise("concat", self._samples * self._spec.interaction_inputs, self._dtype)

    def _interact_forward(self) -> None:
        vectors, width = self._vectors()
        gemm = Gemm(vectors, vectors, width, self._dtype, batch=self._samples)
        self._run("bmm", gemm, "interaction/products forward")
        self._run("index", self._triangle(), "interaction/triangle forward")
        kernel = elementwise("concat", self._samples * self._spec.top_inputs, self._dtype)
        self._run("cat", kernel, "interaction/output forward")

    def _interact_backward(self) -> None:
        vectors, width = self._vectors()
        kernel = elementwise("concat", self._samples * self._spec.top_inputs, self._dtype)
        self._run("CatBackward", kernel, "interaction/output backward")
        self._run("IndexBackward", self._triangle(), "interaction/triangle backward")
        gemm = Gemm(vectors, width, vectors, self._dtype, batch=self._samples)
        self._writer.run("BmmBackward", [gemm, gemm], label="interaction/products backward")
        add = elementwise("residual_add", self._samples * vectors * width, self._dtype, reads=2)
        self._run("add", add, "interaction/products backward")

    def _triangle(self) -> MemoryBound:
        vectors, _ = self._vectors()
        size = self._samples * self._dtype.size_bytes
        picked = vectors * (vectors - 1) // 2
        return MemoryBound("interaction_tril", size * vectors * vectors, size * picked, self._dtype)

    def _vectors(self) -> tuple[int, int]:
        return len(self._spec.embedding.rows) + 1, self._spec.dense.bottom_mlp[-1]

    def _run(self, operator: str, kernel: Op, label: str) -> None:
        self._writer.run(operator, [kernel], label=label)


def _index_assumption(plan: ShardingPlan) -> str:
    words = sorted({str(table.distribution) for table in plan.tables})
    shown = ", ".join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")
    return f"Indices are drawn one by one and alike in all samples; distributions: {shown}."


def _facts(spec: DlrmSpec, plan: ShardingPlan, exchanges: Exchanges | None) -> JobFacts:
    empty = sum(not shards for shards in plan.shards_of_rank)
    sentences = [
        input_assumption(spec.input),
        _index_assumption(plan),
        "The host may run ahead of the GPU without limit; the queue of 1,024 launches is left out.",
        "Kernels of PyTorch's DistributedDataParallel and a fused table kernel a rank are assumed.",
    ]
    if exchanges is not None and spec.training.distribute_ahead:
        sentences.append("Indices of the next batch are exchanged during this iteration.")
    if exchanges is not None:
        sentences.append(
            "The host knows the sizes of the index exchange and does not wait for them."
        )
    if empty and plan.rank_count > 1:
        sentences.append(f"{empty} of {plan.rank_count} ranks hold no piece of a table.")
    return JobFacts(
        name=spec.name, source=f"specification: {spec.source}", assumptions=tuple(sentences)
    )
