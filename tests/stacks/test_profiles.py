"""Every key of a stack file means what it says, alone and where another file takes it over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import CalibrationError
from perfmodel.graph.ops import HostPart
from perfmodel.stacks.capabilities import (
    Execution,
    FrameworkBehaviour,
    Fusion,
    OptimizerKernels,
    Overlap,
    Residency,
)
from perfmodel.stacks.profiles import load_stack
from perfmodel.stacks.stack import Compiled, Evidence, HostTime, TableHandling

BASE = """
name: base
description: all keys
source: made up
execution: eager
optimizer_kernels: foreach
family: dlrm
fusions: [norm, bias_activation]
overlaps: [input, gradient_reduction]
attention_kernels: {default: flash2, hopper: flash3}
matmul_dtypes: {fp32: tf32}
kernel_time_ratio: {gemm: 2, memory: {ampere: 3, default: 4}}
kernel_operations: {concat: 40}
residency: rotating
habits: [dropout]
tables:
  lookup_kernel: table_batched
  sorted_kernel: two_step
  key_time: 9 ns
  updates_all_rows: true
  sharder: row_wise
  key_dtype: int32
  has_all_keys: true
  key_traffic: 1 KiB
  vector_passes: 1.5
compiled: {fusions: [gelu], host_speed_ratio: 5}
evidence: {hopper: {rows: 7, sources: 2, hosts: 3, spread: 0.25}}
stands_for:
  - {framework: nobody}
host:
  between_operators: 8 us
  launch: 6 us
  wait: 4 us
  launch_latency: 2 us
  iteration: 10 us
  default: {before_launch: 20 us, after_launch: 12 us, between_launches: 14 us}
  operators:
    aten::mm: {before_launch: 30 us}
    addmm: {launch: 1 us}
...
"""
FASTER = """
name: faster
extends: {base}
description: faster
source: made up
host_speed_ratio: 2
host:
  launch: 5 us
  default: {{after_launch: 7 us}}
  operators:
    addmm: {{before_launch: 9 us}}
