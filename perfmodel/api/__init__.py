"""The Python door: the same words as the command line, typed.

A scenario goes in and a prediction comes out; where the work runs is said
beside the scenario, because it cannot change the answer. What is heavy is
imported by the function that needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perfmodel.api.asking import (
    compare,
    load_scenario,
    name_jobs,
    predict,
    rank,
    replay,
    search,
    sweep,
    whatif,
)
from perfmodel.api.measured import (
    calibrate_collectives,
    calibrate_kernels,
    describe_indices,
    price_collective,
    price_kernel,
    validate,
    validate_fits,
    validate_runs,
)
from perfmodel.api.recorded import (
    emulate,
    import_chakra,
    import_kineto,
    import_traces,
    load_job,
    save_job,
    trace_chakra,
    trace_diff,
    trace_extract,
    trace_stats,
)
from perfmodel.prediction.scenario import Interference, JobScenario, Mode, Scenario

if TYPE_CHECKING:
    from collectives.cost import CollectiveCost as CollectiveCost
    from collectives.nccl_tests import RunPlace as RunPlace
    from collectives.software import CollectiveSoftware as CollectiveSoftware
    from perfmodel.base.dtypes import DType as DType
    from perfmodel.emulation.request import Emulation as Emulation
    from perfmodel.graph.job import JobGraph as JobGraph
    from perfmodel.graph.ops import Attention as Attention
    from perfmodel.graph.ops import EmbeddingOp as EmbeddingOp
    from perfmodel.graph.ops import Gemm as Gemm
    from perfmodel.graph.ops import MemoryBound as MemoryBound
    from perfmodel.graph.ops import Pass as Pass
    from perfmodel.planning.layouts.search import LayoutQuestion as LayoutQuestion
    from perfmodel.planning.layouts.search import LayoutRanking as LayoutRanking
    from perfmodel.planning.layouts.search import Search as Search
    from perfmodel.planning.question import RankQuestion as RankQuestion
    from perfmodel.planning.ranking import Ranking as Ranking
    from perfmodel.prediction.answer import Answer as Answer
    from perfmodel.prediction.answer import Prediction as Prediction
    from perfmodel.prediction.changing import WhatIf as WhatIf
    from perfmodel.prediction.comparing import Comparison as Comparison
    from perfmodel.recordings.import_files import ImportedJob as ImportedJob
    from perfmodel.reports.kernel import KernelAnswer as KernelAnswer
    from perfmodel.validation.fits import FitBoard as FitBoard
    from perfmodel.validation.scoreboard import Scoreboard as Scoreboard
    from perfmodel.workloads import build_job as build_job
    from perfmodel.workloads import load_workload as load_workload
    from topologies import load_topology as load_topology

_LATE = {
    "Answer": "perfmodel.prediction.answer",
    "Attention": "perfmodel.graph.ops",
    "CollectiveCost": "collectives.cost",
    "CollectiveSoftware": "collectives.software",
    "Comparison": "perfmodel.prediction.comparing",
    "DType": "perfmodel.base.dtypes",
    "EmbeddingOp": "perfmodel.graph.ops",
    "Emulation": "perfmodel.emulation.request",
    "FitBoard": "perfmodel.validation.fits",
    "Gemm": "perfmodel.graph.ops",
    "ImportedJob": "perfmodel.recordings.import_files",
    "JobGraph": "perfmodel.graph.job",
    "KernelAnswer": "perfmodel.reports.kernel",
    "LayoutQuestion": "perfmodel.planning.layouts.search",
    "LayoutRanking": "perfmodel.planning.layouts.search",
    "MemoryBound": "perfmodel.graph.ops",
    "Pass": "perfmodel.graph.ops",
    "Prediction": "perfmodel.prediction.answer",
    "RankQuestion": "perfmodel.planning.question",
    "Ranking": "perfmodel.planning.ranking",
    "RunPlace": "collectives.nccl_tests",
    "Scoreboard": "perfmodel.validation.scoreboard",
    "Search": "perfmodel.planning.layouts.search",
    "WhatIf": "perfmodel.prediction.changing",
    "build_job": "perfmodel.workloads",
    "load_topology": "topologies",
    "load_workload": "perfmodel.workloads",
}
"""What is imported when somebody names it: what stands behind it takes a second."""

__all__ = [
    "Answer",
    "Attention",
    "CollectiveCost",
    "CollectiveSoftware",
    "Comparison",
    "DType",
    "EmbeddingOp",
    "Emulation",
    "FitBoard",
    "Gemm",
    "ImportedJob",
    "Interference",
    "JobGraph",
    "JobScenario",
    "KernelAnswer",
    "LayoutQuestion",
    "LayoutRanking",
    "MemoryBound",
    "Mode",
    "Pass",
    "Prediction",
    "RankQuestion",
    "Ranking",
    "RunPlace",
    "Scenario",
    "Scoreboard",
    "Search",
    "WhatIf",
    "build_job",
    "calibrate_collectives",
    "calibrate_kernels",
    "compare",
    "describe_indices",
    "emulate",
    "import_chakra",
    "import_kineto",
    "import_traces",
    "load_job",
    "load_scenario",
    "load_topology",
    "load_workload",
    "name_jobs",
    "predict",
    "price_collective",
    "price_kernel",
    "rank",
    "replay",
    "save_job",
    "search",
    "sweep",
    "trace_chakra",
    "trace_diff",
    "trace_extract",
    "trace_stats",
    "validate",
    "validate_fits",
    "validate_runs",
    "whatif",
]


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
