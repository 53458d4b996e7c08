"""Two compiled layers between eager code, a captured function, and one that cannot be compiled."""

import os

import torch
import torch.distributed as dist
import triton  # noqa: F401  as scripts with kernels of their own do; the compiler must not see it
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.utils.checkpoint import checkpoint

WIDTH, WORDS, TOKENS, BATCH = 128, 512, 64, 4
BLOCK, BLOCKS = 128, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 256, bias=False), nn.Linear(256, WIDTH, bias=False)

    def forward(self, x):
        query, key, value = (
            part.view(BATCH, TOKENS, 2, -1).transpose(1, 2)
            for part in self.qkv(self.norm(x)).split(WIDTH, 2)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(BATCH, TOKENS, WIDTH)
        return x + self.down(functional.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.layers = nn.Embedding(WORDS, WIDTH), nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens, targets):
        logits = self.head(self.layers(self.words(tokens)))
        return functional.cross_entropy(logits.view(-1, WORDS), targets.view(-1))


def refuse(_):
    raise NotImplementedError("no such pass")


@torch.compile(mode="reduce-overhead")
def captured(x):
    return (x.sin() @ x.cos()).tanh().sum()


@torch.compile(options={"post_grad_custom_post_pass": refuse})
def refused(x):
    return x.exp() + 1


@torch.compile
def never_called(x):
    return x.erf()


@torch.compile
def broken(x):
    """Dynamo cannot go on in the middle of a loop."""
    for _ in range(2):
        x = x.tan()
        torch._dynamo.graph_break()
    return x


@torch.compile
def attend(x, documents):
    """Attention inside documents, with a mask of blocks that is made from their numbers."""
    first, last = documents.view(-1, BLOCK)[:, 0], documents.view(-1, BLOCK)[:, -1]
    place = torch.arange(len(first), device="cuda")
    blocks = (first[:, None] <= last) & (last[:, None] >= first) & (place[:, None] >= place)
    counts = blocks.sum(-1, dtype=torch.int32)
    order = blocks.argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    mask = BlockMask.from_kv_blocks(
        counts[None, None], order[None, None], BLOCK_SIZE=BLOCK,
        mask_mod=lambda b, h, q, kv: (q >= kv) & (documents[q] == documents[kv]),
    )  # fmt: skip
    return flex_attention(x, x, x, block_mask=mask)


@torch.compile
def number_documents(words):
    """A sum so long that several blocks share it."""
    return (words == 0).cumsum(0)


def mix(x):
    return functional.scaled_dot_product_attention(x.sin(), x, x, is_causal=True)


@torch.compile
def recomputed(x):
    """Attention may drop values, so that running it again needs the state of random numbers."""
    return checkpoint(mix, x, use_reentrant=False)


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
with torch.device("cuda"):
    model, square = Model(), torch.ones(256, 256)
    heads = torch.ones(1, 2, BLOCK * BLOCKS, 64, dtype=torch.bfloat16, requires_grad=True)
# The first region is compiled inside the modes of DDP, which the self-test must not see.
dist.init_process_group("nccl")
layers = nn.Sequential(*(nn.Linear(512, 512).cuda() for _ in range(3)))
replica = nn.parallel.DistributedDataParallel(torch.compile(layers), bucket_cap_mb=1)
replica(torch.ones(8, 512, device="cuda")).sum().backward()
print("parts that were loaded:", counters["aot_autograd"]["autograd_cache_hit"])
options = {"post_grad_custom_post_pass": refuse}
layers = nn.Sequential(*(nn.Linear(512, 512).cuda() for _ in range(3)))
replica = nn.parallel.DistributedDataParallel(
    torch.compile(layers, options=options), bucket_cap_mb=1
)
replica(torch.ones(8, 512, device="cuda")).sum().backward()
# Four documents of two blocks each.
documents = torch.arange(BLOCK * BLOCKS).div(2 * BLOCK, rounding_mode="floor").cuda()
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
for _ in range(4):
    tokens = torch.randint(0, WORDS, (BATCH, TOKENS), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = compiled(tokens, tokens)
    loss.mul(2.0).backward()
    captured(square)
    refused(square)
    attend(heads, documents).sum().backward()
    recomputed(heads).sum().backward()
    number_documents(torch.ones(2**18, dtype=torch.int64, device="cuda"))
    broken(square)
    optimizer.step()
    optimizer.zero_grad()
