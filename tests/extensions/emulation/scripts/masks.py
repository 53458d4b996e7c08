"""Compiled attention inside documents and a window, in one region and in several."""

import os

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

# More pairs than are evaluated one by one.
LENGTH, BLOCK, WINDOW = 8192, 128, 1024
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def inside(documents):
    def is_seen(b, h, q, kv):
        return (q >= kv) & (documents[q] == documents[kv]) & (q - kv < WINDOW)

    return is_seen


@torch.compile
def number_documents(words):
    return (words == 0).cumsum(0)


def choose_blocks(documents):
    """Blocks with some pairs, by way of all pairs."""
    place = torch.arange(LENGTH, device="cuda")
    pairs = inside(documents)(0, 0, place[:, None], place)
    blocks = pairs.view(-1, BLOCK, LENGTH // BLOCK, BLOCK).any(3).any(1)
    order = blocks.to(torch.int32).argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32)[None, None], order.to(torch.int32)[None, None]


@torch.compile
def attend(x, documents, counts, order):
    mask = BlockMask.from_kv_blocks(counts, order, BLOCK_SIZE=BLOCK, mask_mod=inside(documents))
    return flex_attention(x, x, x, block_mask=mask)


@torch.compile
def attend_at_once(x, words):
    documents = (words == 0).cumsum(0)
    mask = BlockMask.from_kv_blocks(
        *choose_blocks(documents), BLOCK_SIZE=BLOCK, mask_mod=inside(documents)
    )
    return flex_attention(x, x, x, block_mask=mask)


@torch.compile
def attend_by_torch(x, words):
    """The function of torch that makes the mask is no part of compiled code here."""
    mask = create_block_mask(inside((words == 0).cumsum(0)), None, None, LENGTH, LENGTH)
    return flex_attention(x, x, x, block_mask=mask)


compiled_choice = torch.compile(choose_blocks)
place = torch.arange(LENGTH)
words = torch.where(place < LENGTH // 2, place % 300, place % 3000).cuda()
heads = torch.ones(1, 1, LENGTH, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([heads], lr=0.1)
for _ in range(4):
    documents = number_documents(words)
    attend(heads, documents, *compiled_choice(documents)).sum().backward()
    with torch.no_grad():
        attend_at_once(heads, words)
        attend_by_torch(heads, words)
    optimizer.step()
    optimizer.zero_grad()
