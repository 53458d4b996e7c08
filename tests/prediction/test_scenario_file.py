import pytest

from perfmodel.base.errors import ScenarioError
from perfmodel.prediction.scenario import JobScenario, Mode, Scenario
from perfmodel.prediction.scenario_file import load_scenario


def write(folder, text):
    path = folder / "question.yaml"
    path.write_text(text)
    return path


def test_a_scenario_file_is_the_question_it_describes(tmp_path):
    path = write(
        tmp_path,
        "topology: dgx_h100\nworkload: llama3_8b\nhosts: 2\nmode: isolated\n"
        "set: {batch: 256, parallel.tp: 2, model.causal: true}\n",
    )

    assert load_scenario(path) == Scenario(
        topology="dgx_h100",
        workload="llama3_8b",
        hosts=2,
        mode=Mode.ISOLATED,
        overrides=("batch=256", "parallel.tp=2", "model.causal=true"),
    )


def test_a_scenario_of_a_job_names_its_folder(tmp_path):
    (tmp_path / "recorded").mkdir()
    path = write(tmp_path, "job: recorded\n")

    assert load_scenario(path) == JobScenario(job=str(tmp_path / "recorded"))


def test_every_fault_of_a_scenario_is_told_at_once(tmp_path):
    path = write(tmp_path, "topologi: dgx_h100\nhosts: two\nmode: soon\n")

    with pytest.raises(ScenarioError) as told:
        load_scenario(path)
    message = str(told.value)
    assert "unknown key; did you mean 'topology'?" in message
    assert "hosts: must be a whole number, got 'two'" in message
    assert "mode: must be one of period, isolated, got 'soon'" in message
    assert "topology: must be given" in message
