"""Files of strangers are read within bounds, or refused in a sentence."""

from __future__ import annotations

import gzip
import os

import pytest

from perfmodel.base.errors import InputError
from perfmodel.base.reading import (
    load_rows,
    parse_json,
    quote,
    read_bytes,
    read_packed_text,
    read_text,
)


def test_a_pipe_a_device_a_loop_and_a_missing_file_are_refused_at_once(tmp_path):
    pipe, device, loop = tmp_path / "pipe", tmp_path / "device", tmp_path / "loop"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    loop.symlink_to(loop)
    for path, message in (
        (pipe, "a pipe or a device"),
        (device, "a pipe or a device"),
        (loop, "cannot be read"),
        (tmp_path, "it is a directory"),
        (tmp_path / "none", "cannot be read"),
    ):
        with pytest.raises(InputError, match=message):
            read_bytes(path, InputError, 100)


def test_a_file_may_be_as_large_as_the_bound_and_no_larger(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"abcd")
    assert read_text(file, InputError, 4) == "abcd"
    with pytest.raises(InputError, match="must be at most 3 B, is 4 B"):
        read_text(file, InputError, 3)


def test_packed_text_is_bounded_by_what_it_unpacks_to(tmp_path):
    file = tmp_path / "table.csv.gz"
    file.write_bytes(gzip.compress(b"abc") + gzip.compress(b"d") + bytes(8))
    assert read_packed_text(file, InputError, 100) == "abcd\n"
    file.write_bytes(gzip.compress(b"x" * 101))
    with pytest.raises(InputError, match="must be at most 100 B, unpacks to more"):
        read_packed_text(file, InputError, 100)
    file.write_bytes(gzip.compress(b"x" * 101)[:-9])
    with pytest.raises(InputError, match="ends early"):
        read_packed_text(file, InputError, 200)
    file.write_bytes(b"\x1f\x8bnot gzip at all")
    with pytest.raises(InputError, match="not a complete gzip file"):
        read_packed_text(file, InputError, 200)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "key 'a' occurs twice"),
        ('{"a": NaN}', "NaN is not a number"),
        ('{"a": -Infinity}', "-Infinity is not a number"),
        ("[" * 100_000, "nested too deep"),
        ("{", "not valid JSON"),
        ("9" * 5000, "not valid JSON"),
    ],
)
def test_json_is_read_strictly(text, message):
    with pytest.raises(InputError, match=f"plan.json: .*{message}"):
        parse_json(text, document="plan.json", error_type=InputError)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1\n", "row 0: must have as many cells"),
        ("a,b\n1,2\n1,2,3\n", "row 1: must have as many cells"),
        ("a,b,a\n1,2,3\n", "a column occurs twice"),
        ("a\n1\n", "missing b"),
        ("a,b\n1," + "7" * 200_000 + "\n", "field larger than field limit"),
        ("", "missing a, b"),
        ('a,b\n1,"2\n3,4\n', "unexpected end of data"),
        ("a,b\n1,2\n1,2.5", "must end with a line break.*ends with .*may have been cut"),
    ],
)
def test_a_table_has_its_columns_and_full_rows(tmp_path, text, message):
    file = tmp_path / "table.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        load_rows(file, InputError, ("a", "b"))


def test_a_packed_table_needs_no_line_break_at_its_end(tmp_path):
    file = tmp_path / "table.csv.gz"
    file.write_bytes(gzip.compress(b"a,b\n1,2\n3,4"))
    assert load_rows(file, InputError)[-1] == {"a": "3", "b": "4"}


def test_rows_are_read_by_the_heading(tmp_path):
    file = tmp_path / "table.csv"
    file.write_text('\ufeffa,b\n1,"x\ny"\n')
    assert load_rows(file, InputError, ("a", "b")) == [{"a": "1", "b": "x\ny"}]


def test_what_is_quoted_is_never_longer_than_a_line():
    assert quote("x" * 58) == repr("x" * 58)
    assert quote("x" * 59) == "'" + "x" * 56 + "..."
