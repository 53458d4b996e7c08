"""The command line as a whole: help, unknown words, faults."""

from __future__ import annotations

import inspect
import resource
import subprocess
import sys
from importlib import import_module

import pytest
import typer.main

from perfmodel import api
from perfmodel.cli import main
from perfmodel.cli.words import ASKS, WORDS, build_app

HEAVY = ("numpy", "scipy", "pandas", "matplotlib", "ray", "torch", "numba", "pyarrow", "rich")


def run_main(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_help_names_every_installed_command(capsys):
    assert run_main("--help") == 0

    shown = capsys.readouterr().out
    for word in WORDS:
        if word.is_installed:
            assert f"  {word.name}" in shown
    assert "perfmodel predict --workload" in shown


def leaves(command, path=()):
    below = getattr(command, "commands", None)
    if below is None:
        return [" ".join(path)]
    return [leaf for name, one in below.items() for leaf in leaves(one, (*path, name))]


def test_what_can_be_typed_can_be_called_and_asks_through_the_api():
    typed = [
        leaf
        for word in WORDS
        for leaf in leaves(
            typer.main.get_command(build_app([word.name])).commands[word.name], (word.name,)
        )
    ]
    assert sorted(typed) == sorted(ASKS)
    for command, functions in ASKS.items():
        module = {word.name: word.module for word in WORDS}[command.split()[0]]
        source = inspect.getsource(import_module(module))
        for function in functions:
            assert function in api.__all__
            assert callable(getattr(api, function))
            assert f"api.{function}(" in source, f"{command} does not call api.{function}"


def test_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from perfmodel.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert shown.stdout.splitlines()[-1] == "heavy: []"


def test_help_answers_in_under_half_a_second():
    def processor_seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-c", "from perfmodel.cli import main; main(['--help'])"],
            capture_output=True,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    # Seconds of the processor, and the best of three: others on the machine do not count.
    assert min(processor_seconds() for _ in range(3)) < 0.5


@pytest.mark.parametrize(
    "word", [word for word in WORDS if word.is_installed], ids=lambda w: w.name
)
def test_every_command_explains_itself(word, capsys):
    assert run_main(word.name, "--help") == 0

    assert "Usage: perfmodel " + word.name in capsys.readouterr().out


def test_an_unknown_command_is_a_wrong_command_line(capsys):
    assert run_main("predikt") == 2

    assert "predikt" in capsys.readouterr().err


def test_the_version_is_shown(capsys):
    assert run_main("--version") == 0

    assert capsys.readouterr().out.startswith("perfmodel ")


def test_an_option_of_one_value_may_not_be_given_twice(capsys):
    assert run_main("topology", "show", "dgx_h100", "--hosts", "2", "--hosts=3") == 1

    assert "--hosts: is given 2 times" in capsys.readouterr().err


def test_an_option_that_may_be_repeated_is_taken_twice(capsys):
    assert (
        run_main(
            "predict",
            "--topology",
            "nowhere",
            "--set",
            "batch=4096",
            "--set",
            "input.prefetch=true",
        )
        == 1
    )

    assert "nowhere" in capsys.readouterr().err


def test_what_the_system_refuses_is_no_mistake_of_ours(tmp_path, capsys):
    folder = tmp_path / "folder"
    folder.mkdir()

    assert run_main("predict", "--topology", str(folder)) == 1

    assert "mistake in perfmodel" not in capsys.readouterr().err
