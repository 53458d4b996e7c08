import pytest

from embeddings.table_files import load_tables
from perfmodel.cli import main
from perfmodel.workloads.catalog import load_workload
from topologies import load_topology


def run(*words):
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    return stop.value.code


def test_the_template_of_a_topology_is_a_machine(tmp_path):
    assert run("init", "topology", "--out", str(tmp_path / "mine.yaml")) == 0

    assert load_topology(tmp_path / "mine.yaml").gpus_per_host == 8


def test_the_template_of_tables_holds_skewed_ones(tmp_path):
    assert run("init", "tables", "--out", str(tmp_path / "mine.yaml")) == 0

    assert [table.name for table in load_tables(tmp_path / "mine.yaml")] == [
        "user_id",
        "clicked_items",
    ]


def test_the_templates_of_models_are_a_transformer_and_a_dlrm(tmp_path):
    assert run("init", "workload", "--out", str(tmp_path / "gpt.yaml")) == 0
    assert run("init", "dlrm", "--out", str(tmp_path / "dlrm.yaml")) == 0

    assert load_workload(str(tmp_path / "gpt.yaml")).model.layers == 32
    assert len(load_workload(str(tmp_path / "dlrm.yaml")).embedding.rows) == 4


def test_a_template_never_replaces_a_file(tmp_path, capsys):
    target = tmp_path / "mine.yaml"
    target.write_text("precious")

    assert run("init", "workload", "--out", str(target)) == 1
    assert target.read_text() == "precious"
    assert "exists already" in capsys.readouterr().err


def test_the_doctor_names_versions_and_places(capsys):
    assert run("doctor") == 0

    told = capsys.readouterr().out
    assert "numba" in told
    assert "All well." in told
