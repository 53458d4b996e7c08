"""Groups: a process group whose collectives are recorded instead of carried out.

It replaces every backend. An asynchronous collective runs on the group's own stream after the
current one and its future carries the event, as in NCCL; a synchronous one runs on the current
stream. A reduction answers as if every rank held this rank's values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import ReduceOp, _create_work_from_future
from torch.futures import Future

from perfmodel.extensions.emulation.device.descriptions import DTYPE_WORDS, script_line, tensors_in
from perfmodel.extensions.emulation.device.exchange import PeerExchange
from perfmodel.extensions.emulation.rank_record import CallType

_ProcessGroup: Any = dist.ProcessGroup
"""A class of C++ whose type stubs lack the constructor for subclasses."""


class VirtualGroup(_ProcessGroup):  # type: ignore[misc]  # see above
    """The communicator *name* of this rank with *ranks*, which are global."""

    def __init__(self, exchange: PeerExchange, ranks: Sequence[int], name: str) -> None:
        super().__init__(list(ranks).index(exchange.rank), len(ranks))
        self._exchange = exchange
        self._recorder = exchange.gpu.recorder
        self._ranks = tuple(ranks)
        self._topic = f"{name}:{'-'.join(map(str, ranks[:4]))}x{len(ranks)}"
        self._own_rank = list(ranks).index(exchange.rank)
        self._backend_name = "nccl"
        self._given_name = name
        self._streams: dict[str, Any] = {}

    # The interface of a group.

    @property
    def group_name(self) -> str:
        """The name torch knows the group by."""
        return self._given_name

    def name_it(self, name: str, backend: str) -> None:
        """Set the name that torch chose and the backend that the script named."""
        self._given_name = name
        self._backend_name = backend
        self._set_group_name(name)

    def getBackendName(self) -> str:  # noqa: N802  torch's name
        """The backend that the script named."""
        return self._backend_name

    def getRank(self) -> int:  # noqa: N802  torch's name
        """This rank's position in the group."""
        return self._own_rank

    def getSize(self) -> int:  # noqa: N802  torch's name
        """How many ranks the group has."""
        return len(self._ranks)

    @property
    def supports_splitting(self) -> bool:
        """Whether groups are made by splitting others."""
        return False

    # Collectives.

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """All-reduce; known values are multiplied or kept."""
        self._reduce_known(tensors, opts)
        return self._run("all_reduce", tensors, tensors, opts)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """Reduce to a root."""
        self._reduce_known(tensors, opts)
        return self._run("reduce", tensors, tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """Broadcast; integers really come from the root."""
        for tensor in filter(self._exchange.carries, tensors):
            own = self._exchange.own(tensor)
            self._exchange.write(tensor, self._from_root("broadcast", opts, own, tensor.dtype))
        return self._run("broadcast", tensors, tensors, opts)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        """All-gather to lists of tensors."""
        for targets, source in zip(outputs, inputs, strict=True):
            self._gather_known(targets, source)
        return self._run("all_gather", inputs, outputs, opts)

    allgather_coalesced = allgather

    def all_gather_single(self, output: Tensor, source: Tensor, opts: Any = None) -> Any:
        """All-gather to one tensor."""
        if self._exchange.carries(source):
            with self._recorder.paused():
                pieces = output.reshape(-1).chunk(len(self._ranks)) if source.numel() else ()
            self._gather_known(list(pieces), source)
        return self._run("all_gather", [source], [output], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        """Several all-gathers as one kernel."""
        return self._run("all_gather", inputs, outputs, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Reduce-scatter of one tensor or of lists; several become one kernel."""
        result = [outputs] if isinstance(outputs, Tensor) else outputs
        return self._run("reduce_scatter", tensors_in(inputs), result, opts)

    reduce_scatter_single = _reduce_scatter_base = reduce_scatter
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced = reduce_scatter

    def all_to_all_single(
        self,
        output: Tensor,
        source: Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> Any:
        """All-to-all of one tensor, in equal pieces or by splits of its first dimension."""
        with self._recorder.paused():
            sent = _pieces(source, input_splits, len(self._ranks))
            taken = _pieces(output, output_splits, len(self._ranks))
        self._swap_known(taken, sent)
        return self._run("all_to_all", [source], [output], opts, pieces=sent)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        """All-to-all of a list of tensors."""
        self._swap_known(outputs, inputs)
        return self._run("all_to_all", inputs, outputs, opts, pieces=inputs)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        """Gather at a root."""
        self._gather_known(outputs[0] if outputs else [], inputs[0])
        return self._run("gather", inputs, outputs, opts)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
        """Scatter from a root."""
        if self._exchange.carries(outputs[0]):
            whole = self._join_known(inputs[0]) if inputs else None
            value = self._from_root("scatter", opts, whole, outputs[0].dtype)
            parts = None if value is None else value.reshape((len(self._ranks), -1))
            self._exchange.write(outputs[0], None if parts is None else parts[self._own_rank])
        return self._run("scatter", outputs, outputs, opts)

    def send(self, tensors: list[Tensor], target: int, tag: int = 0) -> Any:
        """Send to a member."""
        peer = self._ranks[target]
        for tensor in tensors:
            self._exchange.send(f"{self._topic}/{tag}", peer, tensor)
        return self._run("send", tensors, tensors, None, peer=peer)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Any:
        """Receive from a member."""
        peer = self._ranks[source]
        for tensor in tensors:
            value = self._exchange.receive(f"{self._topic}/{tag}", peer, tensor)
            if self._exchange.carries(tensor):
                self._exchange.write(tensor, value)
        return self._run("recv", tensors, tensors, None, peer=peer)

    def barrier(self, opts: Any = None) -> Any:
        """Wait for all ranks."""
        return self._run("barrier", [], [], opts)

    def monitored_barrier(self, *_: Any, **__: Any) -> Any:
        """Wait for all ranks, and name late ones: there are none."""
        return self.barrier()

    # How they are recorded.

    def _run(
        self,
        call: str,
        tensors: list[Tensor],
        result: Any,
        opts: Any,
        *,
        peer: int | None = None,
        pieces: list[Tensor] | None = None,
    ) -> Any:
        recorder = self._recorder
        recorder.check_running()
        words = {
            "call": call,
            "group": self._given_name,
            "bytes": sum(_sizes(tensors_in(result) if call == "all_gather" else tensors)),
            "dtype": DTYPE_WORDS[str(tensors[0].dtype)] if tensors else "fp32",
            "root": getattr(opts, "rootRank", 0),
            "peer": peer,
            "splits": None if pieces is None else _sizes(pieces),
            "line": script_line(),
        }
        device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
        if device is None:
            if call == "barrier":
                recorder.communicate(words, recorder.stream())
                recorder.synchronize(CallType.SYNC_STREAM)
            return _done(Future(), result)
        if not getattr(opts, "asyncOp", True):
            recorder.communicate(words, recorder.stream())
            return _done(Future(devices=[device]), result)
        key = "collectives" if peer is None else f"{call} {peer}"
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            recorder.communicate(words, recorder.stream())
            return _done(Future(devices=[device]), result)

    def _reduce_known(self, tensors: list[Tensor], opts: Any) -> None:
        if getattr(opts, "reduceOp", ReduceOp.SUM) == ReduceOp.SUM:
            for tensor in tensors:
                known = self._exchange.gpu.values.known(tensor)
                if known is not None:
                    known.mul_(len(self._ranks))

    def _from_root(
        self, call: str, opts: Any, own: Tensor | None, dtype: torch.dtype
    ) -> Tensor | None:
        root = self._ranks[getattr(opts, "rootRank", 0)]
        return self._exchange.from_source(f"{self._topic}/{call}", root, own, dtype)

    def _gather_known(self, targets: list[Tensor], source: Tensor) -> None:
        if self._exchange.carries(source):
            own = self._exchange.own(source)
            topic = f"{self._topic}/gather"
            sent = self._exchange.gather(topic, self._ranks, own, source.dtype)
            for target, value in zip(targets, sent, strict=bool(targets)):
                self._exchange.write(target, value)

    def _swap_known(self, targets: list[Tensor], sources: list[Tensor]) -> None:
        if not sources or not self._exchange.carries(sources[0]):
            return
        sizes = torch.tensor([source.numel() for source in sources])
        topic, dtype = f"{self._topic}/swap", sources[0].dtype
        sent = self._exchange.gather(topic, self._ranks, self._join_known(sources), dtype)
        sent_sizes = self._exchange.gather(f"{topic} sizes", self._ranks, sizes, sizes.dtype)
        for target, whole, lengths in zip(targets, sent, sent_sizes, strict=True):
            assert lengths is not None
            start = int(lengths[: self._own_rank].sum())
            length = int(lengths[self._own_rank])
            piece = None if whole is None else whole.reshape(-1)[start : start + length]
            self._exchange.write(target, piece)

    def _join_known(self, tensors: list[Tensor]) -> Tensor | None:
        values = [self._exchange.own(tensor) for tensor in tensors]
        known = [value.reshape(-1) for value in values if value is not None]
        return torch.cat(known) if len(known) == len(values) else None


def _done(future: Any, result: Any) -> Any:
    future.set_result(result)
    return _create_work_from_future(future)


def _sizes(tensors: list[Tensor]) -> list[int]:
    return [tensor.numel() * tensor.itemsize for tensor in tensors]


def _pieces(tensor: Tensor, splits: list[int], count: int) -> list[Tensor]:
    if splits:
        return list(tensor.split(list(splits)))
    return list(tensor.chunk(count)) if tensor.numel() else [tensor] * count
