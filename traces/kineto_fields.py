"""Fields of a Kineto trace that are read; schema_kineto.yaml describes each of them."""

from __future__ import annotations

from traces.trace import Category

CATEGORIES = {
    "cpu_op": Category.HOST_OPERATOR,
    "Operator": Category.HOST_OPERATOR,
    "user_annotation": Category.HOST_ANNOTATION,
    "cuda_runtime": Category.RUNTIME_CALL,
    "cuda_driver": Category.RUNTIME_CALL,
    "hip_runtime": Category.RUNTIME_CALL,
    "Runtime": Category.RUNTIME_CALL,
    "kernel": Category.KERNEL,
    "Kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMORY_COPY,
    "Memcpy": Category.MEMORY_COPY,
    "gpu_memset": Category.MEMORY_SET,
    "Memset": Category.MEMORY_SET,
    "cuda_sync": Category.SYNCHRONISATION,
    "gpu_user_annotation": Category.DEVICE_ANNOTATION,
    "overhead": Category.OVERHEAD,
}
SHAPE_FIELDS = ("Input Dims", "Input type")
GEOMETRY_FIELDS = (
    "grid",
    "block",
    "blocks per SM",
    "warps per SM",
    "registers per thread",
    "shared memory",
    "est. achieved occupancy %",
    "priority",
)
COLLECTIVE_FIELDS = (
    "Collective name",
    "In msg nelems",
    "Out msg nelems",
    "Group size",
    "dtype",
    "In split size",
    "Out split size",
    "Process Group Name",
    "Process Group Description",
    "Process Group Ranks",
    "Src Rank",
    "Dst Rank",
    "Seq",
)
WAIT_FIELDS = (
    "cuda_sync_kind",
    "wait_on_stream",
    "wait_on_cuda_event_record_corr_id",
    "wait_on_cuda_event_id",
)
ARGUMENT_FIELDS = (
    "correlation",
    "External id",
    "stream",
    "device",
    "Sequence number",
    "Fwd thread id",
    "bytes",
    "graph node id",
)
# The columns that `tid` and then ARGUMENT_FIELDS become, in that order.
NUMBER_COLUMNS = (
    "thread",
    "correlation",
    "external",
    "stream",
    "device",
    "sequence",
    "forward_thread",
    "size_bytes",
    "graph_task",
)
