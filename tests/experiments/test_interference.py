"""Slowdowns of kernels during collectives, read from traces and fitted."""

from __future__ import annotations

import pytest

from experiments.fitting.fit import load_choices
from experiments.fitting.interference import fit_interference, fit_losses, to_text
from experiments.fitting.interference_samples import (
    KernelLoss,
    collect_losses,
    family_of_kernel,
)
from perfmodel.base.errors import CalibrationError
from perfmodel.costs.interference import Phase, load_slowdowns, parse_slowdowns
from tests.traces.builders import kernel, write_trace
from traces.job_trace import load_job_trace

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3"}


def write_job(folder, *, devices=(H100,), company=()):
    """Two ranks in an all-reduce from 600 to 1000 us; rank 0 has waited in it since 0.

    Rank 0 runs a product of 100 us: three times alone, three times during the waiting collective
    (110 us) and three times during the moving one (125 us).
    """
    folder.mkdir()
    products = [
        kernel(number, start, length, name="sm90_gemm", grid=[64, 1, 1])
        for number, (start, length) in enumerate(
            [(10, 110), (130, 110), (250, 110), (610, 125), (740, 125), (870, 125),
             (2000, 100), (2200, 100), (2400, 100)]
        )
    ]  # fmt: skip
    for rank, (start, more) in enumerate(((0, [*products, *company]), (600, []))):
        write_trace(
            folder / f"rank{rank}.json",
            [kernel(50, start, 1000 - start, stream=9, name=NCCL), *more],
            deviceProperties=list(devices),
            distributedInfo={"rank": rank, "world_size": 2},
        )
    return folder


def test_waiting_and_moving_collectives_are_told_apart(tmp_path):
    losses = collect_losses([(load_job_trace(write_job(tmp_path / "job")), "hopper")])

    # 10 of 110 us and 25 of 125 us are lost.
    assert {loss.phase: loss.loss_ratio for loss in losses} == {
        Phase.WAITING: pytest.approx(10 / 110),
        Phase.MOVING: pytest.approx(25 / 125),
    }
    assert {(loss.family, loss.calls) for loss in losses} == {("gemm", 3)}


BESIDE = kernel(60, 600, 400, stream=11, name="elementwise")
LONGER = [
    kernel(70 + number, 3000 + 300 * number, 200, name="sm90_gemm", grid=[64, 1, 1])
    for number in range(3)
]


@pytest.mark.parametrize(
    ("company", "phases"), [([BESIDE], {Phase.WAITING}), (LONGER, set())], ids=["beside", "mixed"]
)
def test_kernels_beside_others_and_of_mixed_lengths_are_left_out(tmp_path, company, phases):
    job = load_job_trace(write_job(tmp_path / "job", company=company))
    assert {loss.phase for loss in collect_losses([(job, "hopper")])} == phases


def test_families_are_told_by_names_of_kernels():
    assert family_of_kernel("nvjet_tst_192x192_64x3_2x1_v_bx_coopB_NNN") == "gemm"
    assert family_of_kernel("void flash_fwd_kernel<...>") == "attention"
    assert family_of_kernel("split_embedding_codegen_forward_kernel") == "embedding"
    assert family_of_kernel("void at::native::vectorized_elementwise_kernel<4>") == "memory"


def seen(device: str, losses: list[float], *, family: str = "gemm", phase=Phase.MOVING):
    return [
        KernelLoss(device, family, phase, f"{device} kernel {number}", loss, 1e6, 3)
        for number, loss in enumerate(losses)
    ]


def test_a_generation_seen_with_few_kernels_is_drawn_to_the_others():
    many = [*seen("volta", [0.0, 0.2, 0.4] * 6), *seen("ampere", [0.05, 0.25, 0.45] * 6)]
    fitted = fit_losses([*many, *seen("hopper", [0.6])])
    cell = ("gemm", Phase.MOVING)

    assert fitted["volta"][cell].loss_ratio == pytest.approx(0.2, abs=0.05)
    assert fitted["ampere"][cell].loss_ratio == pytest.approx(0.25, abs=0.05)
    # Kernels scatter by 0.16: one that loses 60 % is not a law.
    assert 0.25 < fitted["hopper"][cell].loss_ratio < 0.5


def test_what_moves_bytes_slows_at_least_as_much_as_what_waits_and_nothing_gains():
    waited = seen("volta", [0.2] * 9, phase=Phase.WAITING)
    fitted = fit_losses([*waited, *seen("volta", [0.1] * 9)])["volta"]
    assert fitted["gemm", Phase.MOVING].loss_ratio == pytest.approx(0.2)
    gained = fit_losses(seen("volta", [-0.05] * 5, family="memory"))
    assert gained["volta"]["memory", Phase.MOVING].slowdown == 1


def test_attention_takes_over_from_products_and_lookups_from_memory_passes():
    fitted = fit_losses([*seen("volta", [0.2] * 4), *seen("volta", [0.1] * 4, family="memory")])
    for family, loss in (("attention", 0.2), ("embedding", 0.1)):
        assert fitted["volta"][family, Phase.MOVING].loss_ratio == pytest.approx(loss)
        assert fitted["volta"][family, Phase.MOVING].seen is None


def test_a_written_fit_can_be_read(tmp_path):
    fitted = fit_interference([write_job(tmp_path / "job")], device=None)
    read = parse_slowdowns(to_text(fitted, {"source": "made"}), document="made")["hopper"]
    # Only one generation: nothing to draw it to. 1 / (1 - 25/125) = 1.25.
    assert read.factor("gemm", Phase.MOVING) == pytest.approx(1.25)
    assert read.factor("gemm", Phase.WAITING) == pytest.approx(1.1)


def test_traces_that_do_not_name_their_gpu_need_it_said(tmp_path):
    job = write_job(tmp_path / "job", devices=())
    with pytest.raises(CalibrationError, match="--device"):
        fit_interference([job], device=None)
    assert list(fit_interference([job], device="mi300x").of_architecture) == ["cdna3"]


def test_cards_that_begin_alike_are_told_apart_and_unknown_ones_refused(tmp_path):
    words = {"ada": "NVIDIA GeForce RTX 4090", "ampere": "NVIDIA RTX A5000",
             "blackwell": "NVIDIA RTX PRO 6000 Blackwell Server Edition"}  # fmt: skip
    for architecture, name in words.items():
        job = write_job(tmp_path / architecture, devices=({"id": 0, "name": name},))
        assert list(fit_interference([job], device=None).of_architecture) == [architecture]
    job = write_job(tmp_path / "job", devices=({"id": 0, "name": "Abacus 9"},))
    with pytest.raises(CalibrationError, match="Abacus 9"):
        fit_interference([job], device=None)


def test_traces_without_overlap_are_refused(tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    write_trace(folder / "rank0.json", [kernel(1, 0, 100)], deviceProperties=[H100])
    with pytest.raises(CalibrationError, match="no kernel was recorded both"):
        fit_interference([folder], device=None)


def test_the_constants_that_come_along_are_those_of_the_recorded_jobs(shared_data):
    choice = load_choices()["interference"]
    fitted = fit_interference([shared_data / name for name in choice.tables], device=choice.device)
    shipped = load_slowdowns()
    assert set(shipped) == set(fitted.of_architecture)
    for architecture, cells in fitted.of_architecture.items():
        for (family, phase), cell in cells.items():
            used = shipped[architecture].factor(family, phase)
            assert cell.slowdown == pytest.approx(used, abs=1e-3)
