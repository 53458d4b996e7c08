"""RunQuestion: a measured run as the question that `predict` is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perfmodel.prediction.question import Asked, Question, workload_question
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.validation.runs_dlrm import build_dlrm_spec
from perfmodel.validation.runs_machines import build_machine
from perfmodel.validation.runs_software import find_rule, read_precision, with_precision
from perfmodel.validation.runs_table import RunFamily, RunRow
from perfmodel.validation.runs_transformer import build_transformer_spec


@dataclass(frozen=True, slots=True)
class RunSetting:
    """What all rows share: the kind of table and the software stacks by name."""

    family: RunFamily
    stacks: Mapping[str, SoftwareStack]


def build_question(setting: RunSetting, row: RunRow) -> Question:
    """The question that *row* is; raises an InputError where it cannot be asked."""
    rule = find_rule(row)
    machine = build_machine(row)
    stack = with_precision(setting.stacks[rule.profile], read_precision(row))
    sentences = list(machine.assumptions)
    is_dlrm = setting.family is RunFamily.DLRM
    build = build_dlrm_spec if is_dlrm else build_transformer_spec
    workload = build(row, rule, sentences)
    return workload_question(
        workload,
        cluster=machine.cluster,
        stack=stack,
        asked=Asked(is_explained=False),
        assumptions=tuple(sentences),
    )
