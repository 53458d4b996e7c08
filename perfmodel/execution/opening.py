"""Opening an executor: by the word for its kind, for as long as a `with` block lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass

from perfmodel.base.errors import InputError
from perfmodel.execution.auto import AutoExecutor
from perfmodel.execution.executor import Executor, ExecutorKind, OnRound, ignore_round
from perfmodel.execution.ray_surroundings import core_count, quiet
from perfmodel.execution.serial import SerialExecutor


@dataclass(frozen=True, slots=True)
class Place:
    """Where to run, as far as it was said."""

    workers: int | None
    address: str | None
    on_round: OnRound


def open_executor(
    kind: ExecutorKind | str = ExecutorKind.AUTO,
    *,
    workers: int | None = None,
    address: str | None = None,
    on_round: OnRound = ignore_round,
) -> AbstractContextManager[Executor]:
    """The executor of that *kind*, closed at the end of the `with` block.

    *workers* defaults to the cores of this machine or of the cluster at
    *address*. *on_round* hears of every round of a replay on Ray.
    """
    words = [known.value for known in ExecutorKind]
    if kind not in words and not isinstance(kind, ExecutorKind):
        raise InputError(f"executor: must be one of {', '.join(words)}, got {kind!r}.")
    if workers is not None and workers < 1:
        raise InputError(f"workers: must be 1 or more, got {workers}.")
    return OPENERS[ExecutorKind(kind)](Place(workers, address, on_round))


@contextmanager
def _open_serial(place: Place) -> Iterator[Executor]:
    if place.address is not None or (place.workers or 1) > 1:
        raise InputError(
            "executor serial: works in this process alone, and takes neither several workers nor "
            "the address of a cluster. Say --executor ray, or leave those out."
        )
    yield SerialExecutor()


@contextmanager
def _open_ray(place: Place) -> Iterator[Executor]:
    with quiet():
        # Imported here: it takes half a second, and most questions never need it.
        from perfmodel.execution.ray_cluster import open_cluster
        from perfmodel.execution.ray_executor import RayExecutor

        with open_cluster(workers=place.workers, address=place.address) as cluster:
            executor = RayExecutor(cluster, on_round=place.on_round)
            with closing(executor):
                yield executor


@contextmanager
def _open_auto(place: Place) -> Iterator[Executor]:
    with ExitStack() as opened:
        if place.address is not None:
            yield opened.enter_context(_open_ray(place))
            return
        yield AutoExecutor(
            lambda: opened.enter_context(_open_ray(place)), workers=place.workers or core_count()
        )


OPENERS: dict[ExecutorKind, Callable[[Place], AbstractContextManager[Executor]]] = {
    ExecutorKind.AUTO: _open_auto,
    ExecutorKind.SERIAL: _open_serial,
    ExecutorKind.RAY: _open_ray,
}
"""Every kind of executor and how it is opened."""
