"""Fields that every workload file has, and the base of its sections."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from perfmodel.base.fields import Count, Duration, Switch, Words


class SpecSection(BaseModel):
    """A mapping in a workload file: unknown keys are refused and values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class InputSection(SpecSection):
    """How batches get to the GPU.

    *prefetch* copies the next batch while this one is worked on. *load_time*
    is what the loader needs for a batch, with room for two finished batches;
    without it batches are ready when asked for.
    """

    prefetch: Switch = True
    load_time: Duration | None = None


class Workload(SpecSection):
    """What every workload states; those of the catalog describe themselves and name a source.

    *assumed* are sentences that every answer repeats; one that begins with a field and a colon is
    dropped when the question states that field. *unknown_keys* are those of the file of another
    program that it was read from. With *compiled* a compiler fuses what the stack runs eagerly.
    """

    name: Words
    description: Words = "not described"
    source: Words = "not stated"
    assumed: tuple[Words, ...] = ()
    unknown_keys: tuple[Words, ...] = ()
    stack: Words = "pytorch_fused"
    batch: Count
    input: InputSection = InputSection()
    sync_each_iteration: Switch = False
    compiled: Switch = False
    family: Words
