"""Identity of the installed program: a hash of its sources and constants.

Two installations with the same version number may differ by a line. Code that joins the answers of
several processes compares this hash instead.
"""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("perfmodel", "collectives", "embeddings", "topologies", "traces")
"""The packages of the program, all of which decide its answers."""
_DECIDING = (".py", ".yaml", ".json")
"""Endings of code and constants; pages, documentation and caches change no answer."""
_DIGITS = 12


def locate_packages() -> dict[str, Path | None]:
    """The folder of each package, or None where it is not installed."""
    found = {}
    for name in PACKAGES:
        spec = find_spec(name)
        places = list(spec.submodule_search_locations or ()) if spec else []
        found[name] = Path(places[0]) if places else None
    return found


@cache
def full_identity() -> str:
    """Everything that decides a number: the program, Python, numpy and numba."""
    libraries = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "numba"))
    return f"{program_identity()} on Python {platform.python_version()}, {libraries}"


@cache
def program_identity() -> str:
    """The first digits of a hash over names and contents of all deciding files."""
    digest = hashlib.sha256()
    for name, folder in locate_packages().items():
        paths = sorted(folder.rglob("*")) if folder else []
        for path in paths:
            if path.suffix in _DECIDING and path.is_file():
                content = path.read_bytes()
                place = f"{name}/{path.relative_to(folder or path).as_posix()}"
                # Lengths keep neighbouring files apart.
                digest.update(f"{place}\0{len(content)}\0".encode())
                digest.update(content)
    return digest.hexdigest()[:_DIGITS]
