"""Extensions: parts of the product that the core finds by name and does not need.

The core never imports an extension. It asks for a module here when a question needs one, and an
installation without that extension answers with one sentence.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from perfmodel.base.errors import PerfModelError

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
    place = f"perfmodel.extensions.{name}"
    try:
        return import_module(f"{place}.{module}" if module else place)
    except ModuleNotFoundError as fault:
        if fault.name not in ("perfmodel.extensions", place):
            raise
        raise MissingExtensionError(
            f"this needs the extension {name!r} ({EXTENSIONS[name]}), which this installation "
            "does not have. Install all of perfmodel."
        ) from fault


def has_extension(name: str) -> bool:
    """Whether this installation has the extension *name*."""
    try:
        load_extension(name)
    except MissingExtensionError:
        return False
    return True
