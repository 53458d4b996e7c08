import json

import pytest

from embeddings.table_files import load_tables
from perfmodel.workloads.catalog import load_workload
from topologies import load_topology


@pytest.mark.parametrize(
    ("kind", "read", "expected"),
    [
        ("topology", lambda path: load_topology(path).gpus_per_host, 8),
        ("tables", lambda path: [one.name for one in load_tables(path)],
         ["user_id", "clicked_items"]),
        ("workload", lambda path: load_workload(str(path)).model.layers, 32),
        ("dlrm", lambda path: len(load_workload(str(path)).embedding.rows), 4),
    ],
)  # fmt: skip
def test_a_template_is_a_file_that_is_accepted(typed, tmp_path, kind, read, expected):
    typed(f"init {kind} --out", tmp_path / "mine.yaml")
    assert read(tmp_path / "mine.yaml") == expected


def test_a_template_never_replaces_a_file(typed, tmp_path):
    target = tmp_path / "mine.yaml"
    target.write_text("precious")
    assert "exists already" in typed("init workload --out", target, code=1).said
    assert target.read_text() == "precious"


def test_the_doctor_names_versions_and_places(typed):
    told = typed("doctor").out
    assert "numba" in told
    assert "All well." in told
    document = json.loads(typed("doctor --json -").out)
    assert 0.2 < document["memory_gib"] < 1e5
    assert document["ray"] == "not tried; --ray starts it"
