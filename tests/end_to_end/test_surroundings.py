"""Hash seed, locale, time zone and threads of a process change no byte of an answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.conftest import CHECKOUT

QUESTION = [
    "predict",
    "--topology",
    "dgx_a100",
    "--hosts",
    "2",
    "--workload",
    "dlrm_default",
    "--samples",
    "8",
    "--quiet",
    "--executor",
    "serial",
    "--json",
    "-",
]
SURROUNDINGS = (
    {"PYTHONHASHSEED": "0", "LC_ALL": "C", "PYTHONUTF8": "0", "TZ": "UTC", "OMP_NUM_THREADS": "1"},
    {
        "PYTHONHASHSEED": "4242",
        "LC_ALL": "C.UTF-8",
        "TZ": "Asia/Tokyo",
        "OMP_NUM_THREADS": "4",
        "NUMBA_NUM_THREADS": "4",
        "OPENBLAS_NUM_THREADS": "4",
    },
)


def test_the_surroundings_of_a_process_change_no_byte():
    asked = [
        subprocess.Popen(
            [sys.executable, "-c", "from perfmodel.cli import main; main()", *QUESTION],
            cwd=CHECKOUT,
            env={**os.environ, **around, "PYTHONPATH": str(CHECKOUT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for around in SURROUNDINGS
    ]
    said = [process.communicate() for process in asked]
    assert [process.returncode for process in asked] == [0, 0], said
    answers = [json.loads(out) for out, _ in said]
    for answer in answers:
        del answer["run"]
    assert json.dumps(answers[0]) == json.dumps(answers[1])
