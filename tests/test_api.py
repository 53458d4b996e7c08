"""The Python door says the same as the command line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perfmodel import api
from perfmodel.graph.storage import save_job
from perfmodel.recordings.storage import load_recorded_job
from tests.recordings.builders import import_spans
from tests.traces.builders import kernel, launch
from tests.whatif.jobs import training_job


@pytest.fixture
def imported(tmp_path):
    spans = [launch(1, 0), kernel(1, 10, 50, name="sgemm"), launch(2, 20), kernel(2, 60, 30)]
    import_spans(tmp_path / "traces", spans, spans)
    [found] = api.import_kineto([tmp_path / "traces"], tmp_path / "job")
    return found


def test_an_imported_job_is_in_its_folder_with_a_score(imported):
    assert api.load_job(imported.folder).rank_count == 2
    assert load_recorded_job(imported.folder).report == imported.job.report
    assert imported.score.iteration.error_pct == 0


def test_a_recording_is_replayed_predicted_and_changed_alike(imported):
    # From the first call to the end of the second kernel: 60 + 30 us.
    assert api.replay(imported.folder).iteration_ns == 90_000
    assert api.predict(api.JobScenario(str(imported.folder))).iteration_ns == 90_000
    changed = api.whatif(imported.folder, ["scale:match=sgemm,factor=0.5"])
    assert changed.before.iteration_ns == 90_000
    # The first kernel ends at 35 us: the second follows at once.
    assert changed.after.iteration_ns == 65_000
    assert changed.score == imported.score


def test_a_built_job_is_replayed_without_a_score(tmp_path):
    save_job(training_job(), tmp_path / "job")

    found = api.replay(tmp_path / "job")

    assert (found.iteration_ns, found.span_ns, found.score) == (680, 690, None)


def test_tables_are_validated(tmp_path):
    table = tmp_path / "collectives.csv"
    table.write_text(
        "topology,hosts,nranks,collective,size_bytes,time_us\ndgx_h100,1,8,all_reduce,1048576,30\n"
    )

    [row] = api.validate("collectives", [table]).deviations

    assert row.measured == 30.0


def test_the_door_opens_without_what_is_heavy():
    heavy = "{'torch', 'ray', 'matplotlib', 'perfmodel.planning', 'perfmodel.validation'}"
    program = f"import sys, perfmodel.api; print({heavy} & set(sys.modules))"
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert shown.stdout.strip() == "set()"


def test_own_measurements_become_a_calibration_of_a_scenario(tmp_path):
    table, out = tmp_path / "calls.csv", tmp_path / "my.yaml"
    rows = "".join(f"dgx_a100,2,16,all_reduce,{4**n},{100 + 4**n / 1e4}\n" for n in range(9, 15))
    table.write_text(f"topology,hosts,nranks,collective,size_bytes,time_us\n{rows}")

    [sentence] = api.calibrate_collectives([table], out)
    found = api.validate("collectives", [table], calibration=[str(out)])
    shipped = api.validate("collectives", [table])

    assert "dgx_a100, between hosts, 6 rows" in sentence
    assert found.overall.mape_pct < shipped.overall.mape_pct
    assert found.overall.inside_interval_pct == 100
