"""`perfmodel kernel`: the time of one kernel on one GPU, what bounds it, how sure we are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.base.errors import InputError
from perfmodel.base.writing import STDOUT, write_json
from perfmodel.cli.options import JsonFile

if TYPE_CHECKING:
    from perfmodel.graph.ops import Op

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

EPILOG = """\b
Examples:
  perfmodel kernel gemm --device h100_sxm --m 4096 --n 4096 --k 4096 --dtype bf16
  perfmodel kernel attention --device a100_sxm_80gb --batch 4 --length 4096 --heads 32
  perfmodel kernel memory --device h200_sxm --operator layer_norm --read 128MiB --write 128MiB
  perfmodel kernel embedding --device h100_sxm --rows 1000000 --width 128 --lookups 100 --batch 512
"""

DEFAULT_STACK = "kernel_benchmark"
Size = Annotated[int, typer.Option(min=1, max=2**31)]
DeviceWord = Annotated[
    str | None, typer.Option(metavar="NAME|FILE", help="GPU: a name or a file, e.g. h100_sxm.")
]
StackWord = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help=f"Software stack that runs the kernel; default: {DEFAULT_STACK}.",
    ),
]
DTypeWord = Annotated[str, typer.Option("--dtype", help="Number format: bf16, fp16, fp8, fp32 ...")]


@app.callback(epilog=EPILOG)
def kernel(
    context: typer.Context,
    device: DeviceWord = None,
    stack: StackWord = None,
) -> None:
    """Price one kernel on a GPU."""
    context.obj = (device, stack)


@app.command()
def gemm(
    context: typer.Context,
    m: Size,
    n: Size,
    k: Size,
    batch: Size = 1,
    dtype: DTypeWord = "bf16",
    device: DeviceWord = None,
    stack: StackWord = None,
    json_file: JsonFile = None,
) -> None:
    """A matrix product C[m, n] = A[m, k] B[k, n], or a batch of them."""
    from perfmodel.base.dtypes import parse_dtype
    from perfmodel.graph.ops import Gemm

    op = Gemm(m=m, n=n, k=k, dtype=parse_dtype(dtype), batch=batch)
    _answer(_machine(context, device, stack), [op], json_file)


@app.command()
def attention(
    context: typer.Context,
    length: Size,
    heads: Size,
    batch: Size = 1,
    kv_heads: Annotated[
        int | None, typer.Option(min=1, max=2**16, help="Key and value heads.")
    ] = None,
    head_dim: Size = 128,
    dtype: DTypeWord = "bf16",
    kernel_word: Annotated[
        str, typer.Option("--kernel", help="flash2, flash3, cudnn, triton, unfused, auto ...")
    ] = "auto",
    is_causal: Annotated[bool, typer.Option("--causal/--full")] = True,
    is_backward: Annotated[bool, typer.Option("--backward/--forward")] = False,
    device: DeviceWord = None,
    stack: StackWord = None,
    json_file: JsonFile = None,
) -> None:
    """Attention of one layer."""
    from perfmodel.base.dtypes import parse_dtype
    from perfmodel.graph.ops import Attention, Pass

    op = Attention(
        batch=batch,
        query_length=length,
        key_length=length,
        heads=heads,
        kv_heads=heads if kv_heads is None else kv_heads,
        head_dim=head_dim,
        dtype=parse_dtype(dtype),
        is_causal=is_causal,
        direction=Pass.BACKWARD if is_backward else Pass.FORWARD,
        kernel=kernel_word,
    )
    _answer(_machine(context, device, stack), [op], json_file)


@app.command()
def memory(
    context: typer.Context,
    operator: Annotated[str, typer.Option(help="Such as layer_norm, gelu, adam.")],
    read: Annotated[str, typer.Option(metavar="SIZE", help="Bytes read, e.g. 64MiB.")],
    write: Annotated[str, typer.Option(metavar="SIZE", help="Bytes written, e.g. 64MiB.")],
    row_length: Annotated[
        int, typer.Option(min=0, max=2**31, help="Length a reduction runs over.")
    ] = 0,
    dtype: DTypeWord = "bf16",
    device: DeviceWord = None,
    stack: StackWord = None,
    json_file: JsonFile = None,
) -> None:
    """A kernel that is bound by the memory traffic it makes."""
    from perfmodel.base.dtypes import parse_dtype
    from perfmodel.base.units import parse_size
    from perfmodel.graph.ops import MemoryBound

    sizes = parse_size(read), parse_size(write)
    if min(sizes) < 0:
        raise InputError(f"memory kernel: bytes must not be negative, got {read} and {write}.")
    op = MemoryBound(
        operator=operator,
        read_bytes=sizes[0],
        write_bytes=sizes[1],
        dtype=parse_dtype(dtype),
        row_length=row_length,
    )
    _answer(_machine(context, device, stack), [op], json_file)


@app.command()
def embedding(
    context: typer.Context,
    rows: Size,
    width: Size,
    batch: Size,
    lookups: Annotated[float, typer.Option(min=0, max=1e6, help="Rows a sample looks up.")] = 1.0,
    tables: Annotated[int, typer.Option(min=1, max=2**16, help="Tables alike, in one kernel.")] = 1,
    zipf: Annotated[
        float, typer.Option(min=0, max=10, help="Skew of the indices; 0 is uniform.")
    ] = 0.0,
    optimizer: Annotated[str, typer.Option(help="sgd, adagrad, rowwise_adagrad, adam.")] = "sgd",
    kernel_word: Annotated[
        str, typer.Option("--kernel", help="fbgemm, fbgemm_2022, two_step, table_batched.")
    ] = "fbgemm",
    is_warm: Annotated[
        bool, typer.Option("--warm/--cold", help="Repeated, so that the L2 holds what fits.")
    ] = True,
    dtype: DTypeWord = "fp32",
    device: DeviceWord = None,
    stack: StackWord = None,
    json_file: JsonFile = None,
) -> None:
    """A lookup in embedding tables, and the backward pass that updates them."""
    from embeddings.distribution import UNIFORM, Zipf
    from embeddings.table import EmbeddingTable, Lookup
    from perfmodel.base.dtypes import parse_dtype
    from perfmodel.graph.ops import EmbeddingOp, Pass

    distribution = Zipf(zipf) if zipf else UNIFORM
    held = tuple(
        EmbeddingTable(f"t{place}", rows, width, lookups, parse_dtype(dtype), distribution)
        for place in range(tables)
    )
    lookup = Lookup(held, batch, optimizer, kernel_word, is_warm)
    ops = [EmbeddingOp(lookup, direction) for direction in Pass]
    _answer(_machine(context, device, stack), ops, json_file)


def _machine(context: typer.Context, device: str | None, stack: str | None) -> tuple[str, str]:
    """GPU and stack, named before the kind of kernel or after it."""
    before: tuple[str | None, str | None] = context.obj
    found = device or before[0]
    if found is None:
        raise InputError("kernel: on which GPU? Give --device, for example --device h100_sxm.")
    return found, stack or before[1] or DEFAULT_STACK


def _answer(machine: tuple[str, str], ops: Sequence[Op], json_file: str | None) -> None:
    from perfmodel import api
    from perfmodel.reports.kernel import report_kernel
    from perfmodel.reports.terminal import print_report

    device, stack = machine
    answers = [api.price_kernel(op, device=device, stack=stack) for op in ops]
    if json_file is not None:
        # A lookup is answered with its update inside.
        document, *updates = [answer.to_json() for answer in answers]
        if updates:
            document["update"] = updates[0]
        write_json(json_file, document)
    if json_file != STDOUT:
        for answer in answers:
            print_report(report_kernel(answer))
