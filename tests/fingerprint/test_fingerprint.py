"""The fingerprint: numbers of answers never move by a change of code, texts only by prose."""

from __future__ import annotations

import json

import pytest

from tests.extensions.emulation.emulating import check_environment
from tests.fingerprint.asking import KINDS, ask, find_recorded, prepare
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
def test_an_answer_keeps_its_numbers_its_texts_and_its_looks(name, folder):
    if name.startswith("emulate"):
        check_environment()
    numbers, texts, looks = ask(name, folder)
    recorded = {kind: json.loads(find_recorded(kind).read_text("utf-8"))[name] for kind in KINDS}

    assert sorted(numbers) == sorted(recorded["numbers"]), "keys of the answer"
    moved = {place: (recorded["numbers"][place], numbers[place]) for place in numbers
             if json.loads(json.dumps(numbers[place])) != recorded["numbers"][place]}  # fmt: skip
    assert not moved
    assert texts == recorded["texts"]
    assert looks == recorded["looks"], "screen or page, although the answer is the same"
