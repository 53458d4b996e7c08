"""The Python interface: the same questions as on the command line, typed.

A scenario goes in and a prediction comes out. Where the work runs is a keyword of each function and
not part of the scenario, because it cannot change the answer. `__init__.pyi` lists the names; each
is imported when it is first used, because all of them together take a second.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from perfmodel.base.extensions import extension_of, has_extension, load_module

_MODULES = {
    name.name: str(statement.module)
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8")).body
    if isinstance(statement, ast.ImportFrom)
    for name in statement.names
}
_ABSENT = {
    name for name in set(map(extension_of, _MODULES.values())) if name and not has_extension(name)
}
__all__ = [name for name, module in _MODULES.items() if extension_of(module) not in _ABSENT]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(load_module(_MODULES[name]), name)
    return found


def __dir__() -> list[str]:
    return __all__
