"""Capabilities of software stacks, as the files of the catalog name them.

What a framework fuses and overlaps, what it does by default and how its kernels run.
"""

from __future__ import annotations

from enum import Enum


class Residency(Enum):
    """Where the operands are when a GEMM starts.

    COLD is training: weights come from memory, activations from the cache if they fit. ROTATING is
    a benchmark that rotates over up to five copies of the weights, enough to fill the cache; if all
    copies fit, weights are hot, and time jumps with size. REPEATED runs on the same operands.
    """

    COLD = "cold"
    ROTATING = "rotating"
    REPEATED = "repeated"


KERNEL_WORDS = (
    "accumulate", "add", "batch_norm", "bce_loss", "bias_add",
    "bias_dropout_add", "bias_gelu", "binary_cross_entropy", "cast", "concat", "copy",
    "cross_entropy", "div", "dropout", "dropout_residual", "embedding", "fill", "gather", "geglu",
    "gelu", "gradient_accumulation", "gradient_clip", "gradient_norm", "index", "interaction",
    "interaction_tril", "l2_norm", "layer_norm", "log_softmax", "mask", "master_weights",
    "momentum", "mse_loss", "mul", "pow", "prepare_keys", "rearrange_vectors", "reduce_sum",
    "reduction", "relu", "residual_add", "rms_norm", "rope", "rotary", "scale", "scale_mask",
    "scale_mask_softmax", "sigmoid", "silu", "slice", "softmax", "split", "sub", "sum",
    "swiglu", "tanh", "transpose", "zero",
)  # fmt: skip
"""Memory-bound kernels of workloads but for optimizers; `_backward` names that of its pass."""


class Fusion(Enum):
    """Chains of operators that a stack may run as one kernel.

    LOOKUP_CAST: a lookup writes rows in the format of the exchange. WEIGHT_CAST: the optimizer
    writes weights in the format of the GEMMs, and gradients stay in it. GRADIENT_COPY: gradients
    are written directly to the buffer they are reduced in. GRADIENT_SUM: the GEMM for a weight
    gradient adds to that of earlier micro-batches. BIAS_ACTIVATION: GEMMs include bias and
    activation, and the gradients of both; ACTIVATION_FORWARD: forward only, and one backward
    kernel does both.
    """

    NORM = "norm"
    BIAS = "bias"
    GELU = "gelu"
    BIAS_ACTIVATION = "bias_activation"
    ACTIVATION_FORWARD = "activation_forward"
    DROPOUT_RESIDUAL = "dropout_residual"
    SWIGLU = "swiglu"
    ROTARY = "rotary"
    SOFTMAX_MASK = "softmax_mask"
    CROSS_ENTROPY = "cross_entropy"
    ELEMENTWISE = "elementwise"
    INTERACTION = "interaction"
    LOOKUP_CAST = "lookup_cast"
    WEIGHT_CAST = "weight_cast"
    GRADIENT_COPY = "gradient_copy"
    GRADIENT_SUM = "gradient_sum"


