"""The core without its extensions: what it answers, and what it says of the rest."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perfmodel.base.extensions import EXTENSIONS, extension_of, load_module
from perfmodel.cli import COMMANDS

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = ("perfmodel", "collectives", "embeddings", "topologies")


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """A copy of the packages without extensions."""
    folder = tmp_path_factory.mktemp("core")
    for name in PACKAGES:
        shutil.copytree(
            CHECKOUT / name,
            folder / name,
            ignore=shutil.ignore_patterns("extensions", "__pycache__"),
        )
    return folder


def ask(place: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command of the copy at *place*; nothing else of this checkout is on its path."""
    done = subprocess.run(
        [sys.executable, "-m", "perfmodel", *words],
        cwd=place,
        env={"PYTHONPATH": str(place), "PATH": "/usr/bin", "HOME": str(place)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


@pytest.mark.parametrize(
    "words",
    [
        "predict --topology dgx_h100 --samples 8 --json -",
        "predict --workload llama3_8b --topology dgx_h100 --hosts 2 --samples 8 --json -",
        "compare --topology dgx_a100,dgx_h100 --workload llama3_8b --json -",
        "rank --topology dgx_a100 --json -",
        "collective --topology dgx_h100 --kind all_reduce --size 64MiB --json -",
    ],
)
def test_the_core_alone_answers_byte_for_byte_like_the_whole(core, words):
    with_all, alone = (ask(place, *words.split()).stdout for place in (CHECKOUT, core))

    assert _answer(alone) == _answer(with_all)


def _answer(text: str) -> dict[str, object]:
    """The answer without where, how fast and by which program it was computed."""
    document: dict[str, object] = json.loads(text)
    document.pop("run", None)
    # What to measure is said by the extension that can; settings to state are the core's.
    said = document.get("narrowed_by", [])
    assert isinstance(said, list)
    document["narrowed_by"] = [one for one in said if one["kind"] == "setting"]
    return document


EXTENDED = {
    name: extension_of(f"perfmodel.{place}".partition(":")[0])
    for name, (place, _) in COMMANDS.items()
    if place.startswith("extensions.")
}


@pytest.mark.parametrize("command", EXTENDED)
def test_a_command_of_an_absent_extension_is_one_sentence(core, command):
    said = ask(core, command, "--help", code=1).stderr

    assert said.startswith(f"perfmodel: this needs the extension {EXTENDED[command]!r}")
    assert "Traceback" not in said


def test_every_extension_of_the_table_exists_and_no_other():
    folder = CHECKOUT / "perfmodel" / "extensions"
    if not folder.is_dir():
        pytest.skip("this tree is the core alone")

    assert {path.parent.name for path in folder.glob("*/__init__.py")} == set(EXTENSIONS)


def test_a_fault_inside_an_extension_is_not_taken_for_its_absence():
    with pytest.raises(ModuleNotFoundError, match="no_such"):
        load_module("perfmodel.extensions.ui.no_such")
