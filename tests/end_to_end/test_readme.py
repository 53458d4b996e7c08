"""Every command of the README does what the README says."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from perfmodel.cli import main
from perfmodel.extensions.recordings.storage import save_recorded_job
from tests.extensions.recordings.builders import import_spans
from tests.traces.builders import kernel, launch

CHECKOUT = Path(__file__).resolve().parents[2]
README = (CHECKOUT / "README.md").read_text()
PREFIX = ".venv/bin/perfmodel "
COMMANDS = [
    line.strip().removeprefix(PREFIX)
    for line in README.splitlines()
    if line.strip().startswith(PREFIX)
]


def test_the_readme_has_commands():
    assert len(COMMANDS) >= 5


@pytest.fixture
def reader_folder(tmp_path):
    """What a reader has: the traces of two ranks, and the job imported from them."""
    spans = [launch(1, 0), kernel(1, 10, 50, name="sgemm"), launch(2, 20), kernel(2, 60, 30)]
    save_recorded_job(import_spans(tmp_path / "traces", spans, spans), tmp_path / "job")
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.usefixtures("reader_folder")
def test_a_command_of_the_readme_works(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if command.startswith("import "):
        shutil.rmtree(tmp_path / "job")  # what other commands read, this one writes
    with pytest.raises(SystemExit) as stop:
        main(shlex.split(command))

    assert stop.value.code == 0, capsys.readouterr().err
    assert capsys.readouterr().out


def test_the_python_example_of_the_readme_works(capsys):
    [example] = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)

    exec(example, {})

    assert re.fullmatch(r"[\d.]+ ms\n", capsys.readouterr().out)


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)#]+)\)", README))
def test_a_link_of_the_readme_leads_somewhere(link):
    assert (CHECKOUT / link).exists()


def test_make_predict_asks_for_the_default_workload_on_a_dgx_h100():
    shown = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "--always-make", "predict"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert shown.stdout.splitlines()[-1].endswith("perfmodel predict --topology dgx_h100.yaml")
