"""Commands that pages print are run as they are printed, and give the answer of their page."""

from __future__ import annotations

import contextlib
import html
import json
import re

import pytest

from tests.manual.pages import Command, run
from tests.manual.reader import prepare

TINY = "--set batch=96 --set model.layers=2"
PAGES = {
    "predict": (
        f"predict gpt2_124m --topology dgx_a100 --hosts 2 --ranks-per-host 4 {TINY} "
        "--stack megatron --isolated --no-interference --seed 3 --tokens 1B --price 2 "
        "--calibration my.yaml"
    ),
    "predict a Hugging Face model": (
        "predict Llama-3.1-8B --topology topo.xml --set batch=8 --set model.layers=2 "
        "--layout-from ds_config.json"
    ),
    "predict a job": "predict --job recorded_job --samples 4",
    "predict a moved job": "predict --job recorded_job --topology dgx_h100 --samples 4",
    "compare": (
        f"compare --topology dgx_a100,dgx_h100 --workload gpt2_124m {TINY} --price 2 --tokens 1B"
    ),
    "sweep": "predict dlrm_ddp --topology dgx_a100 --sweep batch=1024,2048",
    "rank": (
        "rank --workload dlrm_ddp --topology quad_a100 --batch 2048 --sharder balanced "
        "--sharder naive --samples 4"
    ),
    "search": (
        "search --workload transformer_small --topology quad_a100 --set batch=8 "
        "--set parallel.pp=1 --set training.recompute=none --stack torch_compile --top 2 "
        "--price 2 --tokens 1B"
    ),
    "what-if": "whatif recorded_job --apply scale:match=sgemm,factor=0.5",
    "forced what-if": "whatif recorded_job --force --apply remove:match=sgemm",
    "replay": "replay recorded_job",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("reader")
    prepare(place)
    log = place / "all_reduce.log"
    log.write_text(log.read_text().replace("H100", "A100-SXM4-80GB"))
    with contextlib.chdir(place):
        run(
            Command(
                "perfmodel calibrate collectives all_reduce.log --topology dgx_a100 --out my.yaml",
                (),
            )
        )
    return place


def printed(page: str) -> list[str]:
    """The commands of ours on *page*."""
    found = re.findall(r'<code class="command">(.*?)</code>', page, flags=re.DOTALL)
    return [text for one in found if (text := html.unescape(one)).startswith("perfmodel ")]


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page_run_and_give_its_answer(name, folder):
    with contextlib.chdir(folder):
        run(Command(f"perfmodel {PAGES[name]} --report page.html --json page.json", ()))
        page = json.loads((folder / "page.json").read_text())
        commands = printed((folder / "page.html").read_text())
        assert commands
        for option in re.findall(r"--(?:price|prices|tokens|epochs) \S+", PAGES[name]):
            assert all(option.partition(" ")[0] in one for one in commands if " predict " in one), (
                option
            )
        for number, command in enumerate(commands):
            run(Command(f"{command} --json again.json", ()))
            again = json.loads((folder / "again.json").read_text())
            assert times(again)[:1] == times(page)[number : number + 1], command


def times(document: dict) -> list[float]:
    """The times of an answer, best first; a search's best is that of its prediction."""
    if "searches" in document:
        best = document["searches"][0]["layouts"][0]["iteration_time_ms"]
        return [best, best]
    rows = document.get("scenarios") or document.get("plans") or [document]
    return [one.get("iteration_time_ms") for one in rows]
