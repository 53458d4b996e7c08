"""Experiments run seldom, so that what they import is checked here."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
OURS = ("perfmodel", "collectives", "embeddings", "topologies", "traces")
SCRIPTS = sorted((CHECKOUT / "experiments").rglob("*.py"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_every_name_that_an_experiment_imports_is_there(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(OURS):
            module = importlib.import_module(str(node.module))
            for name in node.names:
                is_there = hasattr(module, name.name)
                assert is_there or importlib.import_module(f"{node.module}.{name.name}")
