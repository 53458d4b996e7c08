"""Extensions: parts of the product that the core finds by name and does not need.

The core never imports an extension. It asks for a module here when a question needs one, and an
installation without that extension answers with one sentence.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from perfmodel.base.errors import PerfModelError

_PARENT = "perfmodel.extensions"
EXTENSIONS = {
    "emulation": "unmodified torch scripts as jobs",
    "recordings": "traces of all ranks as jobs",
    "whatif": "changes of jobs",
    "measurements": "fits of constants and scores against measurements",
    "formats": "models and machines in files of other programs",
    "ui": "the local page",
}
"""What each extension brings, by the name of its package in `perfmodel.extensions`."""


class MissingExtensionError(PerfModelError):
    """A question needs an extension that this installation does not have."""


def load_extension(name: str, module: str = "") -> Any:
    """The package of the extension *name*, or its *module*."""
    return load_module(f"perfmodel.extensions.{name}" + (f".{module}" if module else ""))


def load_module(place: str) -> Any:
    """The module at *place*; one of an extension may be absent."""
    try:
        return import_module(place)
    except ModuleNotFoundError as fault:
        name = extension_of(place)
        if name is None or fault.name not in (_PARENT, f"{_PARENT}.{name}"):
            raise
        raise MissingExtensionError(
            f"this needs the extension {name!r} ({EXTENSIONS[name]}), which this installation "
            "does not have. Install all of perfmodel."
        ) from fault


def extension_of(place: str) -> str | None:
    """The extension that the module at *place* belongs to; None for the core."""
    parts = place.split(".")
    return parts[2] if parts[:2] == _PARENT.split(".") and len(parts) > 2 else None


def has_extension(name: str) -> bool:
    """Whether this installation has the extension *name*."""
    return find_spec(_PARENT) is not None and find_spec(f"{_PARENT}.{name}") is not None
