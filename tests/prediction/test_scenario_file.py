import re

import pytest

from perfmodel.base.errors import ScenarioError
from perfmodel.prediction.scenario import JobScenario, Mode, Scenario
from perfmodel.prediction.scenario_file import load_scenario


def write(folder, text):
    path = folder / "question.yaml"
    path.write_text(text)
    return path


def test_a_scenario_file_is_the_question_it_describes(tmp_path):
    text = (
        "topology: dgx_h100\nworkload: llama3_8b\nhosts: 2\nmode: isolated\n"
        "set: {batch: 256, parallel.tp: 2, model.causal: true}\n"
    )
    overrides = ("batch=256", "parallel.tp=2", "model.causal=true")
    assert load_scenario(write(tmp_path, text)) == Scenario(
        "dgx_h100", "llama3_8b", overrides, hosts=2, mode=Mode.ISOLATED
    )


def test_a_scenario_of_a_job_names_its_folder(tmp_path):
    (tmp_path / "recorded").mkdir()
    path = write(tmp_path, "job: recorded\n")
    assert load_scenario(path) == JobScenario(job=str(tmp_path / "recorded"))


def test_files_are_looked_for_beside_the_scenario_and_constants_may_be_several(tmp_path):
    (tmp_path / "mine.yaml").write_text("")
    path = write(
        tmp_path,
        "topology: mine.yaml\ncalibration: [mine.yaml, other.yaml]\nname: a\ndescription: b\n",
    )
    found = load_scenario(path)
    assert found.topology == str(tmp_path / "mine.yaml")
    assert found.calibration == (str(tmp_path / "mine.yaml"), "other.yaml")
    # A name of the catalog is not a file, even if a file has that name.
    (tmp_path / "dgx_h100").write_text("")
    one = load_scenario(write(tmp_path, "topology: dgx_h100\ncalibration: mine.yaml\n"))
    assert (one.topology, one.calibration) == ("dgx_h100", (str(tmp_path / "mine.yaml"),))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("topology: 5\n", "topology: must be text, got 5"),
        ("topology: ' '\n", "topology: must be text, not empty, got ' '"),
        ("topology: dgx_h100\noverrides: [batch=1]\n", "overrides: unknown key"),
        ("job: a\nset: {batch: 1}\n", "set: unknown key"),
        ("job: a\nforce: 1\n", "force: must be true or false, got 1"),
        ("topology: dgx_h100\nhosts: true\n", "hosts: must be a whole number, got True"),
        ("topology: dgx_h100\nset: [batch=1]\n", "set: must be a mapping of keys"),
        ("topology: dgx_h100\nmode: 3\n", "mode: must be one of"),
        ("topology: dgx_h100\ncalibration: [a.yaml, 3]\n", "calibration[1]: must be text, got 3"),
        ("topology: dgx_h100\nzzzzz: 3\n", "zzzzz: unknown key; known: calibration, description"),
    ],
)
def test_a_fault_is_named(tmp_path, text, fault):
    with pytest.raises(ScenarioError) as told:
        load_scenario(write(tmp_path, text))
    assert fault in re.sub(r" \(line \d\)", "", str(told.value))
