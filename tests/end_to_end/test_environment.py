"""What the machine refuses is told in a sentence: where, what, what to do; nothing half-written."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from tests.conftest import CHECKOUT
from tests.traces.builders import kernel, launch, write_trace

RUN = """
import sys
from perfmodel.cli import main

def run(*words):
    try:
        main([str(word) for word in words])
    except SystemExit as stop:
        print("exit", stop.code)
"""
PREDICT = '"predict", "--topology", "quad_a100", "--samples", "2", "--quiet"'


def run_script(script: str, folder, **around: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", RUN + textwrap.dedent(script)],
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="ascii" if "LC_ALL" in around else "utf-8",
        check=True,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), **around},
    )
    for word in ("Traceback", "internal fault", "bug of perfmodel"):
        assert word not in done.stderr
    return done


def names_in(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_disk_that_fills_up_leaves_neither_half_an_answer_nor_half_a_job(tmp_path):
    traces = tmp_path / "traces"
    traces.mkdir()
    for rank in (0, 1):
        spans = []
        for step in range(200):
            at = 1000 * step
            spans += [launch(step, at), kernel(step, at + 7, 100, name=f"kernel_{step}")]
        info = {"rank": rank, "world_size": 2}
        write_trace(traces / f"rank{rank}.json.gz", spans, distributedInfo=info)

    # A limit on the size of files simulates a full disk: the write stops half-way.
    done = run_script(
        f"""
        import resource, signal
        # Code that was compiled here need not be kept in files.
        run({PREDICT}, "--json", "warm.json")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        for option, name in (("--json", "a.json"), ("--report", "a.html"), ("--trace-out", "a.tr")):
            run({PREDICT}, option, name)
        run("import", "traces", "--out", "job", "--quiet")
        """,
        tmp_path,
    )

    assert done.stdout.count("exit 1") == 4, done
    for name in ("a.json", "a.html", "a.tr", "job"):
        assert name in done.stderr, done.stderr
    assert done.stderr.count("File too large") == 4
    assert names_in(tmp_path) == ["traces", "warm.json"]


@pytest.mark.parametrize(
    ("option", "place", "said"),
    [
        ("--json", "missing/a.json", "missing"),
        ("--json", "folder", "folder"),
        ("--trace-out", "file/a.json", "file"),
        ("--report", "folder/missing/a.html", "missing"),
    ],
)
def test_an_output_that_cannot_be_is_refused_before_the_work(
    option, place, said, tmp_path, monkeypatch, capsys
):
    from perfmodel.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()

    with pytest.raises(SystemExit) as stopped:
        main(["predict", "--topology", "quad_a100", option, place])

    complaint = capsys.readouterr().err
    assert stopped.value.code == 1
    assert said in complaint
    assert "bug of perfmodel" not in complaint
    assert names_in(tmp_path) == ["file", "folder"]
    assert names_in(tmp_path / "folder") == []


def test_an_extra_that_is_not_installed_is_named_with_how_to_get_it(tmp_path):
    (tmp_path / "indices.pt").write_bytes(b"PK")

    done = run_script(
        """
        sys.modules["torch"] = None
        run("embeddings", "describe", "indices.pt")
        """,
        tmp_path,
    )

    assert "exit 1" in done.stdout
    assert "torch" in done.stderr
    assert "pip install torch==" in done.stderr
    assert names_in(tmp_path) == ["indices.pt"]


def test_a_screen_that_cannot_show_a_letter_shows_something_else(tmp_path):
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    done = run_script(f"run({PREDICT})", tmp_path, **ascii_only)

    assert "exit 0" in done.stdout, done
    assert "iteration" in done.stdout.lower()


@pytest.mark.ray
def test_a_ray_that_cannot_start_says_why_and_what_else_there_is(tmp_path):
    # Who asks for a token and has none gets no Ray.
    no_token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "nowhere")}

    done = run_script(f'run({PREDICT}, "--executor", "ray")', tmp_path, **no_token)

    assert "exit 1" in done.stdout
    assert "ray: could not start on this machine" in done.stderr
    assert "--executor serial" in done.stderr
