"""The examples of `--help` run as they are printed, and commands that other texts name exist."""

from __future__ import annotations

import ast
import contextlib
import gzip
import re
import shlex
import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import click
import pytest

from perfmodel.cli import COMMANDS, load_command
from tests.manual.pages import NOT_RUN, Command, run
from tests.manual.reader import gemm_table, prepare

CHECKED_ALONE = {
    **NOT_RUN,
    "perfmodel search": "seconds to minutes; the pages of the manual run it",
    "perfmodel emulate": "likewise",
    "--search": "thousands of plans",
    "--cross-validate": "a minute",
    "--executor ray": "starts Ray; tests/execution does",
    "--limit": "made-up measurements are not within it",
    "pytorch_et": "tests/extensions/recordings imports one",
    "built_job": "tests/extensions/whatif asks such jobs",
    "SendRecv": "needs collectives of three ranks",
    "overlap": "needs collectives",
}
"""Words of examples whose options are checked and which are not run here, and why."""


def iter_commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from iter_commands(inner, f"{path} {name}")


def examples() -> list[str]:
    found: dict[str, None] = {}
    for name in COMMANDS:
        for path, command in iter_commands(load_command(name), name):
            context = click.Context(command, info_name=f"perfmodel {path}", max_content_width=999)
            text = command.get_help(context).replace("\\\n", "")
            for line in re.findall(r"^ *(?:Examples?: *)?(perfmodel [^\n]+)$", text, re.MULTILINE):
                # What follows many blanks explains the example.
                found |= dict.fromkeys(re.split(r" {3,}(?!-)| [|>] ", line)[0].split(" && "))
    return list(found)


def check_words(words: list[str]) -> None:
    """A command, and each subcommand and option that is named, must exist."""
    assert words[0] in COMMANDS
    command = load_command(words[0])
    for names in words[1:]:
        inner = getattr(command, "commands", {})
        if not inner or not names.islower():
            break
        command = [inner[name] for name in names.split("|")][-1]
    known = {option for one in command.params for option in one.opts}
    ours = words[: words.index("--")] if "--" in words else words
    assert {word for word in ours if word.startswith("--")} <= known


def texts(path: Path) -> Iterator[str]:
    """What a file says: the strings of a program with the pieces of one joined, else everything."""
    if path.suffix != ".py":
        yield path.read_text("utf-8")
        return
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [one.value if isinstance(one, ast.Constant) else "X" for one in node.values]
            yield "".join(map(str, parts))


def said() -> list[str]:
    """The commands in backticks in messages, templates, comments of files, pages and manual."""
    root = Path(__file__).parents[2]
    rooms = ("perfmodel", "collectives", "embeddings", "topologies", "traces", "docs", "README.md")
    found: dict[str, None] = {}
    for room in rooms:
        for path in [root / room, *sorted((root / room).rglob("*"))]:
            is_built = "docs/_" in path.as_posix()
            if path.suffix in (".py", ".yaml", ".md", ".j2", ".js") and not is_built:
                for text in texts(path):
                    for words in re.findall(r"(?<!`)`perfmodel ([^`]+)`(?!`)", text):
                        found |= {" ".join(words.split()): None}
    return list(found)


QUICK = re.compile(
    r"(--help|--version|schema|topology list|init|workload list|whatif --list)\b[^A-Z]*"
)


def test_messages_name_commands():
    assert len(said()) > 60


@pytest.mark.parametrize("words", said())
def test_a_command_that_a_text_names_exists(words, tmp_path):
    parts = words.split()
    if not parts[0].isupper() and not parts[0].startswith("--"):
        check_words(parts)
    if QUICK.fullmatch(words) and words != "init":
        with contextlib.chdir(tmp_path):
            run(Command(f"perfmodel {words}", ()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("reader")
    prepare(place)
    sizes = [(m, n, m * n // 2**16) for m in (1024, 4096, 8192) for n in (2048, 4096, 8192)]
    rows = [f"{m},{n},4096,{time_us}\n" for m, n, time_us in sizes]
    (place / "gemm.csv").write_text("m,n,k,time_us\n" + "".join(rows))
    with contextlib.chdir(place):
        for kind, names in {
            "workload": ("my_model", "my_gpt"),
            "topology": ("my_machine", "my_cluster", "my_host"),
            "tables": ("tables",),
            "scenario": ("question", "a", "b"),
        }.items():
            for name in names:
                run(Command(f"perfmodel init {kind} --out {name}.yaml", ()))
        for made in (
            "rank --topology quad_a100 --tables tables.yaml --sharder naive --plan-out plan.json",
            "rank --topology dgx_h100 --hosts 4 --sharder naive --samples 2 --plan-out mine.json",
            "calibrate collectives all_reduce.log --topology dgx_h100 --out my.yaml",
            "calibrate kernels gemm.csv --device h100_sxm --out my_gemm.yaml",
            "calibrate kernels timing/table.csv --out my_kernels.yaml",
            "predict gpt2_124m --topology dgx_h100 --measured 90ms --anchor-out one.yaml",
        ):
            run(Command(f"perfmodel {made}", ()))
        for name in ("job", "job_before", "job_after", "jobs/one", "jobs/two"):
            shutil.copytree("recorded_job", name)
        for name in ("runs/one", "runs/two"):
            shutil.copytree("traces", name)
        first, second = sorted(Path("traces").iterdir())
        for source, names in ((first, ("rank0", "before", "after")), (second, ("rank1",))):
            for name in names:
                Path(f"{name}.json.gz").write_bytes(gzip.compress(source.read_bytes()))
        shutil.copy("collectives.csv", "table.csv")
    return place


def test_every_command_has_an_example():
    assert len(examples()) > 60


@pytest.mark.slow
@pytest.mark.parametrize("example", examples())
def test_an_example_of_the_help_works(example, folder):
    words = shlex.split(example)[1:]
    check_words(words)
    if any(word in example for word in CHECKED_ALONE):
        return
    with contextlib.chdir(folder):
        if "timing/table.csv" in words:
            # What the script of `measure` writes next to itself.
            Path("timing").mkdir(exist_ok=True)
            Path("timing/table.csv").write_text(gemm_table())
        if "--out" in words:
            # An example starts without what it writes.
            out = Path(words[words.index("--out") + 1])
            shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)
        named = [sorted(map(str, Path().glob(word))) if "*" in word else [word] for word in words]
        run(Command(shlex.join(["perfmodel", *chain.from_iterable(named)]), ()))
