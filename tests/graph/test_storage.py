"""A job written to a folder is read back the same, or not at all."""

from __future__ import annotations

import json
import re

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from collectives.collective import Collective, CollectiveKind
from embeddings.table import EmbeddingTable, Lookup
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import GraphError
from perfmodel.base.identity import program_identity
from perfmodel.base.provenance import Provenance
from perfmodel.engine.replay import replay
from perfmodel.graph.op_words import op_from_words, op_to_words
from perfmodel.graph.ops import (
    Attention,
    Communication,
    Copy,
    CopyRoute,
    EmbeddingOp,
    Fixed,
    Gemm,
    HostPart,
    HostSpan,
    HostWork,
    MemoryBound,
    Pass,
)
from perfmodel.graph.storage import (
    HEADER,
    checksum_of,
    draft_job_of,
    load_job,
    save_job,
    write_job,
)
from tests.builders import forge_column, seal_job
from tests.strategies import random_job, random_jobs

GEMM = Gemm(m=2, n=3, k=4, dtype=DType.BF16)
OPS = [
    GEMM,
    Attention(1, 8, 8, 4, 2, 16, DType.FP16, is_causal=True, direction=Pass.BACKWARD),
    MemoryBound("layer_norm", 10, 20, DType.FP32, row_length=5),
    EmbeddingOp(Lookup((EmbeddingTable("user", 10, 4, 2.5),), batch_size=3), Pass.BACKWARD),
    Copy(CopyRoute.HOST_TO_DEVICE, 99, is_pinned=False),
    HostWork("aten::linear", HostPart.BEFORE_LAUNCH),
    HostSpan((HostWork("aten::linear", HostPart.LAUNCH),)),
    Communication(
        Collective(CollectiveKind.ALL_TO_ALL, 8, DType.FP16, byte_matrix=((1, 2), (3, 4)))
    ),
    Fixed("gemm", 12, Provenance.RECORDED, work=GEMM),
]


@pytest.mark.parametrize("op", OPS, ids=lambda op: type(op).__name__)
def test_every_op_survives_being_written_as_json(op):
    words = json.loads(json.dumps(op_to_words(op)))
    assert op_from_words(words, where="op 0") == op


def test_an_op_with_a_wrong_field_is_refused_with_its_place():
    words = op_to_words(GEMM) | {"m": "many"}
    with pytest.raises(GraphError, match=r"op 3: Gemm field 'm': .*got 'many'"):
        op_from_words(words, where="op 3")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(made=random_jobs())
def test_a_job_read_back_replays_to_the_same_nanoseconds(made, tmp_path):
    save_job(made.job, tmp_path / "job")
    job = load_job(tmp_path / "job")
    assert job.facts == made.job.facts
    assert job.groups == made.job.groups
    first, second = replay(made.job, made.durations), replay(job, made.durations)
    assert np.array_equal(first.last.end_ns, second.last.end_ns)


@pytest.mark.parametrize(
    ("name", "before", "after", "words"),
    [
        ("tasks.parquet", b"PAR1", b"PAR", r"tasks\.parquet is missing or was changed"),
        (HEADER, b'"schema_version": 1', b'"schema_version": 9', "schema_version 1, has 9"),
        (HEADER, b'"source"', b'"sauce"', "was changed after the job was written"),
    ],
)
def test_a_folder_that_was_changed_is_refused(tmp_path, name, before, after, words):
    save_job(random_job(5).job, tmp_path / "job")
    path = tmp_path / "job" / name
    path.write_bytes(path.read_bytes().replace(before, after))
    with pytest.raises(GraphError, match=words):
        load_job(tmp_path / "job")