...
"""
BEFORE, AFTER = HostPart.BEFORE_LAUNCH, HostPart.AFTER_LAUNCH


@pytest.fixture
def files(tmp_path):
    base, faster = tmp_path / "base.yaml", tmp_path / "faster.yaml"
    base.write_text(BASE)
    faster.write_text(FASTER.format(base=base))
    return base, faster


def test_every_key_is_read(files):
    stack = load_stack(files[0])
    assert (stack.name, stack.description, stack.source) == ("base", "all keys", "made up")
    assert stack.execution is Execution.EAGER
    assert stack.optimizer_kernels is OptimizerKernels.FOREACH
    assert stack.family == "dlrm"
    assert stack.fusions == {Fusion.NORM, Fusion.BIAS_ACTIVATION}
    assert stack.overlaps == {Overlap.INPUT, Overlap.GRADIENT_REDUCTION}
    assert stack.attention_kernels == {"default": "flash2", "hopper": "flash3"}
    assert stack.matmul_dtypes == {DType.FP32: DType.TF32}
    assert stack.kernel_time_ratio == {
        "gemm": {"default": 2.0},
        "memory": {"ampere": 3, "default": 4},
    }
    assert stack.kernel_operations == {"concat": 40.0}
    assert stack.residency is Residency.ROTATING
    assert stack.habits == {FrameworkBehaviour.DROPOUT}
    assert stack.tables == TableHandling(
        lookup_kernel="table_batched", sorted_kernel="two_step", key_ns=9.0, updates_all_rows=True,
        sharder="row_wise", key_dtype=DType.INT32, has_all_keys=True, key_traffic_bytes=1024,
        vector_passes=1.5,
    )  # fmt: skip
    assert stack.compiled == Compiled(frozenset({Fusion.GELU}), 5.0)
    assert stack.evidence == {"hopper": Evidence(7, 2, 3, 0.25)}


def test_host_times_are_read_by_part_and_operator(files):
    host = load_stack(files[0]).host
    assert (host.between_operators_ns, host.launch_ns, host.wait_ns) == (8_000, 6_000, 4_000)
    assert (host.launch_latency_ns, host.iteration_ns) == (2_000, 10_000)
    assert host.operators == {"mm": {BEFORE: 30_000}, "addmm": {HostPart.LAUNCH: 1_000}}
    assert host.default == {BEFORE: 20_000, AFTER: 12_000, HostPart.BETWEEN_LAUNCHES: 14_000}
    # What an operator states goes first, then what is the same for all, then the default.
    for operator, part, duration_ns, is_assumed in (
        ("aten::mm", BEFORE, 30_000, False),
        ("addmm", HostPart.LAUNCH, 1_000, False),
        ("mm", HostPart.LAUNCH, 6_000, False),
        ("mm", HostPart.WAIT, 4_000, False),
        ("mm", HostPart.BETWEEN_OPERATORS, 8_000, False),
        ("mm", AFTER, 12_000, True),
    ):
        assert host.time(operator, part) == HostTime(duration_ns, is_assumed)


def test_what_is_taken_over_is_divided_and_what_is_stated_is_not(files):
    stack = load_stack(files[1])
    host = stack.host
    # 8 us / 2; 5 us as stated; what the device adds to a launch is not the host's.
    assert (host.between_operators_ns, host.launch_ns, host.wait_ns) == (4_000, 5_000, 2_000)
    assert (host.launch_latency_ns, host.iteration_ns) == (2_000, 5_000)
    assert host.operators == {
        "mm": {BEFORE: 15_000},
        "addmm": {HostPart.LAUNCH: 500, BEFORE: 9_000},
    }
    assert host.default == {BEFORE: 10_000, AFTER: 7_000, HostPart.BETWEEN_LAUNCHES: 7_000}
    assert stack.evidence == {}
    assert stack.kernel_time_ratio["gemm"] == {"default": 2.0}
    assert stack.name == "faster"


def test_host_times_follow_the_cpu_that_they_are_stated_for(files):
    """Zen 2 at 3.4 GHz does 1.2 x 3.4 / 2.2 = 1.85 times what Broadwell does at 2.2 GHz."""
    base, faster = files
    text = base.read_text().replace("host:", "host:\n  cpu: Xeon E5-2698 v4 without turbo")
    base.write_text(text)
    stack = load_stack(base)

    there = stack.on_cpu("2 x AMD EPYC 7742")
    assert there.host.wait_ns == pytest.approx(4000 * 2.2 / (1.2 * 3.4))
    assert there.host.launch_latency_ns == stack.host.launch_latency_ns
    assert there.on_cpu("2 x AMD EPYC 7742") is there
    # A host that nobody stated is a common one; times of one's own without a CPU hold anywhere.
    assert stack.on_cpu(None).host == stack.on_cpu("EPYC 7763").host
    assert load_stack(faster).on_cpu("2 x AMD EPYC 7742") == load_stack(faster)

    base.write_text(text.replace("Xeon E5-2698 v4", "Xenon"))
    with pytest.raises(CalibrationError, match=r"host.cpu .*: must be a CPU of"):
        load_stack(base)


def test_a_stack_that_extends_itself_is_refused(tmp_path):
    file = tmp_path / "loop.yaml"
    file.write_text(f"name: loop\nextends: {file}\ndescription: x\nsource: x\n...\n")
    with pytest.raises(CalibrationError, match="is it a loop"):
        load_stack(file)


def test_a_stack_may_stand_on_eight_others_and_no_more(files, tmp_path):
    below = files[0]
    for number in range(9):
        file = tmp_path / f"{number}.yaml"
        file.write_text(f"name: n{number}\nextends: {below}\n...\n")
        below = file
    assert load_stack(tmp_path / "7.yaml").name == "n7"
    with pytest.raises(CalibrationError, match="chain is longer than 8"):
        load_stack(below)


def test_attention_is_unfused_where_all_kernels_are_and_something_is_launched(files):
    stack = load_stack(files[0])
    for kernels, launch_ns, is_unfused in (
        ({"default": "unfused", "hopper": "unfused"}, 0.5, True),
        ({"default": "unfused", "hopper": "unfused"}, 0.0, False),
        ({"default": "unfused", "hopper": "flash3"}, 0.5, False),
    ):
        host = replace(stack.host, launch_ns=launch_ns)
        changed = replace(stack, host=host, attention_kernels=kernels)
        assert changed.unfuses_attention is is_unfused


def test_what_a_stack_leaves_out_it_does_not_do(tmp_path):
    file = tmp_path / "bare.yaml"
    start = BASE.index("host:\n")
    keys = ("name", "description", "source", "execution", "optimizer_kernels", "attention_kernels")
    lines = [line for line in BASE.splitlines() if line.partition(":")[0] in keys]
    file.write_text("\n".join(lines) + "\n" + BASE[start:])
    stack = load_stack(file)
    assert stack.tables == TableHandling()
    assert (stack.fusions, stack.overlaps, stack.habits) == (set(), set(), set())
    assert (stack.family, stack.evidence) == (None, {})
    assert stack.time_ratio("gemm", "hopper") == 1


def test_nested_keys_are_inherited_one_by_one_and_dropped_by_name(files, tmp_path):
    file = tmp_path / "child.yaml"

    def tables_of(text):
        file.write_text(f"name: child\nextends: {files[0]}\n{text}\n...\n")
        return load_stack(file)

    base = load_stack(files[0])
    child = tables_of("tables: {key_time: 3 ns}")
    # What a child does not state it has from its parent, whatever else it states beside it.
    assert child.tables == replace(base.tables, key_ns=3.0)
    child = tables_of("tables: {sharder: null}\nhost: {operators: null}")
    assert child.tables == replace(base.tables, sharder=TableHandling().sharder)
    assert child.host.operators == {}
    child = tables_of("kernel_time_ratio: {gemm: 3, memory: {ampere: null}}")
    assert child.kernel_time_ratio == {"gemm": {"default": 3.0}, "memory": {"default": 4}}
    child = tables_of("host:\n  operators:\n    aten::mm: {after_launch: 2 us}")
    assert child.host.operators["mm"] == {BEFORE: 30_000, AFTER: 2_000}
    # Only what is inherited can be dropped: a misspelt key is a fault.
    with pytest.raises(CalibrationError, match=r"tables\.sharders"):
        tables_of("tables: {sharders: null}")


def test_a_compiled_stack_fuses_more_on_a_faster_host(files):
    stack = load_stack(files[0])
    compiled = stack.with_compiling()
    assert compiled.execution is Execution.COMPILED
    assert compiled.fusions == {Fusion.NORM, Fusion.BIAS_ACTIVATION, Fusion.GELU}
    host = compiled.host
    assert (host.launch_ns, host.between_operators_ns, host.wait_ns) == (1_200, 1_600, 800)
    assert (host.launch_latency_ns, host.iteration_ns) == (2_000, 2_000)
    assert host.operators["mm"] == {BEFORE: 6_000}
    assert host.default[AFTER] == 2_400
    assert compiled.with_compiling() is compiled


def test_capabilities_answer_what_they_are_asked(files):
    stack = load_stack(files[0])
    chips = ("hopper", "ampere")
    assert [stack.attention_kernel(chip) for chip in chips] == ["flash3", "flash2"]
    assert [stack.time_ratio("memory", chip) for chip in chips] == [4, 3]
    assert stack.time_ratio("attention", "hopper") == 1
    # A wider fusion brings narrower ones along, and never the other way round.
    words = (Fusion.NORM, Fusion.GELU, Fusion.ELEMENTWISE, Fusion.SWIGLU)
    assert [stack.fuses(word) for word in words] == [True, True, False, False]
    overlaps = (Overlap.INPUT, Overlap.TENSOR_EXCHANGE)
    assert [stack.overlaps_with_compute(overlap) for overlap in overlaps] == [True, False]
    habits = (FrameworkBehaviour.DROPOUT, FrameworkBehaviour.READS_LOSS)
    assert [stack.has(habit) for habit in habits] == [True, False]
    assert not stack.sums_bias_gradients
    assert not stack.unfuses_attention
    optimizers = ("sgd", "adagrad")
    assert [stack.tables.kernel_for(one) for one in optimizers] == ["table_batched", "two_step"]


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("default: flash2, ", "", "attention_kernels .line 10.: must name a `default` kernel"),
        (
            "default: flash2",
            "default: ' '",
            "attention_kernels.default .line 10.: must be text, not empty",
        ),
        ("before_launch: 20 us, ", "", "host.default .line 36.: must state before_launch"),
        ("after_launch: 12 us, ", "", "host.default .line 36.: must state after_launch"),
        (", between_launches: 14 us", "", "host.default .line 36.: must state between_launches"),
        (
            "launch: 1 us",
            "lunch: 1 us",
            "host.operators.addmm.lunch .*: unknown key; did you mean 'launch'",
        ),
        ("aten::mm: {before_launch: 30 us}", "aten::mm: 30 us", "host.operators.aten::mm"),
        ("host_speed_ratio: 5", "speed: 5", "compiled.speed .*: unknown key"),
        ("sharder: row_wise", "sharder: none", "tables.sharder .*: must be one of"),
        ("gemm: 2", "gemm: true", "kernel_time_ratio.gemm"),
        ("{fp32: tf32}", "{fp32: fp99}", "matmul_dtypes"),
    ],
)
def test_a_fault_is_named_with_its_place(tmp_path, before, after, fault):
    assert before in BASE
    file = tmp_path / "wrong.yaml"
    file.write_text(BASE.replace(before, after, 1))
    with pytest.raises(CalibrationError, match=fault):
        load_stack(file)
