"""Inheritance: what tasks wait for once others between them are removed.

Lags and iteration distances add up along the way. A wait that leads only from a removed
task back to itself in earlier iterations is dropped with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from perfmodel.graph.program import Anchor, Dependency

_EXTRA_DISTANCE = 2
"""How many iterations beyond the farthest dependency of a program are followed."""


class Inheritance:
    """The dependencies of a program without its *removed* tasks."""

    def __init__(
        self,
        dependencies: Mapping[int, Sequence[Dependency]],
        lane_tasks: Sequence[Sequence[int]],
        removed: set[int],
    ) -> None:
        self._dependencies = dependencies
        self._removed = removed
        self._place: dict[int, tuple[int, int]] = {}
        self._previous: dict[int, Dependency] = {}
        for lane, of_lane in enumerate(lane_tasks):
            for place, number in enumerate(of_lane):
                self._place[number] = (lane, place)
                # The first task of a lane follows the last one of the previous iteration.
                self._previous[number] = Dependency(of_lane[place - 1], distance=0 if place else 1)
        distances = (dep.distance for deps in dependencies.values() for dep in deps)
        self._farthest = max(distances, default=0) + _EXTRA_DISTANCE
        self._known: dict[int, list[Dependency]] = {}

    def dependencies_of(self, number: int) -> list[Dependency]:
        """What the kept task *number* waits for, directly."""
        own = self._dependencies[number]
        kept = [dep for dep in own if dep.task not in self._removed]
        lost = [dep for dep in (*own, self._previous[number]) if dep.task in self._removed]
        if not lost:
            return kept
        inherited = [dep for dep in self._follow(lost) if not self._is_lane_order(dep, number)]
        return kept + [dep for dep in inherited if dep not in kept]

    def _follow(self, lost: Sequence[Dependency]) -> list[Dependency]:
        """Kept tasks that *lost* dependencies on removed ones lead to."""
        found: list[Dependency] = []
        while lost:
            reached = [
                further
                for dep in lost
                for next_dep in self._behind(dep.task)
                if (further := _extend(dep, next_dep)).distance <= self._farthest
            ]
            found += [dep for dep in reached if dep.task not in self._removed]
            lost = self._strongest(dep for dep in reached if dep.task in self._removed)
        return self._strongest(found)

    def _behind(self, removed: int) -> list[Dependency]:
        """What a removed task waits for: kept tasks, or removed ones of earlier iterations."""
        stack = [removed]
        while stack:
            number = stack[-1]
            waits = [*self._dependencies[number], self._previous[number]]
            # Within an iteration there is no cycle, so following these comes to an end.
            followed = [dep for dep in waits if dep.task in self._removed and not dep.distance]
            unknown = [dep.task for dep in followed if dep.task not in self._known]
            if unknown:
                stack.extend(unknown)
                continue
            stack.pop()
            reached: list[Dependency] = []
            for dep in waits:
                if dep in followed:
                    reached += [_extend(dep, further) for further in self._known[dep.task]]
                else:
                    reached.append(dep)
            self._known[number] = self._strongest(reached)
        return self._known[removed]

    def _strongest(self, deps: Iterable[Dependency]) -> list[Dependency]:
        """Of dependencies on one lane, those that no later one with as much lag makes idle."""
        by_lane: dict[tuple[int, Anchor], list[Dependency]] = {}
        for dep in deps:
            by_lane.setdefault((self._place[dep.task][0], dep.anchor), []).append(dep)
        strongest = []
        for of_lane in by_lane.values():
            of_lane.sort(key=lambda dep: (dep.distance, -self._place[dep.task][1], -dep.lag_ns))
            lag_ns = -1
            for dep in of_lane:
                if dep.lag_ns > lag_ns:
                    strongest.append(dep)
                    lag_ns = dep.lag_ns
        return strongest

    def _is_lane_order(self, dep: Dependency, number: int) -> bool:
        """Whether *dep* says no more than that a lane runs its tasks in order."""
        lane, place = self._place[number]
        other_lane, other_place = self._place[dep.task]
        is_earlier = dep.distance > 0 or other_place < place
        return lane == other_lane and is_earlier and dep.lag_ns == 0


def _extend(dep: Dependency, further: Dependency) -> Dependency:
    """*further* as seen by a task that waits for its waiter through *dep*."""
    return further._replace(
        lag_ns=further.lag_ns + dep.lag_ns, distance=further.distance + dep.distance
    )
