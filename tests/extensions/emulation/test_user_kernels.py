"""What is read from the source of a script's own kernels, and from the shapes they are given."""

from __future__ import annotations

import pytest
import torch

from perfmodel.extensions.emulation.driver.user_kernels import product_of, read_source

tl = None


def moved(x, y, out, count):
    place = out + tl.program_id(0)
    place += count
    tl.store(place, tl.load(x) + tl.load(y))


def added(x, total):
    tl.atomic_add(total, tl.load(x))


def described(x, out):
    tile = x.load([0, 0])
    out.store([0, 0], tl.dot(tile, tile.T))


def helped(x, out):
    store_all(x, out)


def store_all(*_):
    pass


@pytest.mark.parametrize(
    ("kernel", "written", "multiplies"),
    [
        # The pointer is moved twice before it is stored to; the number that moves it is no tensor.
        (moved, ("out", "count"), False),
        (added, ("total",), False),
        (described, ("out",), True),
        # What a helper does is not followed: everything may be written.
        (helped, ("x", "out"), False),
    ],
)
def test_a_kernel_writes_what_its_stored_pointers_come_from(kernel, written, multiplies):
    names, stored, has_products = read_source(kernel)
    assert names == tuple(kernel.__code__.co_varnames[: kernel.__code__.co_argcount])
    assert (stored, has_products) == (written, multiplies)


def test_a_kernel_without_a_source_writes_everything():
    made = {}
    exec("def kernel(x, y): pass", made)  # A function without a file.
    assert read_source(made["kernel"]) == (("x", "y"), ("x", "y"), False)


def of_shapes(*shapes):
    return [torch.empty(shape, device="meta") for shape in shapes]


@pytest.mark.parametrize(
    ("read", "written", "found"),
    [
        # Rows of the operand are those of the result, and its columns are summed up.
        ([(8, 64), (16, 64)], [(8, 16)], {"m": 8, "n": 16, "k": 64, "batch": 1}),
        # The same transposed, three times.
        ([(3, 64, 8)], [(3, 8, 8)], {"m": 8, "n": 8, "k": 64, "batch": 3}),
        # An addend of the result's shape comes last, however it is given.
        ([(8, 16), (64, 8)], [(8, 16)], {"m": 8, "n": 16, "k": 64, "batch": 1}),
        ([(8,), (5, 7)], [(8, 16)], {}),
    ],
)
def test_a_product_is_read_from_the_shapes_of_operand_and_result(read, written, found):
    assert product_of(of_shapes(*read), of_shapes(*written)) == found
