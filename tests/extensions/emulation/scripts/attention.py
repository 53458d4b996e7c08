"""Attention by torch, by packages that are built for a GPU, and by flex_attention."""

import torch
import torch.nn.functional as F  # noqa: N812  as scripts write it
from flash_attn import flash_attn_func, flash_attn_varlen_func
from kernels import get_kernel
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

flash3 = get_kernel("kernels-community/flash-attn3")
layer = torch.nn.Linear(64, 64).cuda().bfloat16()
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
# Sequences of 16, 16 and 32 tokens, packed end to end.
starts = torch.tensor([0, 16, 32, 64], dtype=torch.int32).cuda()
mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 512, 512, device="cuda")


@torch.compile(fullgraph=True)
def windowed(x):
    return flash3.flash_attn_varlen_func(
        x, x, x, starts, starts, 32, 32, causal=True, window_size=(7, 0)
    )


flex = torch.compile(flex_attention)


def heads(*shape):
    return layer(torch.ones(*shape, 64, device="cuda", dtype=torch.bfloat16))


for _ in range(4):
    x, packed, long = heads(2, 4, 64), heads(64, 4), heads(1, 4, 512)
    total = F.scaled_dot_product_attention(x, x, x, is_causal=True).sum()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        total += F.scaled_dot_product_attention(x, x, x).sum()
    total += flash_attn_func(x, x, x, causal=True).sum()
    total += flash_attn_varlen_func(packed, packed, packed, starts, starts, 32, 32).sum()
    total += windowed(packed).sum()
    total += flex(long, long, long, block_mask=mask).sum()
    total.backward()
    optimizer.step()
    optimizer.zero_grad()
