"""The import contract: who may import whom, written in pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
LINT = Path(sys.executable).with_name("lint-imports")


def run_lint(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LINT, "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(folder), "COLUMNS": "200"},
    )


def layers() -> list[str]:
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    lines = [line for contract in contracts for line in contract.get("layers", ())]
    return [name.strip(" ()") for line in lines for name in line.split("|")]


def test_imports_point_down_only():
    outcome = run_lint(CHECKOUT)

    assert outcome.returncode == 0, outcome.stdout


def test_every_package_has_its_place_in_the_stack():
    packages = {
        f"perfmodel.{path.parent.name}" for path in CHECKOUT.glob("perfmodel/*/__init__.py")
    }

    assert packages <= set(layers())


def copy_of_skeleton(folder: Path) -> None:
    """Empty packages of every layer under the real contract, to break rules in."""
    (folder / "pyproject.toml").write_text((CHECKOUT / "pyproject.toml").read_text())
    for name in ("perfmodel", *layers()):
        package = folder / name.replace(".", "/")
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").touch()


def test_an_import_that_points_up_is_refused(tmp_path):
    copy_of_skeleton(tmp_path)
    (tmp_path / "topologies" / "wrong.py").write_text("import collectives\n")

    outcome = run_lint(tmp_path)

    assert outcome.returncode == 1
    assert "topologies.wrong -> collectives" in outcome.stdout


def test_ray_is_refused_outside_its_folder(tmp_path):
    copy_of_skeleton(tmp_path)
    own = tmp_path / "perfmodel" / "execution" / "on_ray"
    own.mkdir()
    (own / "__init__.py").touch()
    (own / "cluster.py").write_text("import ray\n")
    assert run_lint(tmp_path).returncode == 0

    (tmp_path / "perfmodel" / "engine" / "wrong.py").write_text("from ray import util\n")

    outcome = run_lint(tmp_path)
    assert outcome.returncode == 1
    assert "perfmodel.engine.wrong -> ray" in outcome.stdout


def test_torch_is_refused_outside_emulation_and_fitting(tmp_path):
    copy_of_skeleton(tmp_path)
    (tmp_path / "perfmodel/extensions/emulation/device.py").write_text("import torch\n")
    assert run_lint(tmp_path).returncode == 0

    (tmp_path / "perfmodel" / "costs" / "wrong.py").write_text("import torch\n")

    outcome = run_lint(tmp_path)
    assert outcome.returncode == 1
    assert "perfmodel.costs.wrong -> torch" in outcome.stdout


def test_the_core_imports_no_extension_and_no_traces(tmp_path):
    copy_of_skeleton(tmp_path)
    for line, named in (
        ("from perfmodel.extensions import whatif", "perfmodel.extensions"),
        ("import traces", "traces"),
    ):
        (tmp_path / "perfmodel" / "api" / "wrong.py").write_text(f"{line}\n")

        outcome = run_lint(tmp_path)

        assert outcome.returncode == 1
        assert f"perfmodel.api.wrong -> {named}" in outcome.stdout
