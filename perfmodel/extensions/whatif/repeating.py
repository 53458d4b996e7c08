"""Primitives that repeat work: layers that are recomputed, and gradients that are accumulated.

Layers are known by the part of a label before the first `/`. Where labels name none, they are the
stretch of forward kernels that repeats, and the backward pass of a layer begins where as much of
the backward pass is left as the forward pass took before the layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate as running_sum
from itertools import pairwise

import numpy as np

from perfmodel.base.errors import ScenarioError
from perfmodel.extensions.whatif.drafts import DraftTask, ProgramDraft
from perfmodel.extensions.whatif.editing import Found, split_steps
from perfmodel.extensions.whatif.patterns import LabelPattern
from perfmodel.extensions.whatif.selection import LaneWord, Selection
from perfmodel.graph.ops import Attention, Convolution, Gemm, work_of
from perfmodel.graph.program import PLAIN, Int64s

_FEWEST_KERNELS = 4
"""A repeated stretch of fewer kernels is a loop within a layer."""
_PRODUCTS = (Attention, Convolution, Gemm)
Layer = tuple[list[int], int]
"""Forward kernels of a layer, and the first kernel of its backward pass."""


def replicate(program: ProgramDraft, found: Found, *, before: LabelPattern, prefix: str) -> None:
    """The tasks of a layer run again, with their launches, before those like *before* of it.

    Labels of copies begin with *prefix*.
    """
    back = sorted(set(program.find(Selection(before, LaneWord.COMPUTE))).difference(found))
    named = {_layer_name(program, number) for number in found}
    is_named = any(_layer_name(program, number) in named for number in back)
    layers = _named_layers if is_named else _repeated_layers
    for kernels, user in layers(program, sorted(found), back):
        _repeat(program, kernels, user, prefix)


def _layer_name(program: ProgramDraft, number: int) -> str:
    return program.draft.labels[program.tasks[number].label].split("/")[0]


def _named_layers(program: ProgramDraft, found: list[int], back: list[int]) -> list[Layer]:
    """The layers that labels name."""
    runs: dict[str, tuple[list[list[int]], list[list[int]]]] = {}
    last = None
    is_back = set(back)
    for number in sorted({*found, *back}):
        layer = _layer_name(program, number)
        of_layer = runs.setdefault(layer, ([], []))[number in is_back]
        if last != (layer, number in is_back):
            of_layer.append([])
        of_layer[-1].append(number)
        last = (layer, number in is_back)
    layers: list[Layer] = []
    for layer, (again, users) in runs.items():
        if again and len(again) != len(users):
            raise ScenarioError(
                f"{layer!r}: must run backward as often as forward, but runs forward "
                f"{len(again)} times and backward {len(users)} times. Name the kernels of both "
                "with `forward` and `backward`."
            )
        layers += [(run, used[0]) for run, used in zip(again, users, strict=False)]
    return layers


def _repeated_layers(program: ProgramDraft, found: list[int], back: list[int]) -> list[Layer]:
    """The layers of every step, by what repeats in its forward pass."""
    layers: list[Layer] = []
    for forward, backward in split_steps(found, set(back)):
        words = np.array([program.tasks[one].op for one in forward], dtype=np.int64)
        names = np.array([program.tasks[one].label for one in forward], dtype=np.int64)
        parts = repeated_parts(np.unique(np.stack([words, names]), axis=1, return_inverse=True)[1])
        if not parts:
            raise ScenarioError(
                "no stretch of the forward pass repeats, so its layers are not known. Name the "
                "kernels of each layer with `forward` and `backward`."
            )
        done_ns = list(running_sum(program.duration_ns(one) for one in forward))
        back_ns = list(running_sum(program.duration_ns(one) for one in backward))
        for first, stop in parts:
            left = 1 - done_ns[stop - 1] / max(done_ns[-1], 1)
            user = int(np.searchsorted(back_ns, left * back_ns[-1]))
            needed = _up_to_last_product(program, forward[first:stop])
            layers.append((needed, backward[min(user, len(backward) - 1)]))
    return layers


def _up_to_last_product(program: ProgramDraft, kernels: list[int]) -> list[int]:
    """*kernels* before the last GEMM, whose backward pass needs only what it reads."""
    works = [work_of(program.op(number)) for number in kernels]
    products = [place for place, work in enumerate(works) if isinstance(work, _PRODUCTS)]
    return kernels[: products[-1]] if products and products[-1] else kernels


def repeated_parts(words: Int64s) -> list[tuple[int, int]]:
    """The first place and the one after the last of equal parts that follow each other.

    Of all lengths the one that covers most of *words* counts, and of equal ones the shortest.
    """
    best: tuple[int, int, int] = (0, 0, 0)
    for length in range(_FEWEST_KERNELS, len(words) // 2 + 1):
        is_alike = np.concatenate([[False], words[length:] == words[:-length], [False]])
        edges = np.flatnonzero(np.diff(is_alike.astype(np.int8)))
        starts, stops = edges[::2], edges[1::2]
        if not len(starts):
            continue
        longest = int(np.argmax(stops - starts))
        count = int(stops[longest] - starts[longest]) // length + 1
        if count > 1 and count * length > best[0]:
            best = (count * length, length, int(starts[longest]))
    covered, length, first = best
    return [(at, at + length) for at in range(first, first + covered, length)] if length else []


def _repeat(program: ProgramDraft, run: list[int], before: int, prefix: str) -> None:
    """Insert a copy of the tasks of *run*, with their launches, before a task and its launch."""

    def copy(number: int, at: int) -> DraftTask:
        task, draft = program.tasks[number], program.draft
        label = draft.label(f"{prefix} {draft.labels[task.label]}")
        return DraftTask(program.tasks[at].lane, task.op, label, task.origin)

    launch_before, copy_of = program.launch_of(before), {}
    if launch_before is not None:
        launches = dict.fromkeys(program.launch_of(number) for number in run)
        known = [launch for launch in launches if launch is not None]
        numbers = program.insert(
            [copy(launch, launch_before) for launch in known], before=launch_before
        )
        copy_of = dict(zip(known, numbers, strict=True))
    copies = []
    for number in run:
        copies.append(copy(number, before))
        copies[-1].after = [
            dep._replace(task=copy_of[dep.task])
            for dep in program.tasks[number].after
            if dep.task in copy_of and not dep.distance
        ]
    program.insert(copies, before=before)


def accumulate(program: ProgramDraft, found: Found, *, count: int) -> None:
    """The kernels of each step, and what launches them, run *count* times before its update.

    Collectives are those of the last time.
    """
    for kernels in _stretches(program, found):
        _accumulate_step(program, kernels, count)


def _stretches(program: ProgramDraft, found: Found) -> list[list[int]]:
    """The kernels of every step: neighbours on the lane with most of them."""
    of_lane: dict[int, list[int]] = {}
    for number in sorted(found):
        of_lane.setdefault(program.tasks[number].lane, []).append(number)
    longest = max(of_lane.values(), key=len)
    cuts = [at for at in range(1, len(longest)) if longest[at] != longest[at - 1] + 1]
    ends = [0, *cuts, len(longest)]
    return [longest[first:stop] for first, stop in pairwise(ends)]


def _accumulate_step(program: ProgramDraft, kernels: Sequence[int], count: int) -> None:
    """Repeat *kernels* of one step and the host work that launches them, *count* - 1 times."""
    of_lane = _with_launches(program, kernels)
    hosts = [lane for lane, own in of_lane.items() if not program.kind_of(own[0]).is_device]
    first = {lane: own[0] for lane, own in of_lane.items()}
    ahead: list[int] = []
    for _ in range(count - 1):
        copy_of: dict[int, int] = {}
        for lane, own in of_lane.items():
            copies = [replace(program.tasks[number], after=[]) for number in own]
            numbers = program.insert(copies, before=first[lane])
            copy_of |= dict(zip(own, numbers, strict=True))
        for number, copy in copy_of.items():
            after = program.tasks[number].after
            # What the step itself waits for was there before the first time.
            program.tasks[copy].after = [
                dep._replace(task=copy_of.get(dep.task, dep.task) if not dep.distance else dep.task)
                for dep in after
                if dep.distance or dep.task in copy_of
            ]
        for lane in hosts:
            program.wait_for(copy_of[first[lane]], ahead)
        ahead = [copy_of[of_lane[lane][-1]] for lane in hosts]
    # The script calls forward again when the backward pass has been launched.
    for lane in hosts:
        program.wait_for(first[lane], ahead)


def _with_launches(program: ProgramDraft, kernels: Sequence[int]) -> dict[int, list[int]]:
    """By lane *kernels*, all host work from their first launch to the last, and what it launches.

    Collectives and their launches are left out.
    """
    tasks, waiters = program.tasks, program.waiters()
    members = set(kernels)
    launches = [one for number in kernels if (one := program.launch_of(number)) is not None]
    for lane in {tasks[one].lane for one in launches}:
        of_lane = program.lane_tasks[lane]
        own = {one for one in launches if tasks[one].lane == lane}
        places = [place for place, number in enumerate(of_lane) if number in own]
        for number in of_lane[places[0] : places[-1] + 1]:
            served = [one for one in waiters[number] if program.kind_of(one).is_device]
            plain = [one for one in served if tasks[one].slot == PLAIN]
            if tasks[number].slot == PLAIN and (plain or not served):
                members.update([number, *plain])
    found = {
        lane: [number for number in of_lane if number in members]
        for lane, of_lane in enumerate(program.lane_tasks)
    }
    return {lane: own for lane, own in found.items() if own}
