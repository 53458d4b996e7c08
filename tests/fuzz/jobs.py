"""Readers of jobs: saved ones, damaged or forged, and Chakra traces that become jobs."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.fuzz.damage import (
    ODD_VALUES,
    damage_bytes,
    damage_tree,
    damaged_json,
    forge_table,
)
from tests.fuzz.readers import ROOT, Reader

SAVED = ("recorded", "built", "emulated")
"""Jobs of earlier versions: from traces, a workload and a script."""


def build_job_readers() -> list[Reader]:
    """All readers of jobs."""
    return [_job(), *(_forged_job(name) for name in SAVED), *_chakra_readers()]


def _read_job(path: Path) -> object:
    from perfmodel.api import JobScenario, predict

    topology = None if path.parent.name == "recorded" else "dgx_a100"
    scenario = JobScenario(str(path), topology=topology, force=True)
    answer = predict(scenario, executor="serial")
    return repr(answer), answer.to_dict()


def _job() -> Reader:
    """A job with damaged files, whose checksums are wrong."""
    from perfmodel.graph.storage import save_job
    from tests.strategies import random_job

    good = Path(tempfile.mkdtemp(prefix="fuzz-job-")) / "job"
    save_job(random_job(5).job, good)

    def make(place: Path, source: random.Random) -> Path:
        shutil.copytree(good, place / "recorded" / "job")
        victim = source.choice(sorted((place / "recorded" / "job").iterdir()))
        if victim.suffix == ".json" and source.random() < 0.7:
            victim.write_bytes(damaged_json(json.loads(victim.read_bytes()), source))
        else:
            victim.write_bytes(damage_bytes(victim.read_bytes(), source))
        return place / "recorded" / "job"

    return Reader("job folder", make, _read_job)


def _forged_job(name: str) -> Reader:
    """A job with forged columns or facts, and right checksums."""
    from tests.builders import seal_job

    def make(place: Path, source: random.Random) -> Path:
        folder = place / name / "job"
        shutil.copytree(ROOT / "tests" / "fingerprint" / "files" / name, folder)
        for _ in range(source.choice((1, 1, 2))):
            victim = source.choice(sorted(folder.iterdir()))
            if victim.suffix == ".parquet":
                forge_table(victim, source)
            else:
                content = json.loads(victim.read_bytes())
                kept = {key: content.pop(key) for key in ("files", "schema_version")}
                changed = damage_tree(content, source)
                victim.write_text(json.dumps((changed if isinstance(changed, dict) else {}) | kept))
        # Damage may leave no JSON to seal.
        with suppress(ValueError, KeyError, TypeError):
            seal_job(folder)
        return folder

    return Reader(f"forged {name} job", make, _read_job)


def _chakra_readers() -> list[Reader]:
    own = _own_chakra()
    return [_chakra_reader("chakra", own), _chakra_reader("chakra of two ranks", _foreign(own))]


def _own_chakra() -> tuple[Any, ...]:
    """A trace of kernels, each behind the call that launches it."""
    from traces.chakra import ChakraKind, ChakraOperation, ChakraTrace

    operations = []
    for number in range(0, 12, 2):
        host = {"is_cpu_op": True, "tid": "thread 1"}
        device = {"is_cpu_op": False, "stream": "stream 7"}
        ahead = (number - 1,) if number else ()
        operations += [
            ChakraOperation(number, "launch", ChakraKind.COMPUTE, (), ahead, 9, 5, host),
            ChakraOperation(number + 1, "gemm", ChakraKind.COMPUTE, (), (number,), 20, 300, device),
        ]
    return (ChakraTrace("small", "0.0.4", tuple(operations)),)


def _foreign(traces: tuple[Any, ...]) -> tuple[Any, ...]:
    """*traces* as another program would have written them, of two ranks."""
    from traces.chakra import ChakraKind

    (trace,) = traces
    made = []
    for one in trace.operations:
        kind = ChakraKind.COLLECTIVE if one.number % 5 == 3 else ChakraKind.COMPUTE
        said = {"is_cpu_op": one.attributes["is_cpu_op"], "num_ops": 100, "tensor_size": 4096}
        said |= {"comm_type": 0, "comm_size": 4096, "pg_name": "1", "stream": 7}
        made.append(replace(one, kind=kind, attributes=said, duration_us=5))
    foreign = replace(trace, operations=tuple(made))
    return (foreign, foreign)


def _chakra_reader(name: str, traces: tuple[Any, ...]) -> Reader:
    from perfmodel.api import import_traces
    from tests.traces.chakra_files import write_chakra

    def make(place: Path, source: random.Random) -> Path:
        folder = place / "chakra"
        folder.mkdir()
        victim = source.randrange(len(traces))
        for rank, trace in enumerate(traces):
            path = folder / f"rank{rank}.et"
            spoilt = rank == victim
            # Not every damage can be written.
            try:
                write_chakra(_damage_trace(trace, source) if spoilt else trace, path)
            except (ValueError, TypeError, AttributeError, OverflowError, KeyError):
                write_chakra(trace, path)
            if spoilt and source.random() < 0.3:
                path.write_bytes(damage_bytes(path.read_bytes(), source))
        return folder

    return Reader(name, make, lambda path: import_traces([path], path.parent / "job"))


def _damage_trace(trace: Any, source: random.Random) -> Any:
    """*trace* with wrong fields, waits or attributes."""
    operations = list(trace.operations)
    for _ in range(source.choice((1, 1, 3))):
        place = source.randrange(len(operations))
        operations[place] = _damage_operation(operations[place], source)
    if source.random() < 0.2:
        source.shuffle(operations)
    return replace(trace, operations=tuple(operations))


def _damage_operation(one: Any, source: random.Random) -> Any:
    how = source.randrange(5)
    if how == 0:
        field = source.choice(("number", "start_us", "duration_us"))
        return replace(one, **{field: source.choice((0, 1, 2**31, 2**62, 10**12 - 1))})
    if how == 1:
        waits = tuple(source.choice((0, 1, 2, 5, 2**40)) for _ in range(source.randrange(4)))
        return replace(one, **{source.choice(("control", "data")): waits})
    if how == 2:
        return replace(one, name=str(source.choice(ODD_VALUES))[:200])
    attributes = dict(one.attributes)
    name = source.choice(sorted(attributes))
    value = source.choice(ODD_VALUES)
    attributes[name] = value if isinstance(value, int | float | bool | str) else (1, 2, 3)
    if how == 3:
        del attributes[name]
    return replace(one, attributes=attributes)
