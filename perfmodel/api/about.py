"""About perfmodel itself: files to start from, what is in a file, what an installation has.

The words of a schema are those of the documentation and of the code that reads the files, so that
they cannot say something else.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from enum import Enum
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import perfmodel
from perfmodel.base.errors import InputError, OutputError
from perfmodel.base.writing import check_writable, write_file

if TYPE_CHECKING:
    pass

HERE = Path(__file__).parent
PACKAGES = HERE.parent
OURS = ("perfmodel", "collectives", "embeddings", "topologies", "traces")
NEEDED = ("ray", "numpy", "scipy", "pandas", "numba", "pyyaml", "matplotlib", "pyarrow", "typer",
          "rich", "jinja2", "pydantic", "orjson", "protobuf")  # fmt: skip
EXTRAS = {"torch": "emulate, calibrate gemm|attention|measure, indices in torch files"}


class TemplateKind(Enum):
    """What a template is there for."""

    WORKLOAD = "workload"
    DLRM = "dlrm"
    TOPOLOGY = "topology"
    TABLES = "tables"
    SCENARIO = "scenario"


_Kind = TypeVar("_Kind", bound=Enum)


def one_of(kinds: type[_Kind], word: _Kind | str) -> _Kind:
    """The member of *kinds* that *word* means."""
    words = [str(kind.value) for kind in kinds]
    if isinstance(word, str) and word not in words:
        raise InputError(f"kind: must be one of {', '.join(words)}, got {word!r}.")
    return kinds(word) if isinstance(word, str) else word


def init(kind: TemplateKind | str, out: str | Path | None = None) -> str:
    """A commented file to start from, accepted as it is; written to *out* if that is given."""
    text = (HERE / "templates" / f"{one_of(TemplateKind, kind).value}.yaml").read_text("utf-8")
    if out is not None:
        if Path(out).exists():
            raise OutputError(f"{out}: exists already, and is not overwritten. Name another file.")
        check_writable("--out", Path(out))
        write_file(Path(out), text)
    return text


def examine_installation(*, try_ray: bool = False) -> dict[str, Any]:
    """Versions, where packages come from, and what is missing; *try_ray* starts a Ray."""
    versions = {name: _version(name) for name in (*NEEDED, *EXTRAS)}
    places = {name: _place(name) for name in OURS}
    faults = [f"{name} is not installed" for name in NEEDED if versions[name] is None]
    parents = {Path(place).parent for place in places.values() if place}
    if len(parents) > 1 or not all(places.values()):
        faults.append("packages of perfmodel come from different places; see `places`")
    found: dict[str, Any] = {
        "schema_version": 1,
        "perfmodel": perfmodel.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "temporary_space_gib": round(shutil.disk_usage(tempfile.gettempdir()).free / 2**30, 1),
        "versions": versions,
        "places": places,
        "ray": _try_ray() if try_ray else "not tried; --ray starts it",
        "faults": faults,
    }
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _place(name: str) -> str | None:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return next(iter(spec.submodule_search_locations))


def _try_ray() -> str:
    from perfmodel.base.errors import ExecutionError
    from perfmodel.execution import open_executor

    try:
        with open_executor("ray", workers=1) as place:
            return f"starts and works ({sum(place.map(_add, 1, [1, 2]))} = 5)"
    except ExecutionError as fault:
        return f"does not start: {fault}"


def _add(shared: int, item: int) -> int:
    return shared + item
