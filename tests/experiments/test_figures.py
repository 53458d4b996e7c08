"""Figures: the index, the folders and the measured tables agree, and a clone is enough."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.figures import EXPERIMENTS, MEASURED, rounded
from experiments.index import ASKED_FOR, MADE, read_index

FOLDERS = sorted(
    path.parent.name for path in EXPERIMENTS.glob("*/run.py") if path.parent.name != "measured"
)
INDEX = read_index()


def test_every_folder_is_in_the_index_and_every_line_leads_to_one():
    assert sorted({entry.folder for entry in INDEX}) == FOLDERS


def test_every_line_of_the_index_has_a_state():
    assert {entry.state for entry in INDEX} <= {*MADE, *ASKED_FOR}


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_index_names_every_picture_of_a_folder_and_all_are_there(folder):
    named = {file for entry in INDEX if entry.folder == folder for file in entry.pictures}
    pictures = {path.name for path in (EXPERIMENTS / folder).glob("*.png")}

    assert {name for name in named if name.endswith(".png")} == pictures
    assert all((EXPERIMENTS / folder / name).is_file() for name in named)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_states_question_scenario_and_results(folder):
    # `results.json` is missing where all that is drawn is the picture.
    for name in ("README.md", "scenario.yaml"):
        assert (EXPERIMENTS / folder / name).is_file(), name


@pytest.mark.parametrize(
    "folder", [name for name in FOLDERS if any(e.folder == name and e.is_made for e in INDEX)]
)
def test_a_script_reads_nothing_outside_the_clone(folder):
    text = (EXPERIMENTS / folder / "run.py").read_text()

    assert "read_wishes(__file__" in text
    assert "../shared" not in text
    assert "PERFMODEL_SHARED_DATA" not in text


def test_measured_tables_are_small_and_each_is_told_of():
    told = (MEASURED / "README.md").read_text()
    patterns = re.findall(r"`([\w*/.]+)`", told)
    files = [
        path
        for path in MEASURED.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
        and path.name not in ("README.md", "make.py")
    ]  # fmt: skip

    known = {found for pattern in patterns for found in MEASURED.glob(pattern)}
    assert [path for path in files if path not in known and not known & set(path.parents)] == []
    assert sum(path.stat().st_size for path in files) < 2_000_000


def test_a_figure_is_made_where_it_is_asked_for(tmp_path):
    script = EXPERIMENTS / "sustained_clocks" / "run.py"
    subprocess.run(
        [sys.executable, script, "--quick", "--out", tmp_path / "here"],
        env={**os.environ, "PYTHONPATH": str(EXPERIMENTS.parent)}, check=True,
    )  # fmt: skip

    assert (tmp_path / "here" / "slowdowns.png").stat().st_size > 10_000
    assert len(json.loads((tmp_path / "here" / "results.json").read_text())) > 5


def test_numbers_are_kept_with_four_digits():
    assert rounded({"a": [1 / 3, 12345.6, 7]}) == {"a": [0.3333, 12350.0, 7]}


def test_stored_jobs_of_recordings_can_be_read():
    from perfmodel.extensions.recordings.storage import load_recorded_job

    for folder in sorted(Path(MEASURED / "recordings").iterdir()):
        if folder.is_dir():
            assert load_recorded_job(folder).graph.rank_count >= 2
