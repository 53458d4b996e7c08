"""`perfmodel kernel`: the time of one kernel on one GPU, what bounds it, how sure we are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from perfmodel import api
from perfmodel.base.dtypes import DType, parse_dtype
from perfmodel.base.errors import InputError
from perfmodel.base.options import Option
from perfmodel.cli.commands import command, command_group
from perfmodel.cli.options import JsonFile, Outputs, Strict
from perfmodel.prediction.scenario import CalibrationFiles

if TYPE_CHECKING:
    from perfmodel.graph.ops import Op

EPILOG = """\b
Examples:
  perfmodel kernel gemm --device h100_sxm --m 4096 --n 4096 --k 4096 --dtype bf16
  perfmodel kernel attention --device a100_sxm_80gb --batch 4 --length 4096 --heads 32
  perfmodel kernel memory --device h200_sxm --operator layer_norm --read 128MiB --write 128MiB
  perfmodel kernel embedding --device h100_sxm --rows 1000000 --width 128 --lookups 100 --batch 512
"""
Size = Annotated[int, Option(min=1, max=2**31, help="")]
Format = Annotated[
    DType, Option(parse=parse_dtype, help="Number format: bf16, fp16, fp8, fp32 ...")
]
kernel = command_group()


@dataclass(frozen=True)
class Target:
    """Where a kernel runs, and where its answer goes."""

    device: Annotated[
        str, Option(metavar="NAME|FILE", help="GPU: a name or a file, e.g. h100_sxm.")
    ]
    stack: Annotated[
        str, Option(metavar="NAME|FILE", help="Software stack that runs the kernel.")
    ] = "kernel_benchmark"
    json_file: JsonFile = None
    calibration: CalibrationFiles = ()
    is_strict: Strict = False


@kernel.callback(epilog=EPILOG)
def _kernel() -> None:
    """Price one kernel on a GPU."""


@dataclass(frozen=True)
class GemmQuestion:
    """The shape of a GEMM, or of a batch of them."""

    m: Size
    n: Size
    k: Size
    batch: Size = 1
    dtype: Format = DType.BF16


@command(kernel)
def gemm(*, question: GemmQuestion, target: Target) -> None:
    """A GEMM C[m, n] = A[m, k] B[k, n], or a batch of them."""
    from perfmodel.graph.ops import Gemm

    _answer([Gemm(**vars(question))], target)


@dataclass(frozen=True)
class AttentionQuestion:
    """The attention of one layer."""

    length: Size
    heads: Size
    batch: Size = 1
    kv_heads: Annotated[
        int | None, Option(min=1, max=2**16, help="Key and value heads; default: the same number.")
    ] = None
    head_dim: Size = 128
    dtype: Format = DType.BF16
    kernel: Annotated[str, Option(help="flash2, flash3, cudnn, triton, unfused, auto ...")] = "auto"
    is_causal: Annotated[bool, Option(name="--causal/--full", help="")] = True
    is_backward: Annotated[bool, Option(name="--backward/--forward", help="")] = False


@command(kernel)
def attention(*, question: AttentionQuestion, target: Target) -> None:
    """Attention of one layer."""
    from perfmodel.graph.ops import Attention, Pass

    asked = vars(question).copy()
    length, is_backward = asked.pop("length"), asked.pop("is_backward")
    asked["kv_heads"] = asked["kv_heads"] or question.heads
    direction = Pass.BACKWARD if is_backward else Pass.FORWARD
    op = Attention(query_length=length, key_length=length, direction=direction, **asked)
    _answer([op], target)


@dataclass(frozen=True)
class MemoryQuestion:
    """The traffic of a kernel that is bound by it."""

    operator: Annotated[str, Option(help="Such as layer_norm, gelu, adam.")]
    read: Annotated[str, Option(metavar="SIZE", help="Bytes read, e.g. 64MiB.")]
    write: Annotated[str, Option(metavar="SIZE", help="Bytes written, e.g. 64MiB.")]
    row_length: Annotated[int, Option(min=0, max=2**31, help="Length of a reduction.")] = 0
    dtype: Format = DType.BF16


@command(kernel)
def memory(*, question: MemoryQuestion, target: Target) -> None:
    """A kernel that is bound by its memory traffic."""
    from perfmodel.base.units import parse_size
    from perfmodel.graph.ops import MemoryBound

    read, write = question.read, question.write
    sizes = parse_size(read), parse_size(write)
    if min(sizes) < 0:
        raise InputError(f"memory kernel: bytes must not be negative, got {read} and {write}.")
    op = MemoryBound(question.operator, *sizes, question.dtype, row_length=question.row_length)
    _answer([op], target)


@dataclass(frozen=True)
class EmbeddingQuestion:
    """A lookup in equal tables, and how its rows are updated."""

    rows: Size
    width: Size
    batch: Size
    lookups: Annotated[float, Option(min=0, max=1e6, help="Rows that a sample looks up.")] = 1.0
    tables: Annotated[int, Option(min=1, max=2**16, help="Equal tables, in one kernel.")] = 1
    zipf: Annotated[float, Option(min=0, max=10, help="Skew of the indices; 0 is uniform.")] = 0.0
    optimizer: Annotated[str, Option(help="sgd, adagrad, rowwise_adagrad, adam.")] = "sgd"
    kernel: Annotated[str, Option(help="fbgemm, fbgemm_2022, two_step, table_batched.")] = "fbgemm"
    is_warm: Annotated[
        bool, Option(name="--warm/--cold", help="Whether the L2 cache holds earlier lookups.")
    ] = True
    dtype: Format = DType.FP32


@command(kernel)
def embedding(*, question: EmbeddingQuestion, target: Target) -> None:
    """A lookup in embedding tables, and the backward pass that updates them."""
    from embeddings.distribution import UNIFORM, Zipf
    from embeddings.table import EmbeddingTable, Lookup
    from perfmodel.graph.ops import EmbeddingOp, Pass

    shape = (question.rows, question.width, question.lookups, question.dtype)
    indices = Zipf(question.zipf) if question.zipf else UNIFORM
    held = tuple(EmbeddingTable(f"t{n}", *shape, indices) for n in range(question.tables))
    how = (question.batch, question.optimizer, question.kernel, question.is_warm)
    lookup = Lookup(held, *how)
    _answer([EmbeddingOp(lookup, direction) for direction in Pass], target)


def _answer(ops: Sequence[Op], target: Target) -> None:
    """Price *ops* on the *target*."""
    from perfmodel.reports.op_prices import report_kernel

    answers = [
        api.price_kernel(
            op, device=target.device, stack=target.stack, calibration=target.calibration
        )
        for op in ops
    ]
    # A lookup is answered with its update inside.
    document, *updates = [answer.to_json() for answer in answers]
    Outputs(target.json_file, is_strict=target.is_strict).write(
        [report_kernel(answer) for answer in answers],
        lambda: document | ({"update": updates[0]} if updates else {}),
    )
