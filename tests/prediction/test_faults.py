"""Faulty machines: finite, never faster, unchanged where a group avoids the fault, folded."""

import pytest

from perfmodel.api import Scenario, predict, price_collective, sweep
from perfmodel.base.errors import PerfModelError
from perfmodel.costs.pricing import price_job
from perfmodel.engine.replay import replay
from perfmodel.prediction.plans.evaluator import PlanEvaluator
from perfmodel.prediction.question import load_setting
from perfmodel.workloads.dlrm.job import build_dlrm_job, build_plan
from tests.extensions.formats.machines.test_nccl_xml import host, pair

FAULTS = (
    "gpu:3 nvlink",
    "gpu:0,1 nvlink",
    "nic:1 down",
    "nic:1 bandwidth=0.5",
    "gpu:0-nvswitch:0 bandwidth=0.5",
    "pcie_switch:0-cpu:0 bandwidth=0.25",
    "gpu:2-nvswitch:0 down",
    "gpu:1 speed=0.8",
)
CALLS = [
    (kind, size)
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
    for size in ("1KiB", "256KiB", "64MiB")
]
LLAMA = ("parallel.tp=4", "parallel.pp=1", "parallel.micro_batch=1", "batch=16", "model.layers=4")


@pytest.fixture
def machines(tmp_path):
    file = tmp_path / "topo.xml"
    file.write_text(host(pair(0), pair(1)))
    return (("dgx_a100", 1), ("dgx_h100", 1), ("dgx_h100", 4), (str(file), 1))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_never_makes_a_call_faster(fault, machines):
    for topology, hosts in machines:
        for kind, size in CALLS:
            asked = {"topology": topology, "hosts": hosts}
            sound = price_collective(kind, size, **asked).duration_ns
            broken = price_collective(kind, size, faults=(fault,), **asked).duration_ns
            assert sound <= broken < 1e12, (topology, hosts, kind, size)


@pytest.mark.parametrize("fault", FAULTS)
def test_an_iteration_with_a_fault_is_no_faster_and_says_why(fault):
    questions = (
        Scenario("dgx_a100", samples=0),
        Scenario("dgx_h100", "llama3_8b", hosts=2, overrides=LLAMA, samples=0),
    )
    for question in questions:
        sound = predict(question)
        broken = predict(Scenario(**{**fields_of(question), "faults": (f"host:0 {fault}",)}))
        assert sound.iteration_ns <= broken.iteration_ns
        assert any(fault.split()[0] in said for said in broken.assumptions)


def fields_of(scenario):
    return {name: getattr(scenario, name) for name in scenario.__slots__ if name != "batch"}


@pytest.mark.parametrize("fault", ["gpu:3 nvlink", "nic:3 down", "gpu:3 speed=0.5"])
def test_groups_that_avoid_the_fault_keep_their_price(fault):
    for kind, size in CALLS:
        for ranks in ([0, 1, 2], [8, 9, 10, 11], [0, 8, 16]):
            asked = {"topology": "dgx_h100", "hosts": 3, "ranks": ranks}
            sound = price_collective(kind, size, **asked)
            broken = price_collective(kind, size, faults=(fault,), **asked)
            assert sound.duration_ns == broken.duration_ns
            assert sound.relative_sigma == broken.relative_sigma


def test_a_job_on_other_gpus_keeps_its_time():
    asked = {"topology": "dgx_h100", "ranks_per_host": 2}
    broken = predict(Scenario(**asked, faults=("gpu:7 nvlink", "gpu:6 speed=0.5")))
    assert broken.iteration_ns == predict(Scenario(**asked)).iteration_ns


def test_kernels_of_a_slow_gpu_take_longer_and_nothing_else():
    sound, slow = (
        predict(Scenario("dgx_h100", ranks_per_host=1, samples=0, overrides=BATCH, faults=faults))
        for faults in ((), ("gpu:0 speed=0.5",))
    )
    priced, slowed = (one.evidence.priced for one in (sound, slow))
    ratios = slowed.float_ns / priced.float_ns
    # Kernels twice as long; the host's launches as before.
    assert set(ratios.round(9)) == {1.0, 2.0}


BATCH = ("batch=1024", f"embedding.rows={[10000] * 26}")


def test_a_fault_that_all_hosts_have_is_a_machine_of_that_kind():
    asked = {"topology": "dgx_h100", "hosts": 2}
    everywhere = price_collective("all_reduce", "64MiB", faults=("host:* nic:2 down",), **asked)
    each = ("host:0 nic:2 down", "host:1 nic:2 down")
    assert (
        everywhere.duration_ns
        == price_collective("all_reduce", "64MiB", faults=each, **asked).duration_ns
    )


def test_a_comparison_says_what_each_fault_costs():
    found = sweep(
        Scenario("dgx_h100", overrides=("batch=8192",), samples=0),
        {"fault": ["none", "gpu:3 nvlink", "host:1 nic:0 down"]},
    )
    sound, broken = (one.prediction.iteration_ns for one in found.answered)
    cost = f"{(broken - sound) / sound:.1%}"
    assert any(one.startswith("gpu:3 nvlink: costs ") and cost in one for one in found.findings)
    assert "the job has 1 hosts" in found.entries[2].fault


def test_plans_are_compared_with_every_rank_at_its_own_speed():
    overrides = ("batch=8192", f"embedding.rows={[100_000] * 26}")
    faults = ("gpu:1 speed=0.5", "gpu:0-gpu:1 bandwidth=0.5")
    for sharder in ("size_greedy", "row_wise"):
        wanted = (*overrides, f"sharding.sharder={sharder}")
        setting = load_setting(Scenario("quad_a100", overrides=wanted, faults=faults))
        evaluator = PlanEvaluator(setting.workload, setting.cluster, setting.stack)
        plan = build_plan(setting.workload, rank_count=4, ranks_per_host=4)
        quick = evaluator.measure([plan]).times
        job = build_dlrm_job(setting.workload, plan=plan, stack=setting.stack)
        priced = price_job(job, cluster=setting.cluster, stack=setting.stack)
        whole = replay(priced.job, priced.durations, iterations=1)
        assert quick.isolated_ns[0] == whole.iteration_end_ns[0, 0]


def test_one_slow_gpu_among_many_keeps_equal_ranks_folded():
    llama = (*LLAMA, "batch=1024")
    folded = []
    for faults in ((), ("host:20 gpu:5 speed=0.9",)):
        question = Scenario(
            "dgx_h100", "llama3_8b", hosts=64, overrides=llama, samples=0, faults=faults
        )
        folded.append(predict(question))
    sound, slow = (len(one.evidence.class_ranks) for one in folded)
    assert (sound, slow <= 8) == (1, True)
    assert folded[0].iteration_ns < folded[1].iteration_ns


def test_a_fault_is_part_of_a_scenario_file(tmp_path):
    from perfmodel.api import load_scenario

    file = tmp_path / "question.yaml"
    file.write_text("topology: dgx_h100\nfaults: ['gpu:5 speed=0.9']\n")
    assert load_scenario(file).faults == ("gpu:5 speed=0.9",)
    file.write_text("topology: dgx_h100\nhosts: 1\nfaults: ['host:1 gpu:5 speed=0.9']\n")
    with pytest.raises(PerfModelError, match="counted from 0"):
        predict(load_scenario(file))
