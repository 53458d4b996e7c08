"""A measured run as the setting of a question for `predict`."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.base.dtypes import DType
from perfmodel.prediction.question import PredictOptions, Setting
from perfmodel.stacks.capabilities import Family, Fusion
from perfmodel.stacks.profiles import choose_stack
from perfmodel.validation.runs_machines import build_machine
from perfmodel.validation.runs_table import RunRow
from perfmodel.validation.runs_workloads import build_dlrm_spec, build_transformer_spec
from perfmodel.workloads.catalog import Workload
from perfmodel.workloads.transformer.layout_choice import ChosenLayout, choose_layout, peak_bytes
from perfmodel.workloads.transformer.spec import TransformerSpec
from perfmodel.workloads.transformer.words import Recompute
from topologies import HostLinkKind

_STATES_RECOMPUTE = (
    "recompute", "recompute_modules", "offload_layers", "ep_overlap", "cuda_graph",
)  # fmt: skip
"""Columns that are only stated if the configuration of a run is known. Such a run recomputes
only what it states."""
_NAMED = 8
"""Columns that a sentence names."""
_FAR_BEYOND = 1.2
"""Memory needs are known to about a fifth: a run that needs less than this may have fitted."""


def read_setting(
    row: RunRow, asked: PredictOptions | None = None, *, calibration: tuple[str, ...] = ()
) -> Setting:
    """The workload, cluster and stack of *row*; raises an InputError if they cannot be read."""
    row.check()
    sentences: list[str] = []
    if row.unread:
        more = f" and {len(row.unread) - _NAMED} more" if len(row.unread) > _NAMED else ""
        sentences.append(f"Columns that are not read: {', '.join(row.unread[:_NAMED])}{more}.")
    cluster = build_machine(row, sentences, calibration)
    chosen = choose_stack(
        row.text("framework"),
        release=row.text("release"),
        family=row.family,
        placement=row.text("placement"),
    )
    sentences += chosen.assumptions
    stack = chosen.stack.with_compiling() if row.value("compiled") else chosen.stack
    if row.family is Family.DLRM and (kernel := row.meaning("interaction_kernel")):
        fused = stack.fusions | {Fusion.INTERACTION}
        stack = replace(
            stack, fusions=fused if kernel["interaction"] else fused - {Fusion.INTERACTION}
        )
    is_tf32 = row.text("compute_precision") == DType.TF32.value
    stack = replace(stack, matmul_dtypes={DType.FP32: DType.TF32 if is_tf32 else DType.FP32})
    build_spec = build_dlrm_spec if row.family is Family.DLRM else build_transformer_spec
    workload: Workload = build_spec(row, stack, sentences)
    setting = Setting(workload, cluster, stack, asked or PredictOptions())
    if not any(map(row.text, _STATES_RECOMPUTE)):
        setting = _with_recompute(setting, sentences)
    return replace(setting, assumptions=tuple(sentences))


def _with_recompute(setting: Setting, sentences: list[str]) -> Setting:
    """*setting* with as many quarters of its layers recomputed as it needs to fit.

    A measured run did fit. If recomputation is not stated and the activations far exceed the
    memory, some layers must have been recomputed; where host memory is near, their activations
    wait there instead.
    """
    spec, device = setting.workload, setting.cluster.device
    if not isinstance(spec, TransformerSpec):
        return setting
    if _needed_bytes(spec, setting) <= device.memory_bytes * _FAR_BEYOND:
        return setting
    is_near = device.host_link.kind is HostLinkKind.NVLINK_C2C
    for share in (0.25, 0.5, 0.75, 1.0):
        changes: dict[str, object] = {
            "recompute": Recompute.FULL,
            "recompute_fraction": share,
        }
        words = "run does not fit without it; assumed in"
        if is_near:
            changes = {"offload_layers": round(share * spec.model.layers)}
            words = "run does not fit; activations are assumed to wait in host memory in"
        training = spec.training.model_copy(update=changes)
        tried = spec.model_copy(update={"training": training})
        if _needed_bytes(tried, setting) <= device.memory_bytes:
            sentences.append(
                f"Recomputation is not stated, but the {words} {share:.0%} of the layers."
            )
            return replace(setting, workload=tried)
    return setting


def _needed_bytes(spec: TransformerSpec, setting: Setting) -> int:
    return peak_bytes(spec, layout_of(spec, setting).layout, setting.stack)


def layout_of(spec: TransformerSpec, setting: Setting) -> ChosenLayout:
    """The layout of *spec* on the cluster and under the stack of *setting*."""
    cluster = setting.cluster
    return choose_layout(
        spec,
        rank_count=cluster.rank_count,
        ranks_per_host=cluster.ranks_per_host,
        memory_bytes=cluster.device.memory_bytes,
        stack=setting.stack,
    )
