"""The Python door: the same words as the command line, typed.

A scenario goes in and a prediction comes out; where the work runs is said
beside the scenario, because it cannot change the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.execution import open_executor
from perfmodel.prediction.answer import Prediction
from perfmodel.prediction.phases import OnPhase, ignore_phase
from perfmodel.prediction.predict import predict_scenario
from perfmodel.prediction.scenario import Mode, Scenario

if TYPE_CHECKING:
    from perfmodel.planning.question import RankQuestion
    from perfmodel.planning.ranking import Ranking

__all__ = ["Mode", "Prediction", "Scenario", "predict", "rank"]


def predict(
    scenario: Scenario,
    *,
    executor: str = "auto",
    workers: int | None = None,
    ray_address: str | None = None,
    on_phase: OnPhase = ignore_phase,
) -> Prediction:
    """Answer *scenario*, on this machine or on Ray; the place does not change the answer.

    *on_phase* is told which phase begins and which share of the work is done.
    """
    with open_executor(executor, workers=workers, address=ray_address) as place:
        return predict_scenario(scenario, executor=place, on_phase=on_phase)


def rank(
    question: RankQuestion,
    *,
    executor: str = "serial",
    workers: int | None = None,
    ray_address: str | None = None,
    on_phase: OnPhase = ignore_phase,
) -> Ranking:
    """Order the sharding plans that *question* asks about, fastest first."""
    # Imported here: predictions need nothing of planning.
    from perfmodel.planning.rank_plans import rank_plans

    with open_executor(executor, workers=workers, address=ray_address) as place:
        return rank_plans(question, executor=place, on_phase=on_phase)
