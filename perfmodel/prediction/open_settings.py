"""Open settings: what nobody stated and decides the answer, each predicted both ways.

A setting is open where neither the user nor the file states it and the framework has no default of
it, or one that does not fit in memory. The likelier value is answered; the interval spans the
others in proportion to their weight. Degrees that are chosen and sizes that are assumed are not
open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.errors import InputError
from perfmodel.graph.job import fit_probability
from perfmodel.prediction.answer import OpenSetting, OpenValue
from perfmodel.prediction.layouts.choosing import spec_of_layouts
from perfmodel.workloads.families import family_of
from perfmodel.workloads.transformer.layout_choice import choose_layout, peak_bytes
from perfmodel.workloads.transformer.spec import TransformerSpec
from perfmodel.workloads.transformer.words import ContextKind, Recompute
from topologies import HostLinkKind

if TYPE_CHECKING:
    from perfmodel.prediction.question import Setting

MOST_BRANCHES = 4
LEAST_WEIGHT = 0.05
"""Values below it are not predicted."""
LEAST_CHANGE = 0.02
"""Settings that move the answer by less are not told."""
_USUAL = 0.8
"""Of runs that state it, the share that recomputes no whole layers."""
_RECOMPUTE = "training.recompute"
_SHARES = (0.25, 0.5, 0.75, 1.0)
_USES = {
    "parallel.cp_kind": ((ContextKind.RING, 0.6), (ContextKind.ALL_TO_ALL, 0.4)),
    "parallel.expert_overlap": ((False, 0.6), (True, 0.4)),
}
"""Values of settings that change no memory, by how many of the runs that state one have it."""


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A value of an open setting, and the question's setting with it."""

    value: str
    weight: float
    fits: bool
    setting: Setting


@dataclass(frozen=True, slots=True, eq=False)
class OpenQuestion:
    """An open setting with its *branches*, the likelier first; *state_with* closes it."""

    name: str
    branches: tuple[Branch, ...]
    state_with: str

    def answered(self, times_ns: Sequence[int]) -> OpenSetting:
        """The setting with the iteration time of each branch."""
        values = tuple(
            OpenValue(one.value, time_ns, one.fits, one.weight)
            for one, time_ns in zip(self.branches, times_ns, strict=True)
        )
        return OpenSetting(self.name, values[0].value, values, self.state_with)


def close_settings(setting: Setting) -> tuple[Setting, tuple[OpenQuestion, ...]]:
    """*setting* with the likelier value of what is open, and the other values."""
    found: list[OpenQuestion] = []
    for open_question in _iter_open(setting):
        spare = MOST_BRANCHES - 1 - sum(len(one.branches) - 1 for one in found)
        branches = open_question.branches[: 1 + spare]
        if len(branches) > 1:
            found.append(replace(open_question, branches=branches))
        if open_question.name == _RECOMPUTE:
            setting = branches[0].setting
    return setting, tuple(found)


def spread_draws(
    drawn_ns: Sequence[float], time_ns: int, answered: OpenSetting
) -> tuple[float, ...]:
    """*drawn_ns* of the likelier value, with as many of each other one as its weight says."""
    draws = np.array(drawn_ns)
    total = sum(one.weight for one in answered.values)
    # Every sample belongs to one value, evenly over their order.
    place = (np.arange(len(draws)) * 0.6180339887498949) % 1.0
    below = 0.0
    for one in answered.values:
        above = below + one.weight / total
        draws[(place >= below) & (place < above)] *= one.iteration_ns / max(time_ns, 1)
        below = above
    return tuple(draws.tolist())


def _iter_open(setting: Setting) -> Iterator[OpenQuestion]:
    if not family_of(setting.workload).has_layouts:
        return
    spec = spec_of_layouts(setting.workload)
    if (recompute := _open_recompute(setting, spec)) is not None:
        yield recompute
        setting = recompute.branches[0].setting
    stated = spec.parallel.model_fields_set
    for name, values in _USES.items():
        field = name.partition(".")[2]
        is_used = spec.parallel.cp > 1 if field == "cp_kind" else spec.parallel.ep > 1
        if field in stated or not is_used:
            continue
        branches = []
        for value, weight in values:
            changed = _changed(setting, "parallel", {field: value})
            if _is_possible(changed):
                word = value.value if isinstance(value, ContextKind) else str(value).lower()
                branches.append(Branch(word, weight, True, changed))
        if len(branches) > 1:
            yield OpenQuestion(name, tuple(branches), f"--set {name}={branches[1].value}")


def _is_possible(setting: Setting) -> bool:
    try:
        _needed_bytes(setting)
    except InputError:
        return False
    return True


def _open_recompute(setting: Setting, spec: TransformerSpec) -> OpenQuestion | None:
    """None, or as few quarters of the layers as fit, where a run without might not fit.

    Where the framework has no default, all layers are the other value of a run that fits.

    Where host memory is near, activations wait there instead.
    """
    training, device = spec.training, setting.cluster.device
    taken = {one.setting for one in setting.defaults_taken}
    fields = {"recompute", "recompute_modules", "saved_outputs", "offload_layers"}
    is_stated = fields & training.model_fields_set and _RECOMPUTE not in taken
    if is_stated or training.recompute is not Recompute.NONE:
        return None
    needed = _needed_bytes(setting)
    odds = fit_probability(needed, device.memory_bytes)
    fits_surely = odds > 1 - LEAST_WEIGHT
    if fits_surely and _RECOMPUTE in taken:
        return None
    is_near = device.host_link.kind is HostLinkKind.NVLINK_C2C and not fits_surely
    for share in (1.0,) if fits_surely else _SHARES:
        changes: dict[str, Any] = {"recompute": Recompute.FULL, "recompute_fraction": share}
        if is_near:
            changes = {"offload_layers": round(share * spec.model.layers)}
        other = _changed(setting, "training", changes)
        other_odds = fit_probability(_needed_bytes(other), device.memory_bytes)
        if other_odds >= 0.5:
            break
    else:
        # Nothing makes it fit: the answer is that of the run as it is.
        return None
    alone = _changed(setting, "training", {"recompute": Recompute.NONE})
    plain, saved = _USUAL * odds, (1 - _USUAL) * other_odds
    words = f"in host memory, {share:.0%} of layers" if is_near else f"full, {share:.0%} of layers"
    branches = [
        Branch("none", plain / (plain + saved), needed <= device.memory_bytes, alone),
        Branch(words, saved / (plain + saved), True, other),
    ]
    branches.sort(key=lambda one: -one.weight)
    kept = tuple(one for one in branches if one.weight >= LEAST_WEIGHT)
    return OpenQuestion(_RECOMPUTE, kept, f"--set {_RECOMPUTE}=none, full, ops or attention")


def _changed(setting: Setting, section: str, changes: dict[str, Any]) -> Setting:
    spec = spec_of_layouts(setting.workload)
    update = {section: getattr(spec, section).model_copy(update=changes)}
    taken = tuple(
        one for one in setting.defaults_taken if one.setting.partition(".")[2] not in changes
    )
    return replace(setting, workload=spec.model_copy(update=update), defaults_taken=taken)


def _needed_bytes(setting: Setting) -> int:
    spec, cluster = spec_of_layouts(setting.workload), setting.cluster
    layout = choose_layout(
        spec,
        rank_count=cluster.rank_count,
        ranks_per_host=cluster.ranks_per_host,
        memory_bytes=cluster.device.memory_bytes,
        stack=setting.stack,
    ).layout
    return peak_bytes(spec, layout, setting.stack)
