"""The notebook of the manual: run its cells, keep what they print, and show it as a page.

python docs/notebook.py          runs docs/notebook.ipynb again and writes its outputs
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parent / "notebook.ipynb"


def load() -> dict[str, Any]:
    """The notebook as it is stored."""
    document: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return document


def executed(document: dict[str, Any]) -> dict[str, Any]:
    """*document* with every cell run in order, in one namespace."""
    names: dict[str, Any] = {}
    cells, number = [], 0
    for cell in document["cells"]:
        if cell["cell_type"] != "code":
            cells.append(cell)
            continue
        number += 1
        outputs = _outputs(cell, names, number)
        cells.append({**cell, "execution_count": number, "outputs": outputs})
    return {**document, "cells": cells}


def _outputs(cell: dict[str, Any], names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    tree = ast.parse("".join(cell["source"]))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        shown = {"text/plain": str(value).splitlines(keepends=True)}
        outputs.append(
            {
                "output_type": "execute_result",
                "execution_count": number,
                "metadata": {},
                "data": shown,
            }
        )
    return outputs


def page_lines() -> Iterator[str]:
    """The notebook as a page: text, code, and what it printed."""
    for cell in load()["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield from (source, "")
            continue
        # Run by the test of the notebook, so not as a block of the page.
        yield from ("```{code-block} python", "", source, "```", "")
        for output in cell["outputs"]:
            text = output.get("text") or output["data"]["text/plain"]
            yield from ("```text", "".join(text).rstrip(), "```", "")


if __name__ == "__main__":
    text = json.dumps(executed(load()), indent=1, ensure_ascii=False)
    NOTEBOOK.write_text(text + "\n", encoding="utf-8")
