"""Execution traces, linked ones, and Chakra files of others become jobs."""

import gzip
import json
import random

import numpy as np
import pytest

from perfmodel.base.errors import PerfModelError, TraceError
from perfmodel.extensions.recordings.execution_trace_jobs import ExecutedJob, uneven_faults
from perfmodel.extensions.recordings.import_files import ImportOptions, import_traces
from perfmodel.graph.ops import Communication, Copy, Fixed, Gemm, HostSpan, MemoryBound
from perfmodel.graph.program import PLAIN
from tests import recorded
from tests.traces.chakra_files import write_chakra
from traces.chakra import (
    MESSAGES,
    ChakraKind,
    ChakraOperation,
    ChakraTrace,
    load_chakra,
    split_bytes,
)
from traces.file_stream import open_chunks

F32 = "Tensor(float)"


def tensor(number, *shape, device="cuda:0"):
    count = int(np.prod(shape))
    return [number, number, 0, count, 4, device]


def operator(number, name, parent, inputs=(), outputs=(), *, schema="x", scope=0, **more):
    """A node as schema 1.0.1 has it; inputs and outputs are (value, shape, type)."""
    return {
        "id": number, "name": name, "parent": parent, "rf_id": number, "seq_id": -1, "tid": 1,
        "fw_tid": 0, "scope": scope, "op_schema": schema,
        "inputs": [one[0] for one in inputs], "input_shapes": [one[1] for one in inputs],
        "input_types": [one[2] for one in inputs], "outputs": [one[0] for one in outputs],
        "output_shapes": [one[1] for one in outputs], "output_types": [one[2] for one in outputs],
        **more,
    }  # fmt: skip


def step(size=64):
    """A product, its all-reduce, a wait, and an update of what was reduced."""
    a, b, c = tensor(50, 8, size), tensor(51, size, 4), tensor(52, 8, 4)
    return [
        operator(2, "[pytorch|profiler|execution_graph|thread]", 1, schema="", scope=7),
        operator(3, "aten::linear", 2, [(a, [8, size], F32), (b, [size, 4], F32)]),
        operator(4, "aten::t", 3, [(b, [size, 4], F32)], [(b, [4, size], F32)]),
        operator(
            5, "aten::mm", 3, [(a, [8, size], F32), (b, [size, 4], F32)], [(c, [8, 4], F32)]
        ),
        operator(6, "c10d::allreduce_", 2, [([c], [[8, 4]], f"GenericList[{F32}]")]),
        operator(
            7, "record_param_comms", 6,
            [([c], [[8, 4]], f"GenericList[{F32}]"), (9, [], "Int"), ("allreduce", [], "String")],
            [([c], [[8, 4]], f"GenericList[{F32}]")], schema="",
        ),
        operator(8, "nccl:all_reduce", 7, [(c, [8, 4], F32)], schema="", scope=7),
        operator(9, "record_param_comms", 2, [(9, [], "Int"), ("wait", [], "String")], schema=""),
        operator(10, "aten::add_", 2, [(c, [8, 4], F32), (c, [8, 4], F32)], [(c, [8, 4], F32)]),
    ]  # fmt: skip


def write(folder, *ranks):
    folder.mkdir(parents=True, exist_ok=True)
    for rank, nodes in enumerate(ranks):
        text = json.dumps({"schema": "1.0.1", "pid": 1, "nodes": nodes})
        (folder / f"rank{rank}.json").write_text(text)
    return folder


def imported(tmp_path, *ranks):
    """The one job that execution traces of *ranks* become."""
    [found] = import_traces([write(tmp_path / "et", *ranks)], tmp_path / "job")
    recorded.check_job("", found.graph)
    return found


