"""The table of mixers, by the word that patterns use."""

from __future__ import annotations

from perfmodel.workloads.transformer.mixers.mixer import NoMixer, SequenceMixer
from perfmodel.workloads.transformer.mixers.recurrent import DeltaRule, StateSpace
from perfmodel.workloads.transformer.mixers.softmax import (
    LatentAttention,
    SoftmaxAttention,
    SparseAttention,
)
from perfmodel.workloads.transformer.words import Mixer

MIXERS: dict[Mixer, SequenceMixer] = {
    Mixer.FULL: SoftmaxAttention(),
    Mixer.WINDOWED: SoftmaxAttention(),
    Mixer.LATENT: LatentAttention(),
    Mixer.SPARSE: SparseAttention(),
    Mixer.LINEAR: DeltaRule(),
    Mixer.STATE_SPACE: StateSpace(),
    Mixer.NONE: NoMixer(),
}
