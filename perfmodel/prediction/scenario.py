"""Scenarios: questions about a workload or a job, complete enough to be asked again.

Two equal scenarios have the same answer to the last byte. The place where the work runs (this
process or Ray) is not part of a scenario, because it cannot change the answer. Each field says how
it is given on the command line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import InitVar, dataclass
from enum import Enum
from typing import Annotated, Any

from perfmodel.base.errors import ScenarioError
from perfmodel.base.options import Option, check_ranges
from perfmodel.base.units import parse_count

DEFAULT_WORKLOAD = "dlrm_dcnv2"
DEFAULT_SAMPLES = 64
MAX_SAMPLES = 10_000


class Mode(Enum):
    """Which time is the answer.

    PERIOD is what an iteration adds once the loop repeats; ISOLATED is one
    iteration that starts with all ranks at a barrier and idle.
    """

    PERIOD = "period"
    ISOLATED = "isolated"


class Interference(Enum):
    """Whether kernels and collectives that overlap slow each other down."""

    COUNTED = "counted"
    LEFT_OUT = "left_out"


Machine = Annotated[
    str,
    Option(metavar="NAME|FILE", help="Machine: a file or a name from `perfmodel topology list`."),
]
Hosts = Annotated[int, Option(metavar="N", min=1, help="Number of hosts, e.g. 16.")]
RanksPerHost = Annotated[
    int | None, Option(metavar="N", min=1, help="Ranks per host, e.g. 4; default: one per GPU.")
]
Overrides = Annotated[
    tuple[str, ...],
    Option(
        name="--set",
        metavar="KEY=VALUE",
        help="Change a workload field, e.g. batch=4096; repeatable.",
    ),
]
TablesFile = Annotated[
    str | None, Option(metavar="FILE", help="Tables instead of the model's: YAML, CSV or JSON.")
]
IndicesFile = Annotated[
    str | None, Option(metavar="FILE", help="Real indices of those tables: npz, parquet or pt.")
]
Stack = Annotated[
    str | None,
    Option(
        metavar="NAME|FILE", help="Software stack, e.g. pytorch_eager; default: the workload's."
    ),
]
Isolated = Annotated[
    Mode,
    Option(
        name="--isolated",
        flag=Mode.ISOLATED,
        help="Predict a single iteration that starts at a barrier, not the steady state.",
    ),
]
Seed = Annotated[int, Option(metavar="N", min=0, help="Seed of all random draws.")]
Samples = Annotated[
    int,
    Option(metavar="N", min=2, help="How often uncertain costs are sampled for the interval."),
]
CalibrationFiles = Annotated[
    tuple[str, ...],
    Option(
        metavar="FILE",
        help="Constants that `calibrate ... --out FILE` fitted to your machine; repeatable.",
    ),
]
Faults = Annotated[
    tuple[str, ...],
    Option(
        name="--fault",
        metavar="FAULT",
        help="What is broken, e.g. 'host:1 gpu:3 nvlink', 'host:0 nic:2 down', "
        "'gpu:0-nvswitch:0 bandwidth=0.5', 'host:* gpu:5 speed=0.9'; repeatable.",
    ),
]
WithoutInterference = Annotated[
    Interference,
    Option(
        name="--no-interference",
        flag=Interference.LEFT_OUT,
        help="Do not model contention between overlapping kernels and collectives.",
    ),
]
LayoutFrom = Annotated[
    str | None,
    Option(
        metavar="FILE",
        help="Layout, batch and training of this file: Megatron-LM arguments, NeMo, torchtitan, "
        "DeepSpeed, or a workload.",
    ),
]


def overrides_of(changes: Mapping[str, Any]) -> tuple[str, ...]:
    """*changes* as they would be typed after `--set`."""
    return tuple(
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in changes.items()
    )


def normalize_lists(question: Any, *plurals: str) -> None:
    """Accept a mapping for the overrides of *question*, and a single value for a list of one."""
    if isinstance(question.overrides, Mapping):
        object.__setattr__(question, "overrides", overrides_of(question.overrides))
    for name in ("overrides", "calibration", "faults", *plurals):
        value = getattr(question, name)
        if isinstance(value, str | int):
            object.__setattr__(question, name, (value,))


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload on a cluster under a software stack.

    *overrides* change fields of the workload, each a text like `batch=4096`; a mapping such as
    `{"batch": 4096}` is accepted too. *ranks_per_host* of None uses every GPU of a host, and
    *stack* of None the stack that the workload names. *samples* is how often uncertain costs are
    sampled for the interval, from *seed*. *tables*, *indices* and *plan* are files that describe
    and place the tables of a recommendation model. *calibration* names files of constants that
    were measured on the machine. *layout_from* names a file whose layout, batch and training
    replace those of the workload. *faults* are what is broken on hosts of the machine. *batch* is
    short for the override of that name.
    """

    topology: Machine
    workload: Annotated[
        str,
        Option(
            metavar="NAME|FILE",
            help="Model: a name (`perfmodel workload list`), a file or a Hugging Face config.json.",
        ),
    ] = DEFAULT_WORKLOAD
    overrides: Overrides = ()
    hosts: Hosts = 1
    ranks_per_host: RanksPerHost = None
    stack: Stack = None
    mode: Isolated = Mode.PERIOD
    seed: Seed = 0
    samples: Samples = DEFAULT_SAMPLES
    tables: TablesFile = None
    indices: IndicesFile = None
    plan: Annotated[
        str | None,
        Option(metavar="FILE", help="Sharding plan as JSON, e.g. from `rank --plan-out`."),
    ] = None
    interference: WithoutInterference = Interference.COUNTED
    calibration: CalibrationFiles = ()
    layout_from: LayoutFrom = None
    faults: Faults = ()
    batch: InitVar[int | None] = None

    def __post_init__(self, batch: int | None) -> None:
        normalize_lists(self)
        if batch is not None:
            object.__setattr__(self, "overrides", (*self.overrides, f"batch={batch}"))
        check_ranges(self, ScenarioError, "scenario", skipped="samples")
        _check_samples(self.samples)


