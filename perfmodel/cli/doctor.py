"""`perfmodel doctor`: what this installation has, and what it lacks."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

import perfmodel
from perfmodel.base.writing import STDOUT, write_output
from perfmodel.cli.options import JsonFile

app = typer.Typer(rich_markup_mode=None)

OURS = ("perfmodel", "collectives", "embeddings", "topologies", "traces")
NEEDED = ("ray", "numpy", "scipy", "pandas", "numba", "pyyaml", "matplotlib", "pyarrow", "typer",
          "rich", "jinja2", "pydantic", "orjson", "protobuf")  # fmt: skip
EXTRAS = {"torch": "emulate, calibrate gemm|attention|measure, indices in torch files"}


@app.command()
def doctor(
    is_thorough: Annotated[
        bool, typer.Option("--ray", help="Also start Ray on this machine and stop it again.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Say which versions are installed, where packages come from, and what is missing."""
    found = examine(is_thorough=is_thorough)
    if json_file is not None:
        import json

        write_output(json_file, json.dumps(found, indent=2) + "\n")
    if json_file != STDOUT:
        print("\n".join(tell(found)))
    if found["faults"]:
        raise typer.Exit(1)


def examine(*, is_thorough: bool) -> dict[str, Any]:
    """What is here, as a document."""
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
        "ray": _try_ray() if is_thorough else "not tried; --ray starts it",
        "faults": faults,
    }
    return found


def tell(found: dict[str, Any]) -> list[str]:
    """The document for people."""
    heading = (
        f"perfmodel {found['perfmodel']} on Python {found['python']}, {found['system']}, "
        f"{found['cores']} cores, {found['memory_gib']} GiB of memory"
    )
    lines = [heading]
    lines += [f"  {name:<12} {place or 'NOT FOUND'}" for name, place in found["places"].items()]
    lines.append(
        "  "
        + ", ".join(f"{name} {version or 'MISSING'}" for name, version in found["versions"].items())
    )
    lines += [
        f"  without {name}: no {use}. Install it with: pip install 'perfmodel[emulate]'"
        for name, use in EXTRAS.items()
        if found["versions"][name] is None
    ]
    lines.append(f"  Ray: {found['ray']}")
    lines += [f"  fault: {fault}" for fault in found["faults"]]
    return [*lines, "All well." if not found["faults"] else "Something is amiss; see above."]


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