class FrameworkBehaviour(Enum):
    """What a framework or its training scripts do by default.

    Costs that a script could avoid:

    * BLOCKING_COPIES: every copy to or from the device blocks the host until it is done, and the
      loss is copied in each iteration.
    * UNFUSED_BIAS: a layer copies its bias before the GEMM and sums its gradient in an operator of
      its own.
    * ZEROED_GRADIENTS: gradients are added to zeros.
    * HOST_TRIANGLE: the indices of the triangle of dot products come from the host, and the
      backward pass is an index_add.
    * LONE_BOTTOM: the bottom layers run on rank 0 alone, for the whole batch, and their output is
      sent with the pooled vectors.
    * LEAN_EXCHANGES: on several hosts exchanges and reductions are kernels of the framework, not of
      a collective library.
    * UNRELAYED: GPUs without NVLink between them exchange through the host, even if other GPUs
      could forward.
    * CASTS_WEIGHTS: an optimizer with state leaves weights in fp32, and one kernel casts all of
      them for the GEMMs.

    Defaults that a workload can override:

    * READS_LOSS: the host waits for every iteration.
    * SHORT_GRADIENTS: gradients are kept and reduced in the format they are computed in, not in
      fp32; FP16_GRADIENTS: only in fp16.
    * ONE_REDUCTION: gradients are reduced in one piece.
    * WEIGHT_BUCKETS: the size of the weights fills a bucket, whatever format gradients have.
    * ROTATES_IN_PLACE: rotary positions overwrite queries and keys.
    * DROPOUT: models without a gate are trained with dropout.
    * UNBIASED: layers have no biases.
    * ALL_LOGITS: a masked language model computes the logits of all tokens.
    * PARAMETER_BUCKETS: a bucket of gradients holds a million parameters per rank that reduces it,
      and at least 40 million.
    * COALESCED_GATHERS: updated weights are gathered in one call, even where reductions overlap.
    * NARROW_STORAGE: weights that are multiplied in eight bits are stored in them alone, and so are
      inputs of activation functions between frozen weights.
    * EXPERTS_ONE_BY_ONE: the GEMMs of a rank's experts are launched one by one, not as a group.
    * COPIED_GATHERS: gathered weights are copied out of the buffer that they arrived in.
    * PLANNED_MEMORY: the compiler of a step places all its tensors, so none lies between others.
    * WIDE_LOSS: a fused loss casts the logits to fp32 and is a kernel before, two after and one
      behind the exchange of the largest, as Megatron-Core's own; that of Transformer Engine is not.
    * CHECKED_NUMBERS: to find what is no number, the host reads the loss of every micro-batch and
      the norm of every bucket of gradients before its reduction.
    * SCALED_GRADIENTS: gradients are divided by the number of ranks before their reduction.
    """

    BLOCKING_COPIES = "blocking_copies"
    UNFUSED_BIAS = "unfused_bias"
    ZEROED_GRADIENTS = "zeroed_gradients"
    HOST_TRIANGLE = "host_triangle"
    LONE_BOTTOM = "lone_bottom"
    LEAN_EXCHANGES = "lean_exchanges"
    UNRELAYED = "unrelayed"
    CASTS_WEIGHTS = "casts_weights"
    READS_LOSS = "reads_loss"
    SHORT_GRADIENTS = "short_gradients"
    FP16_GRADIENTS = "fp16_gradients"
    ONE_REDUCTION = "one_reduction"
    WEIGHT_BUCKETS = "weight_buckets"
    ROTATES_IN_PLACE = "rotates_in_place"
    DROPOUT = "dropout"
    UNBIASED = "unbiased"
    ALL_LOGITS = "all_logits"
    PARAMETER_BUCKETS = "parameter_buckets"
    COALESCED_GATHERS = "coalesced_gathers"
    NARROW_STORAGE = "narrow_storage"
    EXPERTS_ONE_BY_ONE = "experts_one_by_one"
    COPIED_GATHERS = "copied_gathers"
    PLANNED_MEMORY = "planned_memory"
    WIDE_LOSS = "wide_loss"
    CHECKED_NUMBERS = "checked_numbers"
    SCALED_GRADIENTS = "scaled_gradients"


class Dispatcher(Enum):
    """What takes tokens to the ranks of their experts and back.

    ALL_GATHER: every rank of the group gets all tokens, and results are reduced and scattered.
    ALL_TO_ALL: a copy for each chosen expert is sent. DEEPEP, HYBRIDEP: kernels of these
    libraries send a token once to each rank, and once to each other host.
    """

    ALL_GATHER = "allgather"
    ALL_TO_ALL = "alltoall"
    DEEPEP = "deepep"
    HYBRIDEP = "hybridep"


class RowSums(Enum):
    """How partial sums of row-wise tables become sums on the ranks that need them.

    REDUCE_SCATTER: one reduction over all ranks, and a gather of the gradients on the way back.
    ALL_TO_ALL: every partial sum is sent like a vector of a whole table, and the receiver adds; on
    several hosts first the ranks of each host, then those at one place in all hosts. On the way
    back the kernels inside a host fetch only gradients of samples that had a row of the piece.
    """

    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"


class Execution(Enum):
    """How kernels get to the device."""

    EAGER = "eager"
    COMPILED = "compiled"
    CUDA_GRAPH = "cuda_graph"


class OptimizerKernels(Enum):
    """How the optimizer runs over parameters: one by one, in lists, or in one kernel."""

    PLAIN = "plain"
    FOREACH = "foreach"
    FUSED = "fused"


class Overlap(Enum):
    """What a stack runs at the same time.

    TENSOR_GRADIENT: the reduction of an input gradient over a tensor group overlaps with the GEMM
    for the weight gradient. TENSOR_EXCHANGE: all communication of a tensor group overlaps, in
    pieces. SHARDED_LAYERS: reductions and gathers overlap for weights that are gathered layer by
    layer, even if others do not. INDEX_EXCHANGE: the exchange of the next batch's indices overlaps
    with all other communication. EXPERT_EXCHANGE: tokens can be exchanged with experts while
    another micro-batch computes; a workload asks for it. EXCHANGE_AND_REDUCTION: reductions of
    gradients overlap with exchanges of pooled vectors.
    """

    GRADIENT_REDUCTION = "gradient_reduction"
    PARAMETER_GATHER = "parameter_gather"
    PIPELINE_TRANSFER = "pipeline_transfer"
    SHARDED_LAYERS = "sharded_layers"
    TENSOR_GRADIENT = "tensor_gradient"
    TENSOR_EXCHANGE = "tensor_exchange"
    EMBEDDING_EXCHANGE = "embedding_exchange"
    INDEX_EXCHANGE = "index_exchange"
    EXPERT_EXCHANGE = "expert_exchange"
    EXCHANGE_AND_REDUCTION = "exchange_and_reduction"
    INPUT = "input"
