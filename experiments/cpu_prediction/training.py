"""The measured side: the workloads of this experiment as plain torch models, trained for real.

Everything is read from the same workload file that the prediction reads. Ranks are spawned and
wrapped in DistributedDataParallel over gloo; each runs on one thread.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from perfmodel.extensions.measurements.calibration.measure.clock import (
    Timing,
    join_samples,
    sample_cpu,
    sum_up,
)
from perfmodel.extensions.measurements.calibration.measure.collectives import (
    join_group,
    load_samples,
    save_samples,
    spawn_ranks,
)
from perfmodel.workloads.catalog import Workload, load_workload
from perfmodel.workloads.dlrm.spec import DlrmSpec
from perfmodel.workloads.transformer.spec import TransformerSpec


class Dense(nn.Module):
    """Layers before and after a concatenation with pooled rows of a table."""

    def __init__(self, spec: DlrmSpec) -> None:
        super().__init__()
        table = spec.embedding.tables()[0]
        self.table = nn.EmbeddingBag(table.rows, table.width, mode="sum")
        self.bottom = _layers((spec.dense.features, *spec.dense.bottom_mlp))
        self.top = _layers((spec.top_inputs, *spec.dense.top_mlp))

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        """The forward pass."""
        hidden = dense
        for layer in self.bottom:
            hidden = torch.relu(layer(hidden))
        hidden = torch.cat([hidden, self.table(indices)], dim=1)
        for layer in self.top[:-1]:
            hidden = torch.relu(layer(hidden))
        return torch.sigmoid(self.top[-1](hidden))


def _layers(widths: tuple[int, ...]) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(widths))


class Layer(nn.Module):
    """Attention and feed-forward, both after a norm and with a residual."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        hidden = spec.model.hidden
        self.heads = spec.model.heads
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))
        self.qkv, self.projection = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, spec.model.ffn), nn.Linear(spec.model.ffn, hidden)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """The forward pass."""
        batch, length, hidden = tokens.shape
        qkv = self.qkv(self.norms[0](tokens)).view(batch, length, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5 + mask
        mixed = functional.softmax(scores, dim=-1) @ value
        tokens = tokens + self.projection(mixed.transpose(1, 2).reshape(batch, length, hidden))
        return tokens + self.down(functional.gelu(self.up(self.norms[1](tokens))))


class Gpt(nn.Module):
    """A GPT with learned positions and logits tied to the token vectors."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        model = spec.model
        self.tokens = nn.Embedding(model.vocab, model.hidden)
        self.positions = nn.Parameter(torch.zeros(spec.sequence_length, model.hidden))
        self.layers = nn.ModuleList(Layer(spec) for _ in range(model.layers))
        self.norm = nn.LayerNorm(model.hidden)
        length = spec.sequence_length
        mask = torch.full((length, length), float("-inf")).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """The forward pass."""
        hidden = self.tokens(tokens) + self.positions
        for layer in self.layers:
            hidden = layer(hidden, self.mask)
        return functional.linear(self.norm(hidden), self.tokens.weight)


def measure_steps(workload: str, *, batch: int, ranks: int, steps: int) -> Timing:
    """Real training steps of *workload* on *ranks* ranks: the median of the calm half."""
    with tempfile.TemporaryDirectory() as folder:
        spawn_ranks(_train, ranks, (ranks, workload, batch, steps, folder))
        [of_steps] = load_samples(folder, ranks)
    return sum_up([join_samples(of_step) for of_step in of_steps])


def _train(rank: int, ranks: int, workload: str, batch: int, steps: int, folder: str) -> None:
    join_group("cpu", rank, ranks, folder)
    torch.manual_seed(rank)
    spec = load_workload(workload, [f"batch={batch}"])
    step = build_step(spec, ranks)
    save_samples(folder, rank, [[sample_cpu(step, 1) for _ in range(steps + 3)][3:]])
    torch.distributed.destroy_process_group()


def build_step(spec: Workload, ranks: int) -> Callable[[], None]:
    """A call that trains for one step."""
    samples = spec.batch // ranks
    if isinstance(spec, DlrmSpec):
        module: nn.Module = Dense(spec)
        inputs = (torch.randn(samples, spec.dense.features), _indices(spec, samples))
        labels = torch.rand(samples, 1).round()
        loss = functional.binary_cross_entropy
        optimizer: torch.optim.Optimizer = torch.optim.SGD(module.parameters(), 1e-3, fused=True)
        clips = False
    else:
        module = Gpt(spec)
        shape = (samples, spec.sequence_length)
        inputs = (torch.randint(spec.model.vocab, shape),)
        labels = torch.randint(spec.model.vocab, shape).flatten()
        loss = functional.cross_entropy
        optimizer = torch.optim.Adam(module.parameters(), 1e-3, fused=True)
        clips = spec.training.clip_gradients
    bucket_mib = spec.training.bucket_size // 2**20
    model = DistributedDataParallel(module, bucket_cap_mb=bucket_mib) if ranks > 1 else module

    def step() -> None:
        optimizer.zero_grad()
        output = model(*inputs)
        loss(output.flatten(0, -2), labels).backward()
        if clips:
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()

    return step


def _indices(spec: DlrmSpec, samples: int) -> Tensor:
    return torch.randint(spec.embedding.rows[0], (samples, 1))
