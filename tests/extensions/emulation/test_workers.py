"""A throttle lets two ranks of a worker work at once."""

from __future__ import annotations

import multiprocessing
import time

from perfmodel.extensions.emulation import workers
from perfmodel.extensions.emulation.workers import MOST_WORKING, Throttle

FORK = multiprocessing.get_context("fork")


def run_ranks(folder, *functions):
    processes = [FORK.Process(target=function, args=(folder,)) for function in functions]
    for process in processes:
        process.start()
    for process in processes:
        process.join(20)
    assert [process.exitcode for process in processes] == [0] * len(functions)


def work(folder):
    Throttle(folder, is_needed=True).take()
    start_s = time.monotonic()
    while time.monotonic() < start_s + 0.2:
        pass
    with (folder / "spans").open("a") as stream:
        stream.write(f"{start_s} {time.monotonic()}\n")


def test_two_ranks_work_at_once(tmp_path):
    run_ranks(tmp_path, *[work] * 5)
    lines = (tmp_path / "spans").read_text().splitlines()
    spans = [[float(word) for word in line.split()] for line in lines]
    assert len(spans) == 5
    assert max(sum(a <= start < b for a, b in spans) for start, _ in spans) <= MOST_WORKING


def test_a_rank_that_waits_lets_others_work(tmp_path):
    def wait(folder):
        own = Throttle(folder, is_needed=True)
        own.take()
        with own.released():
            while not (folder / "spans").exists():
                time.sleep(0.01)

    run_ranks(tmp_path, wait, wait, wait, work)
    assert len((tmp_path / "spans").read_text().splitlines()) == 1


def test_ranks_that_stand_still_do_not_hold_up_others(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "STANDSTILL_S", 0.2)

    def wait(folder):
        # The script waits in a way of its own.
        Throttle(folder, is_needed=True).take()
        while not (folder / "spans").exists():
            time.sleep(0.5)

    run_ranks(tmp_path, wait, wait, work)
    assert len((tmp_path / "spans").read_text().splitlines()) == 1
