"""Folding: ranks with identical behaviour are replayed once.

Ranks are classified by program and durations, then by the classes in their groups, until nothing
changes (colour refinement). Ranks of a class then have equal times to the nanosecond, so one
represents all: a rendezvous starts when the last member is ready, however many there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.engine.layout import Int64s
from perfmodel.graph.durations import DurationTable
from perfmodel.graph.job import NO_GROUP, Endpoints, Group, JobGraph


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """A job with one rank per class: rank c represents the ranks `class_ranks[c]`, lowest first."""

    job: JobGraph
    durations: DurationTable
    class_ranks: tuple[tuple[int, ...], ...]


def fold(job: JobGraph, durations: DurationTable) -> Folded:
    """Fold the ranks of *job* that are equal under *durations*."""
    endpoints = job.endpoints()
    colours = _first_colours(job, durations)
    while True:
        group_colours = _colour_groups(job, endpoints, colours)
        # Ranks by their colour so far and the colours of their groups, slot by slot.
        padded = np.append(group_colours, NO_GROUP)
        rows = np.column_stack([colours, padded[job.rank_group]])
        refined = _number(row.tobytes() for row in np.ascontiguousarray(rows))
        if refined.max() == colours.max():
            break
        colours = refined
    # Colours are numbered in order of appearance, so they are the classes.
    order = np.argsort(colours, kind="stable")
    classes = np.split(order, np.cumsum(np.bincount(colours))[:-1])
    representative = np.array([ranks[0] for ranks in classes])
    return Folded(
        job=_folded_job(job, representative, colours, group_colours),
        durations=durations.of_ranks(representative),
        class_ranks=tuple(tuple(ranks.tolist()) for ranks in classes),
    )


def _first_colours(job: JobGraph, durations: DurationTable) -> Int64s:
    """Ranks by program, durations and used slots; numbered in order of appearance."""
    rows: dict[tuple[int, int], bytes] = {}
    keys = []
    used = job.rank_group != NO_GROUP
    for rank in range(job.rank_count):
        place = (int(durations.rank_offset[rank]), int(job.rank_program[rank]))
        if place not in rows:
            rows[place] = durations.fingerprint_of(job, rank)
        keys.append((place[1], rows[place], used[rank].tobytes()))
    return _number(keys)


def _colour_groups(job: JobGraph, endpoints: Endpoints, colours: Int64s) -> Int64s:
    """Groups by the set of (colour, slot) of their endpoints."""
    codes = colours[endpoints.rank] * job.rank_group.shape[1] + endpoints.slot
    bounds = endpoints.group_start
    return _number(
        np.unique(codes[bounds[group] : bounds[group + 1]]).tobytes()
        for group in range(len(job.groups))
    )


def _number(keys: Iterable[Hashable]) -> Int64s:
    """Number the keys in order of appearance; equal keys get equal numbers."""
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(key, len(seen)) for key in keys], dtype=np.int64)


def _folded_job(
    job: JobGraph, representative: Int64s, class_of_rank: Int64s, group_colours: Int64s
) -> JobGraph:
    padded = np.append(group_colours, NO_GROUP)
    rank_group = padded[job.rank_group[representative]].astype(np.int32)
    _, first_of_colour = np.unique(group_colours, return_index=True)
    groups = tuple(
        Group(
            job.groups[int(first)].name,
            tuple(sorted({int(class_of_rank[rank]) for rank in job.groups[int(first)].ranks})),
        )
        for first in first_of_colour
    )
    return replace(
        job, rank_program=job.rank_program[representative], groups=groups, rank_group=rank_group
    )
