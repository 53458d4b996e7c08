"""The fingerprint: numbers of answers never move by a change of code, texts only by prose."""

from __future__ import annotations

import json

import pytest

from tests.fingerprint.asking import NUMBERS, TEXTS, ask, prepare
from tests.fingerprint.questions import QUESTIONS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fingerprint")
    prepare(folder)
    return folder


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.ray if "Ray" in name else ()) for name in QUESTIONS],
)
def test_an_answer_keeps_its_numbers_and_its_texts(name, folder):
    if name.startswith("emulate"):
        pytest.importorskip("torch")
    numbers, texts = ask(name, folder)

    recorded = json.loads(NUMBERS.read_text(encoding="utf-8"))[name]
    assert sorted(numbers) == sorted(recorded), "keys of the answer"
    moved = {place: (recorded[place], numbers[place]) for place in numbers
             if json.loads(json.dumps(numbers[place])) != recorded[place]}  # fmt: skip
    assert not moved
    assert texts == json.loads(TEXTS.read_text(encoding="utf-8"))[name]
