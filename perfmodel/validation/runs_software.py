"""Software of measured runs: which profile a row's words stand for, and what it does unasked.

Empty cells of a row take what is said here, and every answer that rests on
such a default says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum

from perfmodel.base.dtypes import DType
from perfmodel.base.errors import WorkloadError
from perfmodel.stacks.stack import SoftwareStack
from perfmodel.validation.runs_table import RunRow


class GradientFormat(Enum):
    """What gradients are kept and reduced in."""

    FP32 = "fp32"
    AS_COMPUTED = "as computed"


@dataclass(frozen=True, slots=True)
class SoftwareRule:
    """What a framework does by default.

    *words* is a pattern for the column `software`, *profile* names the stack. *further* are words
    that must also stand in the column `overlap`. With *reduces_in_one_piece* gradients are not cut
    into buckets. With *reads_loss* the host waits for every iteration. With *steps* the optimizer
    was timed too. *load_ms* is what its loader takes for a batch, and *load_us_per_sample* what it
    takes more for each sample of all ranks. With *copies_small_tables* tables that a row calls
    data-parallel stand on every rank.
    """

    words: str
    profile: str
    gradients: GradientFormat = GradientFormat.FP32
    has_dropout: bool = False
    reduces_in_one_piece: bool = False
    reads_loss: bool = True
    steps: bool = True
    load_ms: float = 0.0
    load_us_per_sample: float = 0.0
    copies_small_tables: bool = True
    further: str = ""

    def fits(self, row: RunRow) -> bool:
        """Whether *row* ran under this software."""
        is_named = re.search(self.words, row.text("software")) is not None
        return is_named and self.further in row.text("overlap")


RULES: tuple[SoftwareRule, ...] = (
    SoftwareRule("nanotron", "nanotron"),
    SoftwareRule("bigscience", "megatron_deepspeed", has_dropout=True, reduces_in_one_piece=True),
    SoftwareRule(
        "Megatron-DeepSpeed",
        "megatron_deepspeed",
        GradientFormat.AS_COMPUTED,
        has_dropout=True,
        reduces_in_one_piece=True,
    ),
    SoftwareRule("Bridge", "nemo"),
    SoftwareRule("NeMo", "nemo"),
    SoftwareRule(
        "Megatron-LM",
        "megatron_lm",
        GradientFormat.AS_COMPUTED,
        has_dropout=True,
        reduces_in_one_piece=True,
    ),
    SoftwareRule("llm-foundry", "llm_foundry"),
    SoftwareRule("torchtitan", "torchtitan_compiled", further="torch.compile"),
    SoftwareRule("torchtitan", "torchtitan"),
    SoftwareRule("HF eager", "pytorch_hf", has_dropout=True, reads_loss=False, steps=False),
    SoftwareRule(
        r"(?i)hugectr.* Release 20\.",
        "hugectr_2020",
        reads_loss=False,
        copies_small_tables=False,
    ),
    SoftwareRule(r"(?i)hugectr.* Release 21\.", "hugectr_2021", reads_loss=False),
    SoftwareRule(r"(?i)hugectr.* Release|merlin", "hugectr", reads_loss=False),
    SoftwareRule(r"(?i)hugectr", "hugectr_hash", reads_loss=False),
    SoftwareRule("TorchRec", "torchrec", load_ms=8.9, load_us_per_sample=0.537),
    SoftwareRule("PyTorch NVIDIA Release", "ngc_dlrm", reads_loss=False),
    SoftwareRule("PyTorch NGC container", "ngc_dlrm", reads_loss=False),
    SoftwareRule("NGC", "ngc_pytorch", GradientFormat.AS_COMPUTED, has_dropout=True),
    SoftwareRule("PyTorch", "pytorch_fused"),
    SoftwareRule("torch", "pytorch_fused"),
)
"""First rule that fits a row."""


@dataclass(frozen=True, slots=True)
class Precision:
    """What numbers are kept in, and what products are computed in where that differs."""

    stored: DType
    multiplied: DType | None = None


_PRECISIONS: tuple[tuple[str, Precision], ...] = (
    (r"fp8|float8|mxfp8", Precision(DType.BF16, DType.FP8)),
    (r"bf16", Precision(DType.BF16)),
    (r"fp16|amp|mixed", Precision(DType.FP16)),
    (r"tf32 setting not stated", Precision(DType.FP32)),
    (r"tf32", Precision(DType.FP32, DType.TF32)),
    (r"fp32", Precision(DType.FP32)),
)
"""First pattern found in a row's precision."""


def find_rule(row: RunRow) -> SoftwareRule:
    """The rule for the software of *row*; raises where there is none."""
    software = row.text("software")
    rule = next((rule for rule in RULES if rule.fits(row)), None)
    if rule is None:
        raise WorkloadError(f"software {software!r} has no profile")
    return rule


def read_precision(row: RunRow) -> Precision:
    """The number formats of *row*."""
    text = row.text("precision").lower()
    found = next((one for pattern, one in _PRECISIONS if re.search(pattern, text)), None)
    if found is None:
        raise WorkloadError(f"precision {row.text('precision')!r} is not known")
    return found


def with_precision(stack: SoftwareStack, precision: Precision) -> SoftwareStack:
    """*stack* with products computed as *precision* says, whatever it does unasked."""
    multiplied = precision.multiplied or precision.stored
    return replace(stack, matmul_dtypes={precision.stored: multiplied})
