"""Plans ranked at the rates of a recording of one of them."""

from __future__ import annotations

import pytest

from perfmodel.api import RankQuestion, rank
from perfmodel.base.errors import PlanError, ScenarioError
from perfmodel.extensions.recordings.storage import save_recorded_job

ROWS = ", ".join(["1024"] * 64)
MODEL = f"""
name: recorded
family: dlrm
description: 64 tables of 1024 x 1024, one lookup each, as the README of the recording says
source: the recording
stack: torchrec
batch: 16384
dense: {{features: 1024, bottom_mlp: [2049, 2049, 2049, 2049, 2049, 2049, 1024], top_mlp: [512, 1]}}
embedding: {{rows: [{ROWS}], width: 1024, optimizer: rowwise_adagrad}}
"""


@pytest.fixture(scope="module")
def folder(recorded, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    save_recorded_job(recorded("dlrm_torchrec_v100x4/n3_a2a_opt_3"), folder / "job")
    (folder / "model.yaml").write_text(MODEL)
    return folder


def ranked(folder, **options):
    model = str(folder / "model.yaml")
    return rank(RankQuestion("dgx1_v100", model, ranks_per_host=4, samples=2, **options))


def test_plans_take_what_the_recorded_kernels_of_one_of_them_say(folder):
    ran, other = folder / "ran.json", folder / "other.json"
    before = ranked(folder, sharders=("naive",))
    before.save_plan(ran)
    ranked(folder, sharders=("row_wise",)).save_plan(other)
    found = ranked(folder, plan_files=(str(ran), str(other)), job=str(folder / "job"))
    assert [one.plan.name for one in found.plans] == ["ran", "other"]
    # Matrix multiplies took 0.88 of what all runs on such GPUs say, exchanges what is predicted.
    # Copies of its own interaction are not in the model: memory-bound kernels took longer.
    told = found.facts[-1]
    assert "ran plan ran" in told
    ratios = {part.rpartition(" ")[0]: float(part.rpartition(" ")[2])
              for part in told.partition("predicted, ")[2].split(", ")}  # fmt: skip
    assert ratios["matrix multiplies"] == pytest.approx(0.9, abs=0.05)
    assert ratios["exchanges and reductions"] == pytest.approx(1, abs=0.1)
    assert ratios["memory-bound kernels"] > 1.2
    assert found.plans[0].answer.iteration_ns > before.plans[0].answer.iteration_ns


def test_a_run_of_another_model_is_refused(folder):
    ran = folder / "small.json"
    batch = ("batch=256",)
    ranked(folder, sharders=("naive",), overrides=batch).save_plan(ran)
    with pytest.raises(PlanError, match=r"is not a run of plan 'small': its .* take"):
        ranked(folder, plan_files=(str(ran),), job=str(folder / "job"), overrides=batch)
    with pytest.raises(ScenarioError, match=r"is a run of a plan. Give it with --plan"):
        ranked(folder, job=str(folder / "job"))