@dataclass(frozen=True, slots=True)
class JobScenario:
    """A job that was imported, emulated or built before, in the folder *job*.

    *topology*, *hosts* and *stack* price jobs made of shapes: *hosts* of None takes as many as the
    ranks fill, *stack* of None the one that the job names, or the default. A recording has
    durations of its own: a *topology* moves it there from the machine that it *was* recorded on
    (by default found by its GPUs). With *force* it is moved even if it replays badly or little of
    its work can be priced. *calibration* names files of constants that were measured on the
    machine, *faults* what is broken there.
    """

    job: Annotated[
        str,
        Option(
            metavar="JOB",
            help="Predict a job instead of a model: a folder that `import` or `save_job` wrote.",
        ),
    ]
    topology: Annotated[
        str | None,
        Option(metavar="NAME|FILE", help="Machine, for jobs of shapes without durations."),
    ] = None
    hosts: Annotated[int | None, Option(metavar="N", min=1, help="Hosts of that machine.")] = None
    stack: Annotated[
        str | None,
        Option(metavar="NAME|FILE", help="Software stack; default: the job's or pytorch_eager."),
    ] = None
    mode: Isolated = Mode.PERIOD
    seed: Seed = 0
    samples: Samples = DEFAULT_SAMPLES
    interference: WithoutInterference = Interference.COUNTED
    calibration: CalibrationFiles = ()
    was: Annotated[
        str | None,
        Option(
            metavar="NAME|FILE",
            help="With --job and --topology: the recorded machine; default: found by its GPUs.",
        ),
    ] = None
    force: Annotated[
        bool, Option(help="With --job and --topology: also answer recordings that are not trusted.")
    ] = False
    faults: Faults = ()

    def __post_init__(self) -> None:
        for name in ("calibration", "faults"):
            if isinstance(value := getattr(self, name), str):
                object.__setattr__(self, name, (value,))
        about_machine = {"hosts": self.hosts, "stack": self.stack, "was": self.was}
        about_machine["calibration"] = " ".join(self.calibration) or None
        about_machine["fault"] = ", ".join(self.faults) or None
        for option, value in about_machine.items():
            if value is not None and self.topology is None:
                raise ScenarioError(
                    f"--{option} {value}: describes a machine, and no machine is named. "
                    "Add --topology, or leave it out."
                )
        check_ranges(self, ScenarioError, "scenario", skipped="samples")
        _check_samples(self.samples)


Tokens = Annotated[
    float | None,
    Option(
        metavar="COUNT",
        parse=parse_count,
        help="Tokens of a whole run, e.g. 300B: also days, money, energy, goodput.",
    ),
]
TrainSamples = Annotated[
    float | None,
    Option(metavar="COUNT", parse=parse_count, help="The same in samples, e.g. 4.2B."),
]
Epochs = Annotated[
    float, Option(metavar="N", min=0.001, help="Passes over those tokens or samples.")
]
PricesFile = Annotated[
    str | None,
    Option(metavar="FILE", help="Prices, failures, power of a run; `init prices` writes one."),
]


@dataclass(frozen=True, slots=True)
class RunQuestion:
    """How long the training goes on, and whose prices and failures count.

    *tokens* or *train_samples* are those of one pass, *epochs* how many passes there are.
    """

    tokens: Tokens = None
    train_samples: TrainSamples = None
    epochs: Epochs = 1.0
    prices: PricesFile = None

    def __post_init__(self) -> None:
        if self.tokens is not None and self.train_samples is not None:
            raise ScenarioError("--tokens and --train-samples say the same. Leave one of them out.")
        if not self.is_asked and (self.epochs != 1.0 or self.prices is not None):
            option = "--prices" if self.prices else "--epochs"
            raise ScenarioError(f"{option}: is about a whole run. Give --tokens COUNT too.")

    def check(self) -> None:
        """Refuse prices that cannot be read before the work, not after it."""
        if self.prices is not None:
            from perfmodel.prediction.whole_run import load_rates  # imports this module

            load_rates(self.prices)

    @property
    def is_asked(self) -> bool:
        """Whether a whole run was asked for."""
        return self.tokens is not None or self.train_samples is not None


def _check_samples(samples: int) -> None:
    """Raise unless *samples* is 0 (no interval) or enough for an interval."""
    if samples < 0 or samples == 1:
        raise ScenarioError(f"scenario: samples must be at least 2, got {samples}.")
    if samples > MAX_SAMPLES:
        raise ScenarioError(
            f"scenario: samples must be at most {MAX_SAMPLES}, got {samples}. "
            "A few hundred are enough for a 90 % interval."
        )
