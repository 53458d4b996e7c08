"""GPT-2 124M and ResNet-50 as people train them, one switch per optimisation."""

import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """A layer of a Transformer, recomputed in the backward pass where asked for."""

    def __init__(self, width: int, heads: int, recompute: bool) -> None:
        super().__init__()
        self.heads, self.recompute = heads, recompute
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        """The layer."""
        if self.recompute:
            return checkpoint(self.layer, x, use_reentrant=False)
        return self.layer(x)

    def layer(self, x):
        """Attention and feed-forward, each with a residual."""
        batch, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).split(width, dim=2)
        heads = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in parts
        )
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    """GPT-2 with 12 layers of 768 and 50,304 tokens, its output tied to its embedding."""

    def __init__(self, recompute: bool, width: int = 768, length: int = 1024) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50304, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 12, recompute) for _ in range(12))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 50304, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, wanted):
        """The loss."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), wanted.view(-1))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions with a shortcut."""

    def __init__(self, entering: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv_1, self.bn_1 = nn.Conv2d(entering, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv_2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn_2 = nn.BatchNorm2d(width)
        self.conv_3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn_3 = nn.BatchNorm2d(4 * width)
        self.shortcut = nn.Sequential()
        if entering != 4 * width:
            conv = nn.Conv2d(entering, 4 * width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(4 * width))

    def forward(self, x):
        """The block."""
        y = torch.relu_(self.bn_1(self.conv_1(x)))
        y = torch.relu_(self.bn_2(self.conv_2(y)))
        return torch.relu_(self.bn_3(self.conv_3(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-50 for 224 x 224 images and 1,000 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        blocks, entering = [], 64
        for stage, count in enumerate((3, 4, 6, 3)):
            width = 64 * 2**stage
            for place in range(count):
                stride = 2 if stage and not place else 1
                blocks.append(Bottleneck(entering, width, stride))
                entering = 4 * width
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(2048, 1000)

    def forward(self, images, wanted):
        """The loss."""
        return functional.cross_entropy(
            self.head(self.blocks(self.stem(images)).mean((2, 3))), wanted
        )


def parse():
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("gpt2", "resnet50"), default="gpt2")
    parser.add_argument("--optimizer", choices=("plain", "foreach", "fused"), default="fused")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--bucket-mb", type=int, default=25)
    parser.add_argument("--accumulate", type=int, default=1)
    for switch in ("zero", "recompute", "channels-last", "compile", "graph", "fp16-gradients"):
        parser.add_argument(f"--{switch}", action="store_true")
    return parser.parse_args()


def make_batch(options, device):
    """Inputs and wanted outputs."""
    if options.model == "gpt2":
        shape = (options.batch, 1024)
        tokens, wanted = (torch.randint(50304, shape, device=device) for _ in range(2))
        return tokens, wanted
    images = torch.rand(options.batch, 3, 224, 224, device=device)
    if options.channels_last:
        images = images.to(memory_format=torch.channels_last)
    return images, torch.randint(1000, (options.batch,), device=device)


def make_optimizer(options, model):
    """AdamW, whole or with its states sharded."""
    kinds = {"plain": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
    how = {"lr": 1e-4, "capturable": options.graph} | kinds[options.optimizer]
    if options.zero:
        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **how)
    return torch.optim.AdamW(model.parameters(), **how)


def train_captured(options, model, optimizer, device) -> None:
    """Train for ever with whole steps captured as one graph, after three usual ones."""
    batch = make_batch(options, device)

    def train():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=options.precision == "bf16"):
            loss = model(*batch)
        loss.backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            train()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        train()
    while True:
        for target, source in zip(batch, make_batch(options, device), strict=True):
            target.copy_(source)
        graph.replay()


def main() -> None:
    """Train for ever."""
    options = parse()
    is_distributed = dist.is_torchelastic_launched()
    if is_distributed:
        dist.init_process_group("nccl")
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    device = torch.device("cuda", torch.cuda.current_device())
    model = (GPT(options.recompute) if options.model == "gpt2" else ResNet()).to(device)
    if options.channels_last:
        model = model.to(memory_format=torch.channels_last)
    wrapped = model
    if is_distributed:
        wrapped = DistributedDataParallel(
            model, device_ids=[device.index], bucket_cap_mb=options.bucket_mb,
            gradient_as_bucket_view=True,
        )  # fmt: skip
    if options.fp16_gradients:
        wrapped.register_comm_hook(None, fp16_compress_hook)
    step = torch.compile(wrapped) if options.compile else wrapped
    optimizer = make_optimizer(options, model)
    if options.graph:
        train_captured(options, model, optimizer, device)
    while True:
        for part in range(options.accumulate):
            is_last = part == options.accumulate - 1 or not is_distributed
            with contextlib.nullcontext() if is_last else wrapped.no_sync():
                batch = make_batch(options, device)
                is_narrow = options.precision == "bf16"
                with torch.autocast("cuda", torch.bfloat16, enabled=is_narrow):
                    loss = step(*batch)
                (loss / options.accumulate).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


main()
