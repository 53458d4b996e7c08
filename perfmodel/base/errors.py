"""Every error perfmodel raises on purpose, as one tree.

    PerfModelError
    ├── InputError              something handed in is wrong
    │   ├── UnitError           a quantity without unit, or with an unknown one
    │   ├── TopologyError       a machine description
    │   ├── WorkloadError       a model specification
    │   ├── ScenarioError       a question that does not fit together
    │   ├── PlanError           a sharding plan
    │   ├── TraceError          a recorded trace
    │   ├── EmulationError      a script that cannot be emulated
    │   ├── MeasurementError    a table of measurements
    │   └── CalibrationError    a file of fitted constants
    ├── GraphError              a job graph that cannot run
    │   └── ReplayStalledError  ... found out while replaying it
    ├── OutputError             a file or folder that cannot be written
    └── ExecutionError          the place where replays run failed

A message says where, the rule, what was there, and what to do.
"""

from __future__ import annotations


class PerfModelError(Exception):
    """Base of all errors that a person can do something about."""


class InputError(PerfModelError):
    """Something handed in is wrong."""


class UnitError(InputError):
    """A quantity has no unit, an unknown one, or one of another dimension."""


class TopologyError(InputError):
    """A machine description is wrong."""


class WorkloadError(InputError):
    """A model specification is wrong."""


class ScenarioError(InputError):
    """The parts of a question do not fit together."""


class PlanError(InputError):
    """A sharding plan is wrong."""


class TraceError(InputError):
    """A recorded trace cannot be read or understood."""


class EmulationError(InputError):
    """A script cannot be emulated, or its ranks do not fit together."""


class MeasurementError(InputError):
    """A table of measurements is wrong."""


class CalibrationError(InputError):
    """A file of fitted constants is wrong, or a fit is impossible."""


class GraphError(PerfModelError):
    """A job graph cannot run."""


class ReplayStalledError(GraphError):
    """A replay can go no further although tasks are left."""


class ExecutionError(PerfModelError):
    """The place where replays run failed."""


class OutputError(PerfModelError):
    """A file or folder cannot be written."""
