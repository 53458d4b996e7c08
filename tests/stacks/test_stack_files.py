import pickle

import pytest

from perfmodel.base.errors import CalibrationError
from perfmodel.graph.ops import HostPart
from perfmodel.stacks.capabilities import Execution, FrameworkBehaviour
from perfmodel.stacks.profiles import STACK_FOLDER, list_stacks, load_stack
from perfmodel.stacks.stack import TableHandling, canonical_operator


@pytest.fixture
def load(tmp_path):
    """The stack of a file that extends `pytorch_eager` by some lines; the first is line 5."""

    def load_lines(*lines):
        own = ("name: mine", "extends: pytorch_eager", "description: mine", "source: made up")
        file = tmp_path / "mine.yaml"
        file.write_text("\n".join([*own, *lines, "...", ""]))
        return load_stack(file)

    return load_lines


@pytest.mark.parametrize("name", list_stacks())
def test_every_stack_that_comes_along_loads_and_travels(name):
    stack = load_stack(name)
    assert stack.name == name
    assert pickle.loads(pickle.dumps(stack)) == stack


def test_host_times_are_those_of_the_paper():
    host = load_stack("pytorch_eager").host
    assert host.time("aten::linear", HostPart.BEFORE_LAUNCH).duration_ns == pytest.approx(32_900)
    assert host.time("AddmmBackward0", HostPart.AFTER_LAUNCH).duration_ns == pytest.approx(29_200)
    assert host.time("anything", HostPart.BETWEEN_OPERATORS).duration_ns == pytest.approx(7_700)


def test_a_captured_graph_has_no_host_work_between_operators():
    stack = load_stack("cuda_graphs")
    assert stack.execution is Execution.CUDA_GRAPH
    assert stack.host.time("linear", HostPart.BEFORE_LAUNCH).duration_ns == 0


def test_names_lose_namespace_and_overload_digit():
    assert canonical_operator("torch::autograd::AccumulateGrad") == "AccumulateGrad"
    assert canonical_operator("ReluBackward0") == "ReluBackward"
    assert canonical_operator("aten::conv2d") == "conv2d"


@pytest.mark.parametrize(
    ("lines", "faults"),
    [
        (
            ["kernel_time_ratio: {products: 2, memory: {volta: 0}}"],
            ["kernel_time_ratio.products (line 5): unknown key",
             "kernel_time_ratio.memory.volta (line 5): must be at least 0.001"],
        ),
        (
            ["habits: [whistling]",
             "tables: {lookup_kernel: magic, updates_all_rows: 3, rows: 1}"],
            ["habits[0]", "tables.rows (line 6): unknown key", "got 'magic'", "got 3"],
        ),
    ],
)  # fmt: skip
def test_all_faults_of_a_profile_are_reported_at_once(load, lines, faults):
    with pytest.raises(CalibrationError) as caught:
        load(*lines)
    for fault in faults:
        assert fault in str(caught.value)


def test_an_unknown_name_is_refused():
    with pytest.raises(CalibrationError, match="pytorch_eager"):
        load_stack("qqq")


def test_a_profile_may_state_how_much_longer_a_family_takes(load):
    stack = load("kernel_time_ratio: {memory: 2, attention: {hopper: 3, default: 1.5}}")
    asked = [("memory", "volta"), ("attention", "hopper"), ("attention", "ampere"), ("gemm", "x")]
    assert [stack.time_ratio(*words) for words in asked] == [2, 3, 1.5, 1]


def test_a_profile_may_state_habits_and_how_tables_are_treated(load):
    tables = "{lookup_kernel: table_batched, key_time: 9 ns, updates_all_rows: true}"
    stack = load("habits: [blocking_copies]", f"tables: {tables}")
    assert stack.habits == {FrameworkBehaviour.BLOCKING_COPIES}
    assert stack.tables == TableHandling("table_batched", key_ns=9.0, updates_all_rows=True)


def test_a_stack_that_was_cut_is_refused_wherever_it_was_cut(tmp_path):
    file = tmp_path / "cut.yaml"
    text = STACK_FOLDER.joinpath("fsdp.yaml").read_text(encoding="utf-8")
    for end in range(0, len(text) - 2, 7):
        file.write_text(text[:end], encoding="utf-8")
        with pytest.raises(CalibrationError):
            load_stack(file)


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("5: x", "key 5 must be a word"),
        ("true: x", "key true must be a word"),
        ("overlaps: [{input: 1}]", r"overlaps\[0\]"),
        ("fusions: [[norm]]", r"fusions\[0\]"),
        ("kernel_time_ratio: {gemm: .inf}", "kernel_time_ratio.gemm"),
        ("kernel_time_ratio: {gemm: {hoper: 2}}", "kernel_time_ratio.gemm.hoper"),
        ("kernel_time_ratio: {gemm: 1" + "0" * 400 + "}", "kernel_time_ratio.gemm"),
        ("defaults: {parallel.etp: {expertss: 1}}", "did you mean experts"),
        ("defaults: {parallel.etp: {experts on hoper: 1}}", "did you mean hopper"),
        ("defaults: {parallel.etp: {all on hopper: 1}}", "must be a kind of runs"),
        ("host_speed_ratio: .nan", "host_speed_ratio"),
        ("host_speed_ratio: 0", "host_speed_ratio"),
        ("host_speed_ratio: fast", "host_speed_ratio"),
        ("host: {operators: [mm]}", "operators"),
        ("host: {default: 5}", "default"),
        ("host: {launch: 1e300 s}", "host.launch"),
        ("host: {launch: 10001 s}", "host.launch .*: must be at most 10000 s"),
        ("attention_kernels: {default: [flash2]}", "attention_kernels.default"),
        (
            "evidence: {hopper: {rows: .inf, sources: 1, hosts: 1, spread: 1}}",
            "evidence.hopper.rows",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(load, line, place):
    with pytest.raises(CalibrationError, match=place):
        load(line)
