"""The command line as a whole: help, completion, unknown commands, faults."""

from __future__ import annotations

import inspect
import os
import resource
import subprocess
import sys
from importlib import import_module

import pytest

from perfmodel import api
from perfmodel.base.errors import InputError
from perfmodel.cli import COMMANDS, load_command

HEAVY = ("numpy", "scipy", "pandas", "matplotlib", "ray", "torch", "numba", "pyarrow", "rich")


KERNELS = ("gemm", "attention", "experts", "memory")
ASKS = {
    "predict": "predict sweep",
    "compare": "compare sweep name_jobs",
    "rank": "rank",
    "embeddings describe": "describe_indices",
    "search": "search",
    "emulate": "emulate",
    "import": "import_traces",
    "replay": "replay",
    "whatif": "whatif",
    "advise": "advise",
    "fits": "fits",
    **{f"trace {word}": f"trace_{word}" for word in ("stats", "diff", "extract")},
    **{f"validate {kind}": "validate" for kind in ("collectives", *KERNELS)},
    "validate embeddings": "validate_embeddings",
    **{f"validate {word}": f"validate_{word}" for word in ("runs", "fits")},
    "calibrate collectives": "calibrate_collectives cross_validate leave_out_collectives",
    **{
        f"calibrate {kind}": f"calibrate_{kind}"
        for kind in ("embedding", "host", "kernels", "runs")
    },
    "measure": "measure",
    "workload import": "import_workload",
    "workload list": "list_workloads list_stacks",
    "workload show": "load_workload",
    "topology import": "import_topology",
    "topology list": "list_topologies list_devices",
    "topology show": "load_topology",
    "topology check": "load_topology",
    "collective": "ask_collective sweep_collective",
    **{f"kernel {kind}": "price_kernel" for kind in ("gemm", "attention", "memory", "embedding")},
    "ui": "",
    "init": "init",
    "schema": "describe_schema json_schema",
    "doctor": "examine_installation",
}
"""The functions of `perfmodel.api` that each command calls: what can be typed can be called."""


def test_help_names_every_command(typed):
    shown = typed("--help").out
    for name in COMMANDS:
        assert f"  {name}" in shown
    assert "perfmodel predict llama3_8b" in shown


def leaves(command, path=()):
    below = getattr(command, "commands", None)
    if below is None:
        return [" ".join(path)]
    return [leaf for name, one in below.items() for leaf in leaves(one, (*path, name))]


def test_what_can_be_typed_can_be_called_and_asks_through_the_api():
    typed = [leaf for name in COMMANDS for leaf in leaves(load_command(name), (name,))]
    assert sorted(typed) == sorted(ASKS)
    for command, functions in ASKS.items():
        module = COMMANDS[command.split()[0]][0].partition(":")[0]
        source = inspect.getsource(import_module(f"perfmodel.{module}"))
        for function in functions.split():
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


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name, typed):
    assert f"Usage: perfmodel {name}" in typed(name, "--help").out


def test_emulate_says_first_that_it_runs_the_script(typed):
    _usage, first, *_ = typed("emulate", "--help").out.split("\n\n")
    assert "with your rights" in " ".join(first.split())


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("pre", "predict"), ("predict --topo", "--topology"), ("trace st", "stats")],
)
def test_commands_and_options_are_completed(typed, offered):
    words = f"perfmodel {typed}"
    found = subprocess.run(
        [sys.executable, "-m", "perfmodel"],
        env=os.environ
        | {
            "_PERFMODEL_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        },
        capture_output=True,
        text=True,
        check=True,
    )

    assert offered in found.stdout.split()


def test_the_package_runs_as_a_program():
    shown = subprocess.run(
        [sys.executable, "-m", "perfmodel", "--version"], capture_output=True, text=True, check=True
    )

    assert shown.stdout.startswith("perfmodel ")


def test_an_unknown_command_is_a_wrong_command_line(typed):
    assert "predikt" in typed("predikt", code=2).said


def test_the_version_is_shown(typed):
    assert typed("--version").out.startswith("perfmodel ")


def test_an_option_of_one_value_may_not_be_given_twice_and_one_of_several_may(typed):
    said = typed("topology show dgx_h100 --hosts 2 --hosts=3", code=1).said
    assert "--hosts: is given 2 times" in said
    words = "predict --topology nowhere --set batch=4096 --set input.prefetch=true"
    assert "nowhere" in typed(words, code=1).said


def test_what_the_system_refuses_is_no_mistake_of_ours(tmp_path, typed):
    assert "bug of perfmodel" not in typed("predict --topology", tmp_path, code=1).err


def test_a_command_gets_questions_made_of_the_options_that_were_given(monkeypatch, typed):
    asked = []
    monkeypatch.setattr(api, "search", lambda question, **where: asked.append((question, where)))
    monkeypatch.setattr("perfmodel.reports.search.report_search", lambda found: 1 / 0)

    words = "search --workload gpt2_xl --topology dgx_a100 --hosts 1,2 --workers 3"
    typed(f"{words} --set batch=8 --set parallel.tp=2", code=1)

    [(question, where)] = asked
    assert question == api.LayoutQuestion(
        "dgx_a100", "gpt2_xl", ("batch=8", "parallel.tp=2"), hosts=(1, 2)
    )
    assert (where["executor"], where["workers"], where["ray_address"]) == (None, 3, None)


@pytest.mark.parametrize("words", ["gpt2_xl", "--workload gpt2_xl", "gpt2_xl --workload gpt2_xl"])
def test_the_workload_is_an_argument_or_an_option(words, monkeypatch, typed):
    asked = []

    def predict(scenario, **where):
        asked.append(scenario)
        raise InputError("enough")

    monkeypatch.setattr(api, "predict", predict)
    typed(f"predict {words} --topology dgx_a100 --isolated", code=1)
    assert asked == [api.Scenario("dgx_a100", "gpt2_xl", mode=api.Mode.ISOLATED)]