def test_an_execution_trace_becomes_kernels_with_shapes_host_time_and_collectives(tmp_path):
    found = imported(tmp_path, step(), step())
    graph = found.graph
    program = graph.program_of(0)
    works = [graph.ops[int(op)] for op in program.op]
    assert isinstance(found, ExecutedJob)
    assert Gemm(8, 4, 64, works[0].dtype) in works
    # The sum of two tensors of 8 x 4 numbers of 4 bytes, one of them written.
    assert MemoryBound("add", 256, 128, works[0].dtype) in works
    [reduced] = [work for work in works if isinstance(work, Communication)]
    assert (reduced.collective.kind.value, reduced.collective.size_bytes) == ("all_reduce", 128)
    assert [group.ranks for group in graph.groups] == [(0, 1)]
    assert found.faults == ()
    # The view launches nothing, the wait neither: three launches by host work.
    assert sum(isinstance(work, HostSpan) for work in works) >= 3


@pytest.mark.parametrize("lost", [(), (9,)])
def test_what_is_awaited_or_else_its_memory_used_runs_before_the_next_kernel(tmp_path, lost):
    nodes = [node for node in step() if node["id"] not in lost]
    program = imported(tmp_path, nodes, nodes).graph.program_of(0)
    update = int(program.lane_start[1]) - 1  # the last task of the compute stream, lane 0
    awaited = program.dep_task[program.dep_start[update] : program.dep_start[update + 1]]
    assert np.flatnonzero(program.slot != PLAIN).item() in awaited.tolist()


def test_ranks_that_were_not_recorded_are_said(tmp_path):
    nodes = step()
    nodes[5]["attrs"] = [{"name": "pg_size", "value": 4}, {"name": "pg_name", "value": "0"}]
    found = imported(tmp_path, nodes)
    assert found.graph.rank_count == 4
    assert "3 of 4 ranks are not recorded" in found.faults[0]
    with pytest.raises(TraceError, match="--strict"):
        import_traces([tmp_path / "et"], tmp_path / "other", ImportOptions(is_strict=True))
    assert not (tmp_path / "other").exists()


def test_collectives_that_only_some_ranks_make_are_refused(tmp_path):
    less = [node for node in step() if node["id"] not in (6, 7, 8)]
    more = [*step(), {**step()[5], "id": 20, "parent": 2}]
    with pytest.raises(TraceError, match="same collectives"):
        imported(tmp_path / "a", step(), more)
    assert "have no partner" in imported(tmp_path / "b", step(), less).faults[0]


@pytest.mark.parametrize(("stated", "is_pinned"), [((False,), False), ((True,), True), ((), False)])
def test_a_copy_from_the_host_blocks_unless_it_is_asked_not_to(tmp_path, stated, is_pinned):
    gpu, cpu = tensor(60, 16), tensor(61, 16, device="cpu")
    arguments = [(gpu, [16], F32), (cpu, [16], F32), *((word, [], "Bool") for word in stated)]
    nodes = [*step()[:4], operator(30, "aten::copy_", 2, arguments, [(gpu, [16], F32)])]
    ops = imported(tmp_path, nodes).graph.ops
    [copy] = [op for op in ops if isinstance(op, Copy)]
    assert (copy.size_bytes, copy.is_pinned) == (64, is_pinned)
    parts = [part.part.value for op in ops if isinstance(op, HostSpan) for part in op.parts]
    assert ("wait" in parts) is not is_pinned


def linked_step():
    """The same with kernels and durations, as Chakra's linker writes it."""
    nodes = step()
    for node in nodes:
        node.update(inclusive_dur=20, exclusive_dur=10, ts=node["id"] * 100)
    kernel = {**nodes[3], "id": 11, "name": "volta_sgemm_128x32_tn", "parent": 5, "cat": "kernel",
              "inclusive_dur": 30, "stream": 7}  # fmt: skip
    ring = {**nodes[6], "id": 12, "name": "ncclDevKernel_AllReduce", "parent": 8, "cat": "kernel",
            "inclusive_dur": 40, "stream": 20}  # fmt: skip
    return [*nodes, kernel, ring]


