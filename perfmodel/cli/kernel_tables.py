"""`perfmodel validate gemm|attention|memory`: measured kernels beside their predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.collective_tables import Limit, show
from perfmodel.cli.options import JsonFile

Table = Annotated[Path, typer.Argument(metavar="FILE", help="A table of measured kernels.")]


def validate_gemm(table: Table, limit: Limit = None, json_file: JsonFile = None) -> None:
    """Compare predicted with measured matrix products."""
    from perfmodel import api

    show(api.validate("gemm", [table]), json_file, limit)


def validate_attention(table: Table, limit: Limit = None, json_file: JsonFile = None) -> None:
    """Compare predicted with measured attention."""
    from perfmodel import api

    show(api.validate("attention", [table]), json_file, limit)


def validate_memory(table: Table, limit: Limit = None, json_file: JsonFile = None) -> None:
    """Compare predicted with measured memory-bound kernels."""
    from perfmodel import api

    show(api.validate("memory", [table]), json_file, limit)
