"""Shipped constants: each file states the choice that made it, and a choice is fitted as stated."""

from __future__ import annotations

import json
import re
import sys

import pytest
import yaml

from experiments.fitting import fit
from perfmodel.costs.calibration_files import parse_entries
from perfmodel.extensions.measurements.measured_kernels import KernelTable
from tests.experiments.kernels.test_fits import measured

CHOICES = fit.load_choices()
OTHERWISE = ("nccl_tuner", "sustained", "token_exchange")
"""Made by other scripts, or stated by NCCL."""
SHIPPED = [
    path
    for folder in ("perfmodel/costs/calibrations", "collectives/calibrations")
    for path in sorted((fit.CHECKOUT / folder).rglob("*"))
    if path.suffix in (".json", ".yaml") and path.stem not in OTHERWISE
]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_file_states_the_choice_that_makes_it(path):
    text = path.read_text()
    about = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    stated = re.fullmatch(
        r"python experiments/fitting/fit.py (\w+) ../shared/data", about["command"]
    )
    choice = CHOICES[stated[1]]

    assert fit.CHECKOUT / choice.out in (path, path.parent)
    assert choice.kind in fit.FITS
    for key in ("source", "software", "licence"):
        assert getattr(choice, key) in ("", about[key])


def test_the_preferred_collector_is_taken_alone_where_it_measured():
    rows = [measured(1, 1.0, collector) for collector in ("vllm/1", "trtllm/1", "bmm")]
    kept = fit.prefer_collector(KernelTable(tuple(rows)), "trtllm")
    assert [kernel.group[0] for kernel in kept.kernels] == ["trtllm/1", "bmm"]
    assert fit.prefer_collector(KernelTable((rows[0],)), "trtllm").kernels == (rows[0],)


def test_a_choice_is_fitted_to_the_tables_it_names(tmp_path, monkeypatch):
    # 2 us and 12 bytes per element at 1 TB/s.
    rows = [f"add,a100_sxm_80gb,{2e-3 + 12e-9 * size:.9f},{size},1" for size in (10**6, 10**7)]
    for name in CHOICES["memory"].tables:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("\n".join(["op,device,latency_ms,B,H", *rows, ""]))
    out = tmp_path / "memory.json"
    monkeypatch.setattr(sys, "argv", ["fit.py", "memory", str(tmp_path), "--out", str(out)])
    fit.main()

    about = json.loads(out.read_text())
    assert about["source"] == CHOICES["memory"].source
    assert about["command"] == f"python experiments/fitting/fit.py memory {tmp_path}"
    entries = {one.variant: one for one in parse_entries(out.read_text(), document="memory.json")}
    assert entries["add"].constants["floor_ns"] == 1300.0
    # Kernels of compiled code come from the project's own table.
    assert all(name.startswith("fused") for name in entries.keys() - {"add"})
