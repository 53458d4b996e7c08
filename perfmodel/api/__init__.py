"""The Python door: the same words as the command line, typed.

A scenario goes in and a prediction comes out; where the work runs is said
beside the scenario, because it cannot change the answer. What is heavy is
imported by the function that needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perfmodel.api.about import (
    SchemaKind,
    TemplateKind,
    describe_schema,
    examine_installation,
    init,
)
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
from perfmodel.api.calibrating import (
    calibrate_collectives,
    calibrate_embedding,
    calibrate_host,
    calibrate_interference,
    calibrate_kernels,
    cross_validate,
    leave_out_collectives,
    measure_machine,
)
from perfmodel.api.measured import (
    ask_collective,
    describe_indices,
    price_collective,
    price_kernel,
    sweep_collective,
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
    from embeddings.statistics import DataStatistics as DataStatistics
    from perfmodel.base.dtypes import DType as DType
    from perfmodel.calibration.embedding.fit import EmbeddingFit as EmbeddingFit
    from perfmodel.calibration.interference.command import FittedInterference as FittedInterference
    from perfmodel.calibration.measure.command import MeasuredMachine as MeasuredMachine
    from perfmodel.emulation.request import Emulation as Emulation
    from perfmodel.emulation.summary import EmulatedJob as EmulatedJob
    from perfmodel.graph.job import JobGraph as JobGraph
    from perfmodel.graph.ops import Attention as Attention
    from perfmodel.graph.ops import EmbeddingOp as EmbeddingOp
    from perfmodel.graph.ops import Gemm as Gemm
    from perfmodel.graph.ops import MemoryBound as MemoryBound
    from perfmodel.graph.ops import Pass as Pass
    from perfmodel.planning.layouts.ranking import LayoutRanking as LayoutRanking
    from perfmodel.planning.layouts.ranking import Search as Search
    from perfmodel.planning.question import LayoutQuestion as LayoutQuestion
    from perfmodel.planning.question import RankBy as RankBy
    from perfmodel.planning.question import RankQuestion as RankQuestion
    from perfmodel.planning.ranking import Ranking as Ranking
    from perfmodel.prediction.answer import Answer as Answer
    from perfmodel.prediction.answer import Prediction as Prediction
    from perfmodel.prediction.changing import WhatIf as WhatIf
    from perfmodel.prediction.comparing import Comparison as Comparison
    from perfmodel.recordings.import_files import Imported as Imported
    from perfmodel.recordings.import_files import ImportedJob as ImportedJob
    from perfmodel.recordings.import_files import ImportWishes as ImportWishes
    from perfmodel.reports.collective import CollectiveAnswer as CollectiveAnswer
    from perfmodel.reports.collective import SizeSweep as SizeSweep
    from perfmodel.reports.kernel import KernelAnswer as KernelAnswer
    from perfmodel.stacks.profiles import list_stacks as list_stacks
    from perfmodel.stacks.profiles import load_stack as load_stack
    from perfmodel.stacks.stack import SoftwareStack as SoftwareStack
    from perfmodel.validation.fits import FitBoard as FitBoard
    from perfmodel.validation.scoreboard import Scoreboard as Scoreboard
    from perfmodel.workloads import build_job as build_job
    from perfmodel.workloads import list_workloads as list_workloads
    from perfmodel.workloads import load_workload as load_workload
    from topologies import list_devices as list_devices
    from topologies import list_topologies as list_topologies
    from topologies import load_device as load_device
    from topologies import load_topology as load_topology

_LATE = {
    "Answer": "perfmodel.prediction.answer",
    "Attention": "perfmodel.graph.ops",
    "CollectiveAnswer": "perfmodel.reports.collective",
    "CollectiveCost": "collectives.cost",
    "CollectiveSoftware": "collectives.software",
    "Comparison": "perfmodel.prediction.comparing",
    "DType": "perfmodel.base.dtypes",
    "DataStatistics": "embeddings.statistics",
    "EmbeddingFit": "perfmodel.calibration.embedding.fit",
    "EmbeddingOp": "perfmodel.graph.ops",
    "EmulatedJob": "perfmodel.emulation.summary",
    "Emulation": "perfmodel.emulation.request",
    "FitBoard": "perfmodel.validation.fits",
    "FittedInterference": "perfmodel.calibration.interference.command",
    "Gemm": "perfmodel.graph.ops",
    "ImportWishes": "perfmodel.recordings.import_files",
    "Imported": "perfmodel.recordings.import_files",
    "ImportedJob": "perfmodel.recordings.import_files",
    "JobGraph": "perfmodel.graph.job",
    "KernelAnswer": "perfmodel.reports.kernel",
    "LayoutQuestion": "perfmodel.planning.question",
    "LayoutRanking": "perfmodel.planning.layouts.ranking",
    "MeasuredMachine": "perfmodel.calibration.measure.command",
    "MemoryBound": "perfmodel.graph.ops",
    "Pass": "perfmodel.graph.ops",
    "Prediction": "perfmodel.prediction.answer",
    "RankBy": "perfmodel.planning.question",
    "RankQuestion": "perfmodel.planning.question",
    "Ranking": "perfmodel.planning.ranking",
    "RunPlace": "collectives.nccl_tests",
    "Scoreboard": "perfmodel.validation.scoreboard",
    "Search": "perfmodel.planning.layouts.ranking",
    "SizeSweep": "perfmodel.reports.collective",
    "SoftwareStack": "perfmodel.stacks.stack",
    "WhatIf": "perfmodel.prediction.changing",
    "build_job": "perfmodel.workloads",
    "list_devices": "topologies",
    "list_stacks": "perfmodel.stacks.profiles",
    "list_topologies": "topologies",
    "list_workloads": "perfmodel.workloads",
    "load_device": "topologies",
    "load_stack": "perfmodel.stacks.profiles",
    "load_topology": "topologies",
    "load_workload": "perfmodel.workloads",
}
"""What is imported when somebody names it: what stands behind it takes a second."""

__all__ = [
    "Answer",
    "Attention",
    "CollectiveAnswer",
    "CollectiveCost",
    "CollectiveSoftware",
    "Comparison",
    "DType",
    "DataStatistics",
    "EmbeddingFit",
    "EmbeddingOp",
    "EmulatedJob",
    "Emulation",
    "FitBoard",
    "FittedInterference",
    "Gemm",
    "ImportWishes",
    "Imported",
    "ImportedJob",
    "Interference",
    "JobGraph",
    "JobScenario",
    "KernelAnswer",
    "LayoutQuestion",
    "LayoutRanking",
    "MeasuredMachine",
    "MemoryBound",
    "Mode",
    "Pass",
    "Prediction",
    "RankBy",
    "RankQuestion",
    "Ranking",
    "RunPlace",
    "Scenario",
    "SchemaKind",
    "Scoreboard",
    "Search",
    "SizeSweep",
    "SoftwareStack",
    "TemplateKind",
    "WhatIf",
    "ask_collective",
    "build_job",
    "calibrate_collectives",
    "calibrate_embedding",
    "calibrate_host",
    "calibrate_interference",
    "calibrate_kernels",
    "compare",
    "cross_validate",
    "describe_indices",
    "describe_schema",
    "emulate",
    "examine_installation",
    "import_chakra",
    "import_kineto",
    "import_traces",
    "init",
    "leave_out_collectives",
    "list_devices",
    "list_stacks",
    "list_topologies",
    "list_workloads",
    "load_device",
    "load_job",
    "load_scenario",
    "load_stack",
    "load_topology",
    "load_workload",
    "measure_machine",
    "name_jobs",
    "predict",
    "price_collective",
    "price_kernel",
    "rank",
    "replay",
    "save_job",
    "search",
    "sweep",
    "sweep_collective",
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