def test_a_folder_that_is_no_job_is_not_overwritten(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.txt").write_text("years of work")
    with pytest.raises(GraphError, match="is not overwritten"):
        save_job(random_job(1).job, tmp_path / "thesis")
    with pytest.raises(GraphError, match=r"must be a folder with a job\.json"):
        load_job(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter1.txt").exists()


def test_files_that_are_not_of_the_job_are_never_deleted(tmp_path):
    folder = tmp_path / "job"
    save_job(random_job(1).job, folder)
    save_job(random_job(2).job, folder)
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(GraphError, match=r"1 files that are not of the job \(thesis.txt\)"):
        save_job(random_job(3).job, folder)
    (folder / HEADER).write_text("{}")
    with pytest.raises(GraphError, match=r"[2-9] files .* \.\.\.\), so it is not"):
        save_job(random_job(3).job, folder)
    assert (folder / "thesis.txt").exists()


def test_a_file_that_comes_while_the_job_is_made_is_kept(tmp_path):
    folder = tmp_path / "job"
    save_job(random_job(1).job, folder)

    def write_slowly():
        with draft_job_of(folder) as draft:
            write_job(random_job(2).job, draft)
            (folder / "notes.txt").write_text("new")

    with pytest.raises(GraphError, match=r"notes\.txt"):
        write_slowly()
    assert load_job(folder).rank_count == random_job(1).job.rank_count
    assert [path.name for path in tmp_path.iterdir()] == ["job"]


def test_a_job_says_which_program_made_it(tmp_path):
    save_job(random_job(1).job, tmp_path / "job")
    header = json.loads((tmp_path / "job" / HEADER).read_bytes())
    assert header["made"]["program"] == program_identity()
    before = checksum_of(tmp_path / "job")
    header["made"]["program"] = "another"
    (tmp_path / "job" / HEADER).write_text(json.dumps(header))
    assert checksum_of(tmp_path / "job") == before


@pytest.mark.parametrize(
    ("file", "column", "value", "words"),
    [
        ("labels", "label", None, "column label must hold text"),
        ("origins", "operator", None, "column operator must hold text"),
        ("ranks", "program", 0.5, "column program must hold whole numbers"),
        ("ranks", "groups", "many", "not a readable job"),
        ("tasks", "slot", -7, "slot must be 0 to"),
        ("tasks", "role", 9, "role must be 0 to 3"),
        ("tasks", "dep_count", 0.5, "column dep_count must hold whole numbers"),
        ("dependencies", "dep_anchor", 5, "anchor of a dependency must be 0 to 1"),
        ("dependencies", "dep_lag_ns", 2**62, "lag of a dependency must be 0 to"),
        ("ops", "op", '{"op": "Fixed", "name": "x", "duration_ns": -5}', "must last 0 to 2^53 ns"),
    ],
)
def test_forged_columns_with_right_checksums_are_refused(tmp_path, file, column, value, words):
    save_job(random_job(5).job, tmp_path / "job")
    path = tmp_path / "job" / f"{file}.parquet"
    forge_column(path, column, [value] * pq.read_metadata(path).num_rows)
    seal_job(tmp_path / "job")
    with pytest.raises(GraphError, match=re.escape(words)):
        load_job(tmp_path / "job")


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.update(peak_memory_bytes=[5]),
        lambda header: header.update(beside=0.5),
        lambda header: header.update(beside=["x" * 5000]),
        lambda header: header.update(beside=["../job"]),
        lambda header: header.update(others_late_ns=-1),
        lambda header: header["programs"][0].update(lane_start=[]),
        lambda header: header["programs"][0]["lanes"].pop(),
        lambda header: header["groups"][0].update(ranks=[[0]]),
        lambda header: header["groups"][0].update(ranks=[0.5]),
        lambda header: header["programs"][0].update(lane_start=[0.0, 1e300]),
        lambda header: header["programs"][0].update(lane_start=[0, None]),
        lambda header: header.update(groups=7),
        lambda header: header.update(name=json.loads("[" * 300 + "]" * 300)),
        lambda header: header.update(slot_count=10**9),
        lambda header: header.update(peak_memory_bytes=["many"]),
    ],
)
def test_a_header_of_wrong_types_is_refused_in_a_sentence(tmp_path, change):
    save_job(random_job(5).job, tmp_path / "job")
    path = tmp_path / "job" / HEADER
    header = json.loads(path.read_bytes())
    # A stranger leaves out the checksum.
    del header["sha256"]
    change(header)
    path.write_text(json.dumps(header))
    with pytest.raises(GraphError):
        load_job(tmp_path / "job")
