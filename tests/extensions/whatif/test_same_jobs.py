"""Every what-if makes the jobs that it always made, task by task.

`same_jobs.json` has a digest of each; a what-if that is not in it is new. After a change of
modelling, which CHANGELOG explains, write it anew:
`python -m tests.extensions.whatif.test_same_jobs`.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache
from pathlib import Path

import pytest

from perfmodel.api import build_job, load_workload
from perfmodel.base.errors import PerfModelError
from perfmodel.extensions.recordings.storage import load_recorded_job
from perfmodel.extensions.whatif import parse_transformation
from perfmodel.extensions.whatif.pinning import pin_job
from perfmodel.graph.job import with_own_origins
from perfmodel.graph.storage import load_job
from perfmodel.prediction.saved_jobs import PricingMachine
from tests.extensions.whatif.jobs import EXAMPLES, alone, training_job

DIGESTS = Path(__file__).parent / "same_jobs.json"
FILES = Path(__file__).parents[2] / "fingerprint" / "files"
MORE = {
    # Patterns that are in the jobs below; the examples are for the training job.
    "insert": "takes=5us,before=gemm|mm", "remove": "match=relu|gelu|add",
    "prefetch": "match=input",
    "fuse": "match=norm|gelu|relu|add|elementwise", "optimizer": "kind=foreach,traffic=0.5",
    "dtype": "to=bf16,topology=dgx_h100", "amp": "topology=dgx_h100", "batch": "factor=0.5",
    "offload": "rate=10GB/s,forward=gemm&forward,backward=gemm&backward",
    "gist": "rate=10GB/s,forward=gemm&forward,backward=gemm&backward",
    "gap": "before=gemm|mm,to=1us,lane=device,number=0+2", "bucket": "size=1MB,topology=dgx_h100",
    "dgc": "ratio=0.1,rate=100GB/s,topology=dgx_h100",
    "blueconnect": "inner=2,topology=dgx_h100", "machine": "dgx_h100,was=dgx_a100",
    "ranks": "count=16,topology=dgx_h100,hosts=2",
}  # fmt: skip


@cache
def jobs():
    built = {
        name: build_job(load_workload(name, ["batch=16"]), rank_count=4, ranks_per_host=4)
        for name in ("dlrm_default", "transformer_small")
    }
    shaped = built | {"emulated": load_job(FILES / "emulated"), "built": load_job(FILES / "built")}
    stated = {
        "training": training_job(ranks=4, slow_rank=1),
        "alone": alone(),
        "recorded": load_recorded_job(FILES / "recorded").graph,
    }
    pinned = {name: pin_job(job, PricingMachine("dgx_a100")) for name, job in shaped.items()}
    return {name: with_own_origins(job) for name, job in (stated | pinned).items()}


def digest(job):
    """Of all that a job is; tables of ops and labels may be in any order."""
    parts = [job.groups, job.rank_group.tolist(), job.rank_program.tolist(), job.facts]
    for program in job.programs:
        columns = {name: column.tolist() for name, column in program.columns().items()}
        ops, labels = columns.pop("op"), columns.pop("label")
        parts += [program.lanes, columns, [job.ops[op] for op in ops]]
        parts.append([job.labels[label] for label in labels])
    # The digests are older than several launches held as one task.
    words = repr(parts).replace(", launches=1", "")
    return hashlib.sha256(words.encode()).hexdigest()[:12]


def digests(name):
    found = {}
    for words in dict.fromkeys((EXAMPLES[name], MORE.get(name, EXAMPLES[name]))):
        text = f"{name}:{words}" if words else name
        for title, job in jobs().items():
            try:
                found[f"{text} of {title}"] = digest(parse_transformation(text).apply(job))
            except PerfModelError:
                found[f"{text} of {title}"] = "refused"
    return found


KNOWN = json.loads(DIGESTS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted({re.split("[: ]", text)[0] for text in KNOWN}))
def test_it_makes_the_jobs_that_it_always_made(name):
    made = digests(name)

    assert made == {text: KNOWN[text] for text in made}


if __name__ == "__main__":
    found = {text: made for name in EXAMPLES for text, made in digests(name).items()}
    DIGESTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