def test_a_linked_execution_trace_brings_durations(tmp_path):
    graph = imported(tmp_path, linked_step(), linked_step()).graph
    program = graph.program_of(0)
    pairs = zip(program.label.tolist(), program.op.tolist(), strict=True)
    fixed = {graph.labels[label]: graph.ops[op] for label, op in pairs}
    assert all(isinstance(op, Fixed) for op in graph.ops)
    assert fixed["volta_sgemm_128x32_tn"].duration_ns == 30_000
    assert isinstance(fixed["volta_sgemm_128x32_tn"].work, Gemm)
    assert fixed["ncclDevKernel_AllReduce"].duration_ns == 40_000
    assert [group.ranks for group in graph.groups] == [(0, 1)]


def chakra(rank=0, wait_us=0):
    host, device = {"is_cpu_op": True, "tid": 1}, {"is_cpu_op": False}
    return (
        ChakraOperation(1, "aten::mm", ChakraKind.COMPUTE, duration_us=10, attributes=host),
        ChakraOperation(2, "sgemm", ChakraKind.COMPUTE, (1,), (1,), duration_us=30,
                        attributes=device),
        ChakraOperation(3, "c10d::allreduce_", ChakraKind.COMPUTE, (), (1,), duration_us=5,
                        attributes=host),
        ChakraOperation(4, "ncclDevKernel_AllReduce", ChakraKind.COLLECTIVE, (3,), (3,),
                        duration_us=20 + wait_us,
                        attributes={**device, "comm_type": 0, "comm_size": 4096, "pg_name": "0"}),
    )  # fmt: skip


def write_chakra_folder(folder, *ranks):
    folder.mkdir()
    for rank, operations in enumerate(ranks):
        write_chakra(ChakraTrace("x", "0.0.4", operations), folder / f"chakra.{rank}.et.gz")
    return folder


def test_a_chakra_trace_of_another_program_becomes_a_job_with_its_durations(tmp_path):
    # Rank 1 came first and waited 500 us inside its kernel: the transfer took 20 us.
    folder = write_chakra_folder(tmp_path / "et", chakra(), chakra(wait_us=500))
    [found] = import_traces([folder], tmp_path / "job")

    graph = found.graph
    recorded.check_job("", graph)
    collectives = [op for op in graph.ops if isinstance(op.work, Communication)]
    assert [op.duration_ns for op in collectives] == [20_000]
    assert collectives[0].work.collective.size_bytes == 4096
    assert found.faults == ()


def test_the_json_form_of_a_chakra_trace_gives_the_same_job(tmp_path):
    from google.protobuf import json_format

    write_chakra(ChakraTrace("x", "0.0.4", chakra()), tmp_path / "a.et")
    with open_chunks(tmp_path / "a.et") as chunks:
        head, *nodes = list(split_bytes(chunks, chunks.next()))
    texts = [json_format.MessageToJson(MESSAGES["GlobalMetadata"].FromString(head))]
    for node in nodes:
        words = json.loads(json_format.MessageToJson(MESSAGES["Node"].FromString(node)))
        kind = {4: "COMP_NODE", 7: "COMM_COLL_NODE"}[words["type"]]
        texts.append(json.dumps({**words, "type": kind}, indent=1))
    (tmp_path / "a.json").write_text("".join(texts))
    assert load_chakra(tmp_path / "a.json").operations == chakra()


def test_a_job_that_is_there_is_replaced_only_on_request(tmp_path):
    folder = write_chakra_folder(tmp_path / "et", chakra(), chakra())
    import_traces([folder], tmp_path / "job")
    with pytest.raises(PerfModelError, match="--overwrite"):
        import_traces([folder], tmp_path / "job")
    import_traces([folder], tmp_path / "job", ImportOptions(is_overwriting=True))


# Damage to execution traces and Chakra files: each is refused, has a fault, or changes nothing.


