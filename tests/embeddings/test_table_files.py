"""Tables from files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from embeddings.distribution import Zipf
from embeddings.table_files import load_tables
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import InputError, PlanError

YAML = """
source: made up
tables:
  - {name: user, rows: 1000, width: 64, pooling_factor: 20, distribution: {zipf: 1.1}}
  - {name: day, rows: 7, width: 64, dtype: fp16}
"""
CSV = "name,rows,width,pooling_factor,zipf,dtype\nuser,1000,64,20,1.1,\nday,7,64,,,fp16\n"
JSON = [
    {"name": "user", "num_embeddings": 1000, "embedding_dim": 64, "pooling_factor": 20,
     "distribution": {"zipf": 1.1}, "feature_names": ["u"]},
    {"table_name": "day", "num_embeddings": 7, "embedding_dim": 64, "data_type": "FP16"},
]  # fmt: skip


def test_all_three_forms_say_the_same_tables(tmp_path):
    (tmp_path / "a.yaml").write_text(YAML)
    (tmp_path / "b.csv").write_text(CSV)
    (tmp_path / "c.json").write_text(json.dumps(JSON))
    first, second, third = (load_tables(tmp_path / name) for name in ("a.yaml", "b.csv", "c.json"))
    assert first == second == third
    assert first[0].distribution == Zipf(1.1)
    assert first[1].dtype is DType.FP16


def test_a_number_of_lookups_under_the_word_for_adding_up_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("name,num_rows,dim,pooling\nuser,1000,64,20\n")
    with pytest.raises(InputError, match=r"must be SUM or MEAN, got 20\. Lookups per sample are"):
        load_tables(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("name,num_rows,dim,pooling\nuser,1000,64,SUM\n")
    [table] = load_tables(tmp_path / "b.csv")
    assert (table.rows, table.width, table.pooling_factor) == (1000, 64, 1.0)


def test_indices_bring_pooling_and_distribution(tmp_path):
    (tmp_path / "a.yaml").write_text(YAML)
    np.savez(tmp_path / "i.npz", indices=[1, 1, 1, 6], lengths=[[2, 1], [1, 0]])
    user, day = load_tables(tmp_path / "a.yaml", indices=tmp_path / "i.npz")
    assert (user.pooling_factor, day.pooling_factor) == (1.5, 0.5)
    np.savez(tmp_path / "j.npz", indices=[1, 7], lengths=[[1], [1]])
    with pytest.raises(InputError, match="below the 7 rows"):
        load_tables(tmp_path / "a.yaml", indices=tmp_path / "j.npz")


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("tables: [{name: a, rows: 0, width: 4}]", ["rows (line 1): must be at least 1, got 0"]),
        ("tables: [{name: a, rows: x, width: true}]", ["tables[0].rows", "tables[0].width"]),
        (
            "tables: [{name: a, rows: 5, widht: 4}]",
            ["tables[0].widht (line 1): unknown", "width (line 1): must be"],
        ),
        ("tables: [{name: a, rows: 5, width: 4, pooling_factor: .nan}]", ["pooling_factor"]),
        ("tables: [{name: a, rows: 5, width: 4, distribution: {zipf: -1}}]", ["exponent"]),
        ("tables: [{name: a, rows: 5, width: 4, distribution: odd}]", ["must be uniform"]),
        ("tables: [{name: a, rows: 5, width: 4}, {name: a, rows: 5, width: 4}]", ["two tables"]),
        (
            "tables: [{name: a, rows: 5, width: 2147483648}]",
            ["width (line 1): must be at most 16777216"],
        ),
        ("tables: [" + "1," * (2**16 + 1) + "]", ["at most 65536 tables, got 65537"]),
        ("tables: []", ["at least one table"]),
        ("rows: 5", ["tables: must be given", "rows (line 1): unknown key"]),
        ("tables: [3]", ["must be a mapping"]),
        ("tables: [{name: a, rows: 5, width: 4, is_pooled: 1}]", ["tables[0].is_pooled"]),
    ],
)
def test_faults_are_reported_with_their_places(tmp_path, text, faults):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(PlanError) as error:
        load_tables(tmp_path / "x.yaml")
    for fault in faults:
        assert fault in str(error.value)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "x.csv").write_text("name,rows\na,1,2,3\n")
    (tmp_path / "x.json").write_text("{")
    (tmp_path / "y.csv").write_bytes(b"\xff\xfe")
    for name in ("x.csv", "x.json", "x.txt", "none.csv", "y.csv"):
        with pytest.raises(PlanError):
            load_tables(tmp_path / name)


def test_switches_of_a_table_are_words(tmp_path):
    (tmp_path / "x.csv").write_text(
        "name,rows,width,is_weighted,is_pooled\na,5,4,True,false\nb,5,4,,\n"
    )
    first, second = load_tables(tmp_path / "x.csv")
    assert (first.is_weighted, first.is_pooled) == (True, False)
    assert (second.is_weighted, second.is_pooled) == (False, True)


@pytest.mark.parametrize(
    ("words", "fault"),
    [("rows: 5.0", None), ("rows: 5.5", "must be a whole number"), ("rows: '5'", None),
     ("rows: true", "must be a whole number"),
     ("rows: 5, pooling_factor: true", "must be a number"),
     ("rows: 5, pooling_factor: .inf", "must be a finite number"),
     ("rows: 5, distribution: {lookup_shares: [1], mean_reuse: [2], draws: 4}", None),
     ("rows: 5, distribution: {lookup_shares: [1], mean_reuse: [2]}", "must be uniform"),
     ("rows: 5, distribution: {zipf: 1, more: 2}", "must be uniform"),
     ("rows: 5, distribution: uniform", None), ("rows: 5, zipf: 1.1", None),
     ("rows: 5, zipf: -1", "exponent"), ("rows: 5, memory: tape", "tables[0].memory")],
)  # fmt: skip
def test_values_of_a_table_are_numbers_and_words_that_are_known(tmp_path, words, fault):
    (tmp_path / "x.yaml").write_text(f"tables: [{{name: a, width: 4, {words}}}]")
    if fault is None:
        [table] = load_tables(tmp_path / "x.yaml")
        assert table.rows == 5
        return
    with pytest.raises(PlanError) as error:
        load_tables(tmp_path / "x.yaml")
    assert fault in str(error.value)


def test_the_most_tables_are_read_and_what_else_is_in_a_file_is_refused(tmp_path):
    path = tmp_path / "x.yml"
    path.write_text("description: mine\ntables: [{name: a, rows: 5, width: 4}]\n")
    assert len(load_tables(path)) == 1
    path.write_text("colour: red\ntables: [{name: a, rows: 5, width: 4}]\n")
    with pytest.raises(PlanError, match=r"colour .line 1.: unknown key"):
        load_tables(path)
    (tmp_path / "i.npz").write_bytes(b"")
    np.savez(tmp_path / "i.npz", indices=[1], lengths=[[1]])
    (tmp_path / "y.yaml").write_text(YAML)
    with pytest.raises(PlanError, match="must hold indices of 2 tables, got 1"):
        load_tables(tmp_path / "y.yaml", indices=tmp_path / "i.npz")


def test_indices_with_names_of_tables_are_matched_by_name(tmp_path):
    tables = tmp_path / "tables.csv"
    tables.write_text("name,rows,width\na,100,4\nb,100,4\n")
    content = {"indices": [1, 2, 3, 7, 7, 7], "lengths": [[1, 1, 1], [1, 1, 1]]}
    np.savez(tmp_path / "named.npz", names=["b", "a"], **content)
    a, b = load_tables(tables, indices=tmp_path / "named.npz")
    assert float(a.popularity.distinct_rows(1000)) == pytest.approx(1)
    assert float(b.popularity.distinct_rows(1000)) > 2
    np.savez(tmp_path / "partly.npz", names=["b", "x"], **content)
    with pytest.raises(PlanError, match="a are missing"):
        load_tables(tables, indices=tmp_path / "partly.npz")
    np.savez(tmp_path / "few.npz", names=["b"], **content)
    with pytest.raises(InputError, match="2 different names"):
        load_tables(tables, indices=tmp_path / "few.npz")
