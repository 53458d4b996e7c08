"""What a software stack's switches do to the kernels and waits of a Transformer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from collectives.collective import CollectiveKind
from perfmodel.base.errors import WorkloadError
from perfmodel.engine.replay import find_period, replay
from perfmodel.execution.executor import SerialExecutor
from perfmodel.graph.audit import check_job
from perfmodel.graph.durations import build_shared_durations
from perfmodel.graph.ops import (
    Attention,
    Communication,
    Copy,
    Gemm,
    HostSpan,
    MemoryBound,
)
from perfmodel.stacks.capabilities import FrameworkBehaviour, Fusion, OptimizerKernels, Overlap
from perfmodel.stacks.profiles import load_stack
from perfmodel.workloads import build_job
from tests.workloads.reading import collectives_of, iter_ops, parameter_count, tiny

BASE = replace(load_stack("pytorch_fused"), fusions=frozenset(), overlaps=frozenset())

# 2 sequences of 16 tokens, 8 numbers wide: 32 x 8 = 256 numbers, 512 bytes in bf16.
HIDDEN_BYTES = 512
# 32 tokens x 24 numbers between the products of the feed-forward part.
FFN_BYTES = 1536
# 32 tokens x 10 words: 640 bytes in bf16, 1280 in fp32.
LOGIT_BYTES = 640


def small(*, gated=True, **words):
    """One layer with a gate, rotary positions and no bias, or as of GPT."""
    kind = {"gated_ffn": gated, "bias": not gated, "norm": "rms_norm" if gated else "layer_norm"}
    positions = {} if gated else {"positions": "learned", "max_positions": 16}
    return tiny(**{"batch": 2, "layers": 1, "kv_heads": 4, **kind, **positions, **words})


def under(spec, *fusions, ranks=1, overlaps=(), **changes):
    stack = replace(BASE, fusions=frozenset(fusions), overlaps=frozenset(overlaps), **changes)
    job = build_job(spec, rank_count=ranks, ranks_per_host=8, stack=stack)
    check_job(job)
    return job


def traffic(job, label):
    """Kernels with *label*: how many, and bytes they move."""
    kernels = [op for name, op in iter_ops(job) if name == label and isinstance(op, MemoryBound)]
    return len(kernels), sum(op.read_bytes + op.write_bytes for op in kernels)


def operators(job):
    """Host operators of the first rank."""
    spans = (op for _, op in iter_ops(job) if isinstance(op, HostSpan))
    return [part.operator for span in spans for part in span.parts if part.part.value == "t4"]


ON_HOST = "optimizer/step on the host"
YARN = {"positions": "yarn"}
GPT, DROPOUT, FP32 = {"gated": False}, {"gated": False, "dropout": True}, {"precision": "fp32"}
ACTIVATION, NORM = "layer 0/ffn/activation", "layer 0/ffn/norm forward"
RESIDUAL, DROPPED = "layer 0/ffn/residual forward", "layer 0/ffn/dropout forward"
ROTARY, PROJECTION = "layer 0/attention/rotary forward", "layer 0/attention/projection forward"
MASK_BYTES = HIDDEN_BYTES // 2


@pytest.mark.parametrize(
    ("model", "fusion", "label", "kernels", "moved_bytes"),
    [
        # Activations. silu 1 + 1 and mul 2 + 1, against 2 + 1 at once.
        ({}, Fusion.SWIGLU, f"{ACTIVATION} forward", 1, 3 * FFN_BYTES),
        ({}, None, f"{ACTIVATION} forward", 2, 5 * FFN_BYTES),
        # Two products 3 + 3, silu 2 + 1, joining 2 + 2; at once 3 + 2.
        ({}, Fusion.SWIGLU, f"{ACTIVATION} backward", 1, 5 * FFN_BYTES),
        ({}, None, f"{ACTIVATION} backward", 4, 13 * FFN_BYTES),
        # Eight operations: ten tensors in, eight out. Backward ten: 16 tensors in, 10 out.
        (GPT, Fusion.GELU, f"{ACTIVATION} forward", 1, 2 * FFN_BYTES),
        (GPT, None, f"{ACTIVATION} forward", 8, 18 * FFN_BYTES),
        (GPT, Fusion.GELU, f"{ACTIVATION} backward", 1, 3 * FFN_BYTES),
        (GPT, None, f"{ACTIVATION} backward", 10, 26 * FFN_BYTES),
        # Queries and keys are as wide as the model: 2 x 512 bytes, read and written. Apart, half in
        # and out, then 1 + 1 three times and 2 + 1: five kernels and ten tensors for each.
        ({}, Fusion.ROTARY, ROTARY, 1, 4 * HIDDEN_BYTES),
        ({}, None, ROTARY, 10, 2 * 10 * HIDDEN_BYTES),
        # Fused kernels cannot scale sines and cosines; compilers can.
        (YARN, Fusion.ROTARY, ROTARY, 10, 2 * 10 * HIDDEN_BYTES),
        (YARN, Fusion.ELEMENTWISE, ROTARY, 1, 4 * HIDDEN_BYTES),
        # RMS norm in fp32 pieces. Bytes a number: 2 + 4, 4 + 4, 4, 4 + 4, 4 + 2, 2 + 2 = 36
        # against 4. Layer norm is one kernel in every stack.
        ({}, Fusion.NORM, NORM, 1, 2 * HIDDEN_BYTES),
        ({}, None, NORM, 6, 36 // 2 * HIDDEN_BYTES),
        (GPT, None, NORM, 1, 2 * HIDDEN_BYTES),
        # A bias is a pass over the output of the product.
        (GPT, Fusion.BIAS, PROJECTION, 0, 0),
        (GPT, None, PROJECTION, 1, 2 * HIDDEN_BYTES),
        (GPT, Fusion.BIAS_ACTIVATION, PROJECTION, 0, 0),
        # Two tensors in, one and a mask of a byte a number out; apart, one tensor more each way.
        (DROPOUT, Fusion.DROPOUT_RESIDUAL, RESIDUAL, 1, 3 * HIDDEN_BYTES + MASK_BYTES),
        (DROPOUT, Fusion.DROPOUT_RESIDUAL, DROPPED, 0, 0),
        (DROPOUT, None, RESIDUAL, 1, 3 * HIDDEN_BYTES),
        (DROPOUT, None, DROPPED, 1, 2 * HIDDEN_BYTES + MASK_BYTES),
        # Compiled chains leave the residual to the norm: input and residual in, sum and norm out.
        (GPT, Fusion.ELEMENTWISE, RESIDUAL, 0, 0),
        (GPT, Fusion.ELEMENTWISE, NORM, 1, 4 * HIDDEN_BYTES),
        # The loss. Cast 2 + 4 bytes a logit, logarithm of softmax 4 + 4; fp32 needs no cast.
        ({}, Fusion.CROSS_ENTROPY, "head/loss forward", 1, LOGIT_BYTES),
        ({}, None, "head/loss forward", 2, 14 // 2 * LOGIT_BYTES),
        ({"training": FP32}, None, "head/loss forward", 1, 2 * 2 * LOGIT_BYTES),
        # Zeros 4, softmax 8 + 4, cast 4 + 2.
        ({}, None, "head/loss backward", 3, 22 // 2 * LOGIT_BYTES),
        # Compiled: largest logit, sum of exponentials; backward logits in and gradients out.
        ({}, Fusion.ELEMENTWISE, "head/loss forward", 2, 2 * LOGIT_BYTES),
        ({}, Fusion.ELEMENTWISE, "head/loss backward", 1, 2 * LOGIT_BYTES),
    ],
)
def test_a_chain_is_one_kernel_or_several(model, fusion, label, kernels, moved_bytes):
    job = under(small(**model), *([] if fusion is None else [fusion]))

    assert traffic(job, label) == (kernels, moved_bytes)


def test_unfused_attention_is_products_with_passes_over_the_scores():
    spec = small(training={"attention": "unfused"}, gated=False, dropout=True)
    label = "layer 0/attention/core forward"
    # 2 sequences x 4 heads x 16 x 16 scores in bf16; 8 numbers a token in and out of heads.
    scores = 2 * 4 * 16 * 16 * 2
    assert traffic(under(spec, Fusion.SOFTMAX_MASK), label) == (
        3, 4 * scores + scores // 2 + 2 * HIDDEN_BYTES,
    )  # fmt: skip
    # Scale and mask in passes of their own, and three copies that bring heads together.
    assert traffic(under(spec), label) == (8, 8 * scores + scores // 2 + 8 * HIDDEN_BYTES)
    ops = [op for name, op in iter_ops(under(spec)) if name.startswith("layer 0/attention/core")]
    assert [op for op in ops if isinstance(op, Attention)] == []
    assert {(op.batch, op.m, op.n, op.k) for op in ops if isinstance(op, Gemm)} == {
        (8, 16, 16, 2), (8, 16, 2, 16),
    }  # fmt: skip


def test_every_separate_kernel_has_an_operator_on_the_host():
    every = frozenset(Fusion) - {Fusion.ELEMENTWISE}
    fused, separate = (operators(under(small(), *fusions)) for fusions in (every, ()))
    kernels = [
        sum(isinstance(op, MemoryBound | Gemm | Attention) for _, op in iter_ops(job))
        for job in (under(small(), *every), under(small()))
    ]
    assert len(separate) - len(fused) == kernels[1] - kernels[0] > 50


@pytest.mark.parametrize(
    ("optimizer", "way", "kernels", "bytes_a_parameter"),
    [
        # Gradient, weight and two moments in, three out; then the copy in bf16: 16 + 12 + 4 + 2.
        ("adam", OptimizerKernels.FUSED, 3, 34),
        ("sgd", OptimizerKernels.FUSED, 3, 18),
        # Seven operations: 11 tensors in, 7 out, for the layer and for the ends; then the copy.
        ("adam", OptimizerKernels.FOREACH, 15, 78),
        ("adamw", OptimizerKernels.FOREACH, 17, 86),
        # The update is made 16 + 12, its norm taken 8, applied 8 + 4, copied 6.
        ("lamb", OptimizerKernels.FUSED, 7, 54),
    ],
)
def test_optimizers_move_what_their_formula_reads_and_writes(
    optimizer, way, kernels, bytes_a_parameter
):
    spec = small(training={"optimizer": optimizer, "clip_gradients": False})
    count, moved = traffic(under(spec, optimizer_kernels=way), "optimizer/step")
    # Layer: 8 x 24 + 8 x 8 + 8 x 48 + 24 x 8 + 2 x 8 = 848; ends: 2 x 80 + 8 = 168.
    assert moved == bytes_a_parameter * (848 + 168)
    # One kernel an operation for the layer, one for the ends, and one launch for both copies.
    assert count == kernels + 1


def test_a_plain_optimizer_goes_tensor_by_tensor():
    spec = small(training={"optimizer": "adam"})
    job = under(spec, optimizer_kernels=OptimizerKernels.PLAIN)
    # Six tensors of the layer and the ends as one: seven operations each, and two copies.
    assert traffic(job, "optimizer/step")[0] == 7 * 7 + 2
    assert traffic(job, "optimizer/gradient norm")[0] == 7


def period_ns(job, *, compute_ns=0, communication_ns=100):
    """The period if products and collectives take what is said, and the rest nothing."""
    of_op = np.zeros(len(job.ops), dtype=np.int64)
    for place, op in enumerate(job.ops):
        if isinstance(op, Gemm):
            of_op[place] = compute_ns
        if isinstance(op, Communication):
            of_op[place] = communication_ns
    durations = build_shared_durations(job, [of_op[program.op] for program in job.programs])
    return int(find_period(SerialExecutor().replay, job, durations).period_ns[0])


NO_LATENCY = replace(BASE.host, launch_latency_ns=0.0)


def periods_ns(spec, *overlaps):
    """Periods on two ranks with each of *overlaps* on, where a product takes 1,000 ns."""
    jobs = (under(spec, ranks=2, overlaps=on, host=NO_LATENCY) for on in overlaps)
    return [period_ns(job, compute_ns=1000) for job in jobs]


def test_gradients_that_do_not_overlap_wait_for_the_backward_pass():
    spec = small(parallel={"dp": 2, "micro_batch": 1}, training={"bucket_size": "1 B"}, layers=4)
    times = periods_ns(spec, [Overlap.GRADIENT_REDUCTION], [])
    job = under(spec, ranks=2)
    buckets = len(collectives_of(job, CollectiveKind.ALL_REDUCE, "gradients/bucket"))
    # The products are 3 x (4 x 4 + 1). Beside them only what comes after the last shows: the
    # first layer's qkv weight and norm, and the embedding.
    assert times == [51 * 1000 + 300, 51 * 1000 + buckets * 100]


def test_weights_gathered_beside_the_next_forward_pass_are_hidden():
    parallel = {"dp": 2, "micro_batch": 1, "sharding": "optimizer"}
    training = {"bucket_size": "1 B", "clip_gradients": False}
    spec = small(parallel=parallel, training=training, layers=4)
    reduced = Overlap.GRADIENT_REDUCTION
    hidden, waited = periods_ns(spec, [reduced, Overlap.PARAMETER_GATHER], [reduced])
    # One gather of everything, or many of which only those before the first layer's kernel show.
    assert waited == 51 * 1000 + 300 + 100
    job = under(spec, ranks=2, overlaps=tuple(Overlap))
    gathers = len(collectives_of(job, CollectiveKind.ALL_GATHER, "optimizer/weights"))
    assert gathers == 27
    assert 51 * 1000 + 300 < hidden < 51 * 1000 + 300 + gathers * 100 // 2


@pytest.mark.parametrize("overlap", [Overlap.GRADIENT_REDUCTION, Overlap.PARAMETER_GATHER])
def test_a_fully_sharded_job_waits_for_what_does_not_overlap(overlap):
    spec = small(parallel={"dp": 2, "micro_batch": 1, "sharding": "full"}, layers=4)
    both = (Overlap.GRADIENT_REDUCTION, Overlap.PARAMETER_GATHER)
    on, off = periods_ns(spec, both, [one for one in both if one is not overlap])
    # Four layers, each with a collective that no longer hides behind products.
    assert off >= on + 3 * 100


def test_gathered_weights_are_copied_out_of_their_buffer_where_a_stack_does_so():
    spec = small(parallel={"dp": 2, "micro_batch": 1, "sharding": "full"})
    label = "layer 0/weights copied out"
    # 3 x 8 x 8 for queries, keys and values, 8 x 8 behind them, 3 x 8 x 24 and two norms of 8, in
    # two bytes, read and written, forward and backward.
    assert traffic(under(spec, ranks=2), label) == (0, 0)
    copying = under(spec, ranks=2, habits={FrameworkBehaviour.COPIED_GATHERS})
    assert traffic(copying, label) == (2, 2 * 2 * 2 * (4 * 64 + 3 * 192 + 16))


def test_buckets_of_gradients_queue_behind_the_first_one():
    spec = small(parallel={"dp": 2, "micro_batch": 1}, training={"bucket_size": "1 KiB"}, layers=4)
    calls = [op.collective for _, op in iter_ops(under(spec, ranks=2)) if hasattr(op, "collective")]
    queued = [call.is_queued for call in calls if call.size_bytes > 4]
    # The norm of all gradients, 4 bytes, is no bucket.
    assert len(queued) > 2
    assert queued == [False, *[True] * (len(queued) - 1)]


def test_a_stage_that_does_not_overlap_its_transfers_waits_until_they_are_sent():
    spec = small(parallel={"pp": 2, "micro_batch": 1}, layers=4, batch=8)
    with_overlap, without = periods_ns(spec, [Overlap.PIPELINE_TRANSFER], [])
    assert without > with_overlap


def test_operators_recomputed_are_all_but_the_core_and_every_second_product():
    again = {True: [], False: []}
    for is_gated, found in again.items():
        job = under(small(training={"recompute": "operators"}, gated=is_gated))
        ops = [one for one in iter_ops(job) if "/recompute/" in one[0]]
        found += [(name.split("/recompute/")[1], op) for name, op in ops]
        assert "ffn/activation forward" in dict(found)
        assert "attention/core forward" not in dict(found)
    products = [
        [(name, op.n) for name, op in found if isinstance(op, Gemm)] for found in again.values()
    ]
    # Of queries, keys, values, projection, gate, up and down: keys, projection and up.
    keys_and_others = [("attention/qkv forward", 8), ("attention/projection forward", 8)]
    assert products[0] == [*keys_and_others, ("ffn/up forward", 24)]
    # Queries, keys and values in one, projection, up and down, which nobody needs again.
    assert products[1] == [("attention/projection forward", 8)]


def test_a_fused_sum_of_gradients_leaves_nothing_to_add_behind_the_product():
    spec = small(parallel={"micro_batch": 1})
    label = "layer 0/ffn/down backward"
    # 24 x 8 numbers a micro-batch: 2 bytes fresh and 4 of the sum read, 4 written.
    assert traffic(under(spec), label) == (2, 2 * 24 * 8 * (2 + 4 + 4))
    fused = under(spec, Fusion.GRADIENT_SUM)
    assert traffic(fused, label) == (0, 0)
    # The product itself reads and writes the sum in fp32.
    added = [op.added_bytes for name, op in iter_ops(fused) if name == label and type(op) is Gemm]
    assert added == [0, 2 * 24 * 8 * 4] * 2  # of two micro-batches


def test_adapters_stand_where_the_stack_puts_them():
    spec = small(training={"adapters_only": True, "adapter_rank": 2})
    narrow = [
        [name for name, op in iter_ops(job) if isinstance(op, Gemm) and 2 in (op.m, op.n, op.k)]
        for job in (
            under(spec),
            under(spec, defaults={"training.adapter_places": {"adapters": "qkv"}}),
        )
    ]
    # Forward two products and backward four beside each of four products, or beside one.
    assert [len(names) for names in narrow] == [24, 6]
    assert {name.rsplit(" ", 1)[0] for name in narrow[1]} == {"layer 0/attention/qkv"}


def test_tensor_groups_communicate_beside_products_only_where_the_stack_does():
    spec = small(parallel={"tp": 2, "sequence_parallel": False})
    at_once = under(spec, ranks=2)
    beside = under(spec, ranks=2, overlaps=[Overlap.TENSOR_GRADIENT])
    assert period_ns(beside, compute_ns=100) < period_ns(at_once, compute_ns=100)


def test_sharded_layers_may_overlap_where_other_reductions_do_not():
    for sharding, is_faster in (("zero3", True), ("zero1", False)):
        spec = small(parallel={"sharding": sharding, "micro_batch": 1}, layers=3)
        plain = under(spec, ranks=2)
        beside = under(spec, ranks=2, overlaps=[Overlap.SHARDED_LAYERS])
        times = [period_ns(job, compute_ns=100) for job in (beside, plain)]
        assert (times[0] < times[1]) == is_faster


def copies_on_host(job):
    return [op for name, op in iter_ops(job) if name == ON_HOST and isinstance(op, Copy)]


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_an_optimizer_on_the_host_gets_gradients_and_returns_weights(share):
    spec = small(training={"offload_optimizer": share})
    whole, job = (under(one, optimizer_kernels=OptimizerKernels.FUSED) for one in (small(), spec))
    # Gradients in fp32 go down; weight and both moments are read and written, the gradient is read
    # and a weight in bf16 written: 4 x 7 + 2 bytes; weights in bf16 come up.
    elements = share * parameter_count(spec.model)
    expected = {"device_to_host": 4, "host_to_host": 30, "host_to_device": 2}
    found = {op.route.value: op.size_bytes / elements for op in copies_on_host(job)}
    assert found == pytest.approx(expected, rel=0.01)
    # The rest stays on the GPU.
    left = (1 - share) * traffic(whole, "optimizer/step")[1]
    assert traffic(job, "optimizer/step")[1] == pytest.approx(left, rel=0.01)
    assert not copies_on_host(whole)


def test_the_gpu_waits_for_the_host_to_update_weights():
    job = under(small(training={"offload_optimizer": 1.0}))
    copies = copies_on_host(job)
    durations = np.array([1000 if op in copies else 0 for _, op in iter_ops(job)])
    end_ns = replay(job, build_shared_durations(job, [durations])).iteration_end_ns[0, 0]

    # Down, update and up, one after the other; both copies start some time after their launch.
    assert end_ns == 3 * 1000 + 2 * BASE.host.launch_latency_ns


def test_an_optimizer_that_joins_weights_stays_on_the_gpu():
    with pytest.raises(WorkloadError, match="offload_optimizer must be 0 with the optimizer muon"):
        small(training={"offload_optimizer": 1.0, "optimizer": "muon"})


def test_a_wide_loss_passes_over_its_logits_in_fp32():
    wide = {FrameworkBehaviour.WIDE_LOSS}
    fused, pieces = (
        under(small(), Fusion.CROSS_ENTROPY, habits=habits) for habits in (set(), wide)
    )
    # In two bytes: read, then read and written. In pieces: 2 + 4 bytes a number, twice 4 + 4, and
    # backward 4 + 4 + 2.
    assert traffic(fused, "head/loss forward") == (1, LOGIT_BYTES)
    assert traffic(pieces, "head/loss forward") == (3, (2 + 4 + 16) // 2 * LOGIT_BYTES)
    assert traffic(fused, "head/loss backward") == (1, 2 * LOGIT_BYTES)
    assert traffic(pieces, "head/loss backward") == (1, 10 // 2 * LOGIT_BYTES)


def test_the_host_waits_for_numbers_that_it_checks_and_gradients_are_scaled_apart():
    spec = small(parallel={"dp": 2, "micro_batch": 1}, batch=4)
    checked, scaled = (
        under(spec, ranks=2, habits={one})
        for one in (FrameworkBehaviour.CHECKED_NUMBERS, FrameworkBehaviour.SCALED_GRADIENTS)
    )
    waits = [
        name
        for name, op in iter_ops(checked)
        if isinstance(op, HostSpan) and op.parts[0].operator == "synchronize"
    ]
    # Two micro-batches.
    assert waits.count("head/loss checked") == 2
    assert waits.count("gradients/bucket 0 checked") == 1
    # Every gradient is read for its norm; scaling reads and writes it.
    read, moved = (
        sum(traffic(job, f"gradients/bucket {number} {word}")[1] for number in range(9))
        for job, word in ((checked, "checked"), (scaled, "scaled"))
    )
    assert moved == 2 * read > 0


def test_a_gradient_that_no_product_makes_is_added_by_a_kernel_of_its_own():
    job = under(small(batch=4, parallel={"micro_batch": 1}), Fusion.GRADIENT_SUM)
    kernels, moved_bytes = traffic(job, "embedding/look-up backward")
    # Of 10 words x 8 numbers: zeros in bf16, sums of fp32 and bf16 in fp32, for each of 4 passes,
    # beside the scatter of 16 tokens.
    zeros, sums, scatter = 80 * 2, 80 * (4 + 2 + 4), 16 * 8 * 2 * 3
    assert (kernels, moved_bytes) == (4 * 3, 4 * (zeros + sums + scatter))
