"""Documents that strangers wrote are read, or refused with one clear message."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from perfmodel.base import documents
from perfmodel.base.documents import find_line, load_yaml, parse_yaml, read_yaml
from perfmodel.base.dtypes import DType, parse_dtype
from perfmodel.base.errors import InputError, TopologyError
from perfmodel.base.faults import FaultList

BOMB = "a: &a [x,x,x]\nb: &b [*a,*a,*a]\nc: [*b,*b,*b]\n"


def read(text: str) -> dict:
    return parse_yaml(text, document="machine.yaml", error_type=TopologyError)


def test_a_mapping_is_read():
    assert read("name: dgx\nlinks: [1, 2]") == {"name": "dgx", "links": [1, 2]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "aliases .* are not allowed"),
        ("a: 1\na: 2", "key 'a' occurs twice"),
        ("", "is empty"),
        ("- 1\n- 2", "lines of `key: value`"),
        ("a: [1, 2", "not valid YAML"),
        ("a: !!python/object/apply:os.system ['true']", "not valid YAML"),
        ("? [1, 2]\n: x", "a key must be a plain word"),
        ("[" * 5000, "not (valid|readable)"),
        ("a: {1: x}", "key 1 must be a word; quote it"),
        ("yes: 1", "key yes must be a word"),
        ("a: 017", "'017' must be a decimal number"),
        ("a: [1, 0x10]", "'0x10' must be a decimal number"),
        ("a: 1:30", "'1:30' must be a decimal number"),
        ("<?xml version='1.0'?>\n<system>\n</system>", "looks like XML, but must be YAML"),
        ("<system a='1'>: [", "looks like XML, but must be YAML"),
        ("# mine\nname = 'x'\n[device]\n", "looks like TOML, but must be YAML"),
        ("# train\nimport torch\nfor i in range(6): step()", "`perfmodel emulate` makes a job"),
        ("[topology]\nname = 'x'\n", "A file of torchtitan is given with --workload"),
        ("a: 1:30.5", "'1:30.5' must be a decimal number"),
    ],
)
def test_what_is_no_plain_mapping_is_refused(text, message):
    with pytest.raises(TopologyError, match=rf"machine\.yaml: .*{message}"):
        read(text)


def test_numbers_are_read_as_people_read_them():
    assert read("a: [0, -7, 1_000, 2.50, 1.0e+3, .5, '017', .inf]")["a"] == [
        0, -7, 1000, 2.5, 1000.0, 0.5, "017", float("inf"),
    ]  # fmt: skip


def test_files_that_are_no_text_are_refused(tmp_path):
    junk = tmp_path / "junk.yaml"
    junk.write_bytes(bytes(range(256)))
    with pytest.raises(InputError, match="must be text"):
        load_yaml(junk)
    with pytest.raises(InputError, match="it is a directory"):
        load_yaml(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        load_yaml(tmp_path / "missing.yaml")


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as stream:
        stream.truncate(9 * 2**20)
    with pytest.raises(InputError, match="must be at most 8 MiB, is 9 MiB"):
        load_yaml(huge)


def test_all_faults_are_reported_at_once():
    faults = FaultList("machine.yaml")
    faults.check(TopologyError)
    faults.add("links[0].bandwidth", "must be above zero, got -1 GB/s")
    faults.add("hosts", "unknown key")
    with pytest.raises(TopologyError) as caught:
        faults.check(TopologyError)
    assert str(caught.value).splitlines() == [
        "machine.yaml: 2 faults",
        "  links[0].bandwidth: must be above zero, got -1 GB/s",
        "  hosts: unknown key",
    ]


def test_number_formats_have_their_frameworks_names_too():
    assert parse_dtype("torch.bfloat16") is parse_dtype("bf16") is DType.BF16
    assert DType.TF32.size_bytes == 4
    with pytest.raises(InputError, match="got 'fp13'"):
        parse_dtype("fp13")


def test_a_number_format_below_a_byte_has_no_size():
    assert parse_dtype("nvfp4") is DType.NVFP4
    with pytest.raises(InputError, match="nvfp4: its values take less than a byte"):
        _ = DType.NVFP4.size_bytes
    assert all(dtype.size_bytes > 0 for dtype in DType if dtype.size_bits >= 8)


def test_many_values_take_their_bits_and_those_of_their_scales():
    assert DType.BF16.bytes_of(3) == 6
    assert DType.FP8.bytes_of(1024) == 1024
    # One fp32 for 128 values; one byte for 32; half a byte each and one byte for 16.
    assert DType.FP8_BLOCK.bytes_of(1024) == 1024 + 8 * 4
    assert DType.MXFP8.bytes_of(1024) == 1024 + 32
    assert DType.NVFP4.bytes_of(1024) == 512 + 64
    assert DType.MXFP4.bytes_of(1024) == 512 + 32
    assert DType.NVFP4.bytes_of(1) == 1


def test_formats_with_scales_are_quantised():
    quantised = {"fp8", "fp8_block", "mxfp8", "nvfp4", "mxfp4"}
    assert {dtype.value for dtype in DType if dtype.is_quantised} == quantised


def test_what_begins_as_a_document_must_end_as_one(tmp_path):
    file = tmp_path / "machine.yaml"
    file.write_text("# ours\n\n---\nname: dgx\nhosts: 4\n")
    with pytest.raises(InputError, match=r"must end with a line `\.\.\.`"):
        load_yaml(file)
    file.write_text("# ours\n\n---\nname: dgx\nhosts: 4\n...\n")
    assert load_yaml(file) == {"name": "dgx", "hosts": 4}
    file.write_text("name: dgx\n")
    assert load_yaml(file) == {"name": "dgx"}
    with pytest.raises(InputError, match="may have been cut"):
        read_yaml(file, error_type=InputError, must_close=True)


@pytest.mark.skipif(len(documents._LOADERS) < 2, reason="PyYAML was built without libyaml")
def test_the_fast_scanner_reads_what_the_plain_one_reads():
    folder = Path(documents.__file__).parents[2]
    names = [*folder.glob("topologies/catalog/*.yaml"), *folder.glob("perfmodel/api/templates/*")]
    assert names
    for path in names:
        text = path.read_text(encoding="utf-8")
        fast, plain = (yaml.load(text, Loader=loader) for loader in documents._LOADERS)
        assert fast == plain, path.name


def test_a_key_with_brackets_has_a_line_or_none():
    assert find_line([("a.yaml", "x: [1]\nx[y]: 2")], "x[y].z") == "x[y].z (line 2)"