FIELDS = ("id", "name", "inputs", "input_types", "input_shapes", "parent", "tid")
WRONG = (None, [], {}, True, 2**80, -1, 1e300, 2**63, "soon")


def lose_field(nodes, rng):
    rng.choice(nodes).pop(rng.choice(FIELDS[:5]), None)


def change_field(nodes, rng):
    field = rng.choice(FIELDS)
    # Any text is a name.
    rng.choice(nodes)[field] = rng.choice(WRONG[:-1] if field == "name" else WRONG)


def lose_node(nodes, rng):
    # One that others lie in: without it they lie nowhere.
    number = rng.choice((3, 6, 7))
    nodes.remove(next(node for node in nodes if node["id"] == number))


def repeat_id(nodes, rng):
    rng.choice(nodes)["id"] = rng.choice(nodes)["id"]


def turn_round(nodes, rng):
    node = rng.choice(nodes[1:])
    node["parent"] = node["id"] + rng.choice((0, 1, 5))


def change_collective(nodes, rng):
    if rng.random() < 0.5:
        nodes[5]["inputs"][2] = rng.choice(("broadcast", "all_to_all", "nothing"))
    else:
        shapes = [[8, rng.choice((1, 5, 2**40))]]
        nodes[5]["input_shapes"][0] = nodes[5]["output_shapes"][0] = shapes


DAMAGE = (lose_field, change_field, lose_node, repeat_id, turn_round, change_collective)


def execution(folder, rng=None):
    """Execution traces of two ranks, the second damaged by *rng*."""
    nodes = step()
    if rng:
        rng.choice(DAMAGE)(nodes, rng)
    write(folder, step(), nodes)
    if rng and rng.random() < 0.2:
        path = folder / "rank1.json"
        text = path.read_bytes()
        path.write_bytes(text[: rng.randrange(1, len(text))])


def chakra_files(folder, rng=None):
    """Chakra traces of two ranks, the second damaged by *rng*."""
    folder.mkdir(exist_ok=True)
    kind = rng.randrange(4) if rng else None
    for rank in range(2):
        kept = rng.randrange(1, 4) if rank and kind == 2 else 4
        path = folder / f"chakra.{rank}.et"
        write_chakra(ChakraTrace("x", "0.0.4", chakra()[:kept]), path)
    content = bytearray(path.read_bytes())
    if kind == 0:
        content = content[: rng.randrange(1, len(content) - 1)]
    elif kind == 1:
        # Numbers and lengths; letters of names would give another name, not damage.
        content[0] = rng.randrange(256)
    elif kind == 3:
        content = bytearray(gzip.compress(bytes(content), mtime=0))
        content[rng.randrange(12, len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(content))


def outcome(tmp_path, make, rng=None):
    """Refused, flagged, or the ops of the job that was made."""
    make(tmp_path / "traces", rng)
    try:
        [found] = import_traces(
            [tmp_path / "traces"], tmp_path / "job", ImportOptions(is_overwriting=True)
        )
    except PerfModelError:
        return "refused"
    return "flagged" if found.faults else tuple(sorted(map(repr, found.graph.ops)))


@pytest.mark.parametrize(
    "seeds", [range(20), pytest.param(range(1000, 1200), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("make", [execution, chakra_files])
def test_damaged_traces_are_refused_or_flagged(tmp_path, make, seeds):
    right = ("refused", "flagged", outcome(tmp_path, make))
    wrong = [seed for seed in seeds if outcome(tmp_path, make, random.Random(seed)) not in right]
    assert wrong == []


def test_a_rank_with_many_fewer_tasks_than_the_middle_one_is_named():
    [fault] = uneven_faults({0: 100, 1: 20, 3: 90})
    assert fault == "rank 1 has 20 device tasks, other ranks 90: its trace is incomplete"
    # Six tenths of the middle one are enough.
    assert uneven_faults({0: 10, 1: 6, 2: 10}) == []
