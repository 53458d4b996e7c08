"""Execution: where replays run. The place never changes the answer."""

from perfmodel.execution.executor import (
    Executor,
    ExecutorKind,
    OnRound,
    RoundStatus,
    open_executor,
)

__all__ = ["Executor", "ExecutorKind", "OnRound", "RoundStatus", "open_executor"]
