"""The families of models that perfmodel knows, by the `family` of their files."""

from __future__ import annotations

from typing import Any

from perfmodel.workloads.dlrm.family import DlrmFamily
from perfmodel.workloads.family import Family
from perfmodel.workloads.fields import Workload
from perfmodel.workloads.transformer.family import TransformerFamily

FAMILIES: dict[str, Family[Any]] = {
    "transformer": TransformerFamily(),
    "dlrm": DlrmFamily(),
}


def family_of(workload: Workload) -> Family[Any]:
    """The family of *workload*."""
    return FAMILIES[workload.family]
