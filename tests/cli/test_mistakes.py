"""Mistakes that people make: each ends in a few lines that say what to do, and no traceback."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from perfmodel.cli import main

MOST_LINES = 12

RUNS = "id,device,n_gpus,gbs,iter_time_s,layers,hidden,heads,seq_len\n"
CALLS = "topology,hosts,nranks,collective,size_bytes,time_us\n"
KNOWN = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text(encoding="utf-8"))
MISTAKES = KNOWN["mistakes"]
FILES = KNOWN["files"] | {
    "filled.csv": "x" * 60_000 + "\n1\n",
    "eight.csv": RUNS + "".join(f"r{n},h100_sxm,eight,16,5,32,4096,32,8192\n" for n in range(40)),
    "negative.csv": CALLS + "".join(f"dgx_h100,1,8,all_reduce,1024,-{n}\n" for n in range(1, 161)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with files as people write them."""
    path = tmp_path_factory.mktemp("mistakes")
    for name, text in FILES.items():
        (path / name).write_text(text)
    (path / "folder").mkdir()
    return path


@pytest.mark.parametrize(("typed", "code", "advice"), MISTAKES, ids=[one[0] for one in MISTAKES])
def test_a_mistake_is_told_in_a_few_lines_with_what_to_do(
    typed, code, advice, folder, monkeypatch, capsys
):
    monkeypatch.chdir(folder)
    before = {path.name for path in Path().iterdir()}
    with pytest.raises(SystemExit) as stopped:
        main(shlex.split(typed))

    said = capsys.readouterr().err
    assert stopped.value.code == code
    assert advice in " ".join(said.split())
    assert len(said.splitlines()) <= MOST_LINES
    assert max(map(len, said.splitlines())) < 2_100
    assert "Traceback" not in said
    assert "internal fault" not in said
    assert {path.name for path in Path().iterdir()} == before
