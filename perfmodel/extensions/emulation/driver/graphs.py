"""Graphs: captured once, recorded again at every launch."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch

from perfmodel.extensions.emulation.driver.recorder import Recorder


def watch_graphs(recorder: Recorder) -> None:
    """Record what a graph captures, and record it again whenever the graph is launched."""
    kind: Any = torch.cuda.CUDAGraph
    begin, end, launch = kind.capture_begin, kind.capture_end, kind.replay
    made: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def capture_begin(graph: Any, *args: Any, **words: Any) -> None:
        made[graph] = recorder.stream()
        recorder.begin_capture()
        begin(graph, *args, **words)

    def capture_end(graph: Any) -> None:
        end(graph)
        made[graph] = (made[graph], *recorder.end_capture())

    def replay(graph: Any) -> None:
        recorder.check_running()
        launch(graph)
        stream, calls, steps = made[graph]
        recorder.replay(calls, stream, steps=steps)

    kind.capture_begin, kind.capture_end, kind.replay = capture_begin, capture_end, replay
