"""Compiled code is cached where only its user can write, or nowhere."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from perfmodel.base.compiling import can_be_replaced, own_folder
from perfmodel.base.identity import locate_packages

ASK = "from perfmodel.base.compiling import CACHES; from numba.core import config; "
ASK += "print(CACHES, config.CACHE_DIR)"


def test_a_folder_of_ones_own_is_made_private(tmp_path):
    folder = tmp_path / "kernels"
    assert own_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert own_folder(folder)


def test_a_folder_that_others_can_write_or_place_is_not_trusted(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert not own_folder(shared)
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(private)
    assert not own_folder(link)
    assert not own_folder(tmp_path / "no" / "where")
    if os.getuid() == 0:
        os.chown(private, 12345, 12345)
        assert not own_folder(private)


def test_a_folder_below_one_that_others_can_write_can_be_replaced(tmp_path):
    inside = tmp_path / "open" / "inside"
    inside.mkdir(parents=True)
    assert not can_be_replaced(inside)
    inside.parent.chmod(0o777)
    assert can_be_replaced(inside)
    # With the sticky bit, others cannot rename what is ours, but they can write to the folder.
    inside.parent.chmod(0o1777)
    assert not can_be_replaced(inside)
    assert can_be_replaced(inside.parent)


@pytest.mark.parametrize("home", ["none", "open"])
@pytest.mark.parametrize("is_writable", [True, False])
def test_without_home_and_with_a_read_only_install_it_still_runs(tmp_path, is_writable, home):
    """numba asks whether it can write by trying, so the folders are replaced by files.

    A home to which others can write is none.
    """
    copy, temporary = tmp_path / "install", tmp_path / "tmp"
    source = locate_packages()["perfmodel"]
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(source / "base", copy / "perfmodel/base", ignore=ignored)
    shutil.copy(source / "__init__.py", copy / "perfmodel")
    (copy / "perfmodel/base/__pycache__").write_text("not a folder")
    temporary.mkdir()
    if not is_writable:
        # The folder in which it would cache is taken by a link of another user.
        (temporary / f"perfmodel-kernels-{os.getuid()}").symlink_to(Path("/"))
    place = "/dev/null/none"
    if home == "open":
        place = str(tmp_path / "home")
        (tmp_path / "home").mkdir()
        (tmp_path / "home").chmod(0o777)
    surroundings = {
        "PYTHONPATH": str(copy), "TMPDIR": str(temporary), "HOME": place,
        "XDG_CACHE_HOME": place, "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    answered = subprocess.run(
        [sys.executable, "-c", ASK], cwd=tmp_path, env=surroundings,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    caches, _, place = answered.stdout.strip().partition(" ")
    assert caches == str(is_writable)
    assert place == (str(temporary / f"perfmodel-kernels-{os.getuid()}") if is_writable else "")
    assert answered.stderr == ""


@pytest.mark.parametrize("damage", ["code cut", "code changed", "index cut", "index replaced"])
def test_damaged_machine_code_is_compiled_again(tmp_path, damage):
    module = tmp_path / "adding.py"
    module.write_text(
        "from perfmodel.base.compiling import compiled\n"
        "def plus(a, b):\n    return a + b\n"
        "plus = compiled(plus)\n"
        "print(plus(2, 3), sum(plus.stats.cache_misses.values()))\n"
    )

    def run():
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        words = [sys.executable, str(module)]
        done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert run() == ["5", "1"]
    assert run() == ["5", "0"]
    what, how = damage.split()
    ending = "*.nbc" if what == "code" else "*.nbi"
    (file,) = (one for one in (tmp_path / "cache").rglob(ending) if "plus" in one.name)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(
        {"cut": content[: len(content) // 2], "changed": content}.get(how, b"no index")
    )
    assert run() == ["5", "1"]
    assert run() == ["5", "0"]


def test_code_compiled_from_other_sources_is_compiled_again(tmp_path):
    """numba looks at the file of a function alone, not at those it calls in other files."""
    inner, outer = (tmp_path / f"perfmodel_part/{name}.py" for name in ("inner", "outer"))
    inner.parent.mkdir()
    compiling = "from perfmodel.base.compiling import compiled\n"
    outer.write_text(
        f"{compiling}from inner import step\ndef twice(a):\n    return step(a) + step(a)\n"
        "from perfmodel.base import compiling, identity\nfrom pathlib import Path\n"
        "compiling.locate_packages = lambda: {'part': Path(__file__).parent}\n"
        "print(compiled(twice)(1))\n"
    )

    def run(step):
        inner.write_text(f"{compiling}def step(a):\n    return a {step}\nstep = compiled(step)\n")
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        words = [sys.executable, str(outer)]
        done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    assert run("+ 1") == 4
    assert run("+ 2") == 6
