import pickle

import pytest

from perfmodel.base.errors import CalibrationError
from perfmodel.graph.ops import HostPart
from perfmodel.stacks.capabilities import Execution, FrameworkBehaviour
from perfmodel.stacks.profiles import STACK_FOLDER, list_stacks, load_stack
from perfmodel.stacks.stack import TableHandling, canonical_operator


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


def test_an_unknown_operator_costs_the_default_and_says_so():
    time = load_stack("pytorch_eager").host.time("aten::never_heard_of", HostPart.BEFORE_LAUNCH)
    assert time.is_assumed
    assert time.duration_ns == pytest.approx(20_000)


def test_a_faster_host_divides_what_it_takes_over():
    slow, fast = load_stack("pytorch_eager"), load_stack("pytorch_fused")
    part = HostPart.BEFORE_LAUNCH
    ratio = slow.host.time("linear", part).duration_ns / fast.host.time("linear", part).duration_ns
    assert ratio == pytest.approx(2.0)


def test_a_captured_graph_has_no_host_work_between_operators():
    stack = load_stack("cuda_graphs")
    assert stack.execution is Execution.CUDA_GRAPH
    assert stack.host.time("linear", HostPart.BEFORE_LAUNCH).duration_ns == 0


def test_names_lose_namespace_and_overload_digit():
    assert canonical_operator("torch::autograd::AccumulateGrad") == "AccumulateGrad"
    assert canonical_operator("ReluBackward0") == "ReluBackward"
    assert canonical_operator("aten::conv2d") == "conv2d"


def test_all_faults_of_a_profile_are_reported_at_once(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "name: mine\nextends: pytorch_eager\nexecution: slow\nfusions: [glue]\n"
        "host: {launch: 4}\nloads_long: often\nevidence: {hopper: {rows: 3}}\n...\n"
    )
    with pytest.raises(CalibrationError) as caught:
        load_stack(file)
    message = str(caught.value)
    for place in ("execution", "fusions[0]", "host.launch", "loads_long", "evidence.hopper"):
        assert place in message


def test_an_unknown_key_and_an_unknown_name_are_refused(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nextends: pytorch_eager\ncolour: red\n...\n")
    with pytest.raises(CalibrationError, match="colour"):
        load_stack(file)
    with pytest.raises(CalibrationError, match="pytorch_eager"):
        load_stack("no_such_stack")


def test_a_profile_may_state_how_much_longer_a_family_takes(tmp_path):
    file = tmp_path / "slow.yaml"
    file.write_text(
        "name: slow\nextends: pytorch_eager\ndescription: slow\nsource: made up\n"
        "kernel_time_ratio: {memory: 2, attention: {hopper: 3, default: 1.5}}\n...\n"
    )
    stack = load_stack(file)
    assert stack.time_ratio("memory", "volta") == 2
    assert stack.time_ratio("attention", "hopper") == 3
    assert stack.time_ratio("attention", "ampere") == 1.5
    assert stack.time_ratio("gemm", "ampere") == 1


def test_an_unknown_family_and_a_ratio_of_zero_are_both_named(tmp_path):
    file = tmp_path / "wrong.yaml"
    file.write_text(
        "name: wrong\nextends: pytorch_eager\ndescription: wrong\nsource: made up\n"
        "kernel_time_ratio: {products: 2, memory: {volta: 0}}\n...\n"
    )
    with pytest.raises(CalibrationError) as caught:
        load_stack(file)
    for fault in (
        "products (line 5): unknown key",
        "memory.volta (line 5): must be at least 0.001",
    ):
        assert f"kernel_time_ratio.{fault}" in str(caught.value)


def test_a_profile_may_state_habits_and_how_tables_are_treated(tmp_path):
    file = tmp_path / "old.yaml"
    file.write_text(
        "name: old\nextends: pytorch_eager\ndescription: old\nsource: made up\n"
        "habits: [blocking_copies]\n"
        "tables: {lookup_kernel: table_batched, key_time: 9 ns, updates_all_rows: true}\n...\n"
    )
    stack = load_stack(file)
    assert stack.habits == {FrameworkBehaviour.BLOCKING_COPIES}
    assert stack.tables == TableHandling("table_batched", key_ns=9.0, updates_all_rows=True)


def test_faults_in_how_tables_are_treated_are_all_named(tmp_path):
    file = tmp_path / "wrong.yaml"
    file.write_text(
        "name: wrong\nextends: pytorch_eager\ndescription: wrong\nsource: made up\n"
        "habits: [whistling]\ntables: {lookup_kernel: magic, updates_all_rows: 3, rows: 1}\n...\n"
    )
    with pytest.raises(CalibrationError) as caught:
        load_stack(file)
    for fault in ("habits[0]", "tables.rows (line 6): unknown key", "got 'magic'", "got 3"):
        assert fault in str(caught.value)


BEGINNING = "name: mine\nextends: pytorch_eager\ndescription: mine\nsource: made up\n"


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
        ("host_speed_ratio: .nan", "host_speed_ratio"),
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
def test_a_wrong_value_is_refused_with_its_place(tmp_path, line, place):
    file = tmp_path / "mine.yaml"
    file.write_text(f"{BEGINNING}{line}\n...\n")
    with pytest.raises(CalibrationError, match=place):
        load_stack(file)
