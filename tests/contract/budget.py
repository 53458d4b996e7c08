"""The size of every room, and the limits that it promises to keep.

Counted are code tokens (without docstrings, comments and imports, so that nothing is gained by
leaving those out), files and classes; of the command line also its options. The limits in
`budget.json` are a ratchet:

    python -m tests.contract.budget            what each room has, and its limit
    python -m tests.contract.budget --lower    lower the limits to what there is

A change that needs more raises its number by hand in the same commit, and CHANGELOG says what
the reader gets for it.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import tokenize
from collections import Counter
from pathlib import Path
from typing import Any

from perfmodel.cli import COMMANDS, load_command

CHECKOUT = Path(__file__).resolve().parents[2]
LIMITS = Path(__file__).with_name("budget.json")
PACKAGES = ("perfmodel", "collectives", "embeddings", "topologies", "traces")
_NO_CODE = frozenset({
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER, tokenize.ENCODING,
})  # fmt: skip


def measure_rooms() -> dict[str, dict[str, int]]:
    """Tokens, files and classes by room, and the options of the command line."""
    rooms: dict[str, Counter[str]] = {}
    for package in PACKAGES:
        for path in sorted((CHECKOUT / package).rglob("*.py")):
            parts = path.relative_to(CHECKOUT).parts
            is_inner = package == "perfmodel" and len(parts) > 2
            room = rooms.setdefault("/".join(parts[:2]) if is_inner else package, Counter())
            room.update(_measure(path.read_text(encoding="utf-8")))
    rooms["perfmodel/cli"]["options"] = _count_options()
    return {name: dict(sorted(room.items())) for name, room in sorted(rooms.items())}


def _measure(text: str) -> dict[str, int]:
    tree = ast.parse(text)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        for item in getattr(node, "body", []) if not isinstance(node, ast.expr) else []:
            match item:
                case ast.Expr(value=ast.Constant(value=str())):
                    skipped.update(range(item.lineno, (item.end_lineno or item.lineno) + 1))
    tokens = sum(
        token.type not in _NO_CODE and token.start[0] not in skipped
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )
    classes = sum(isinstance(node, ast.ClassDef) for node in ast.walk(tree))
    return {"files": 1, "tokens": tokens, "classes": classes}


def _count_options() -> int:
    """Options of all commands together, each counted where it can be typed."""
    waiting = [load_command(name) for name in COMMANDS]
    count = 0
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        count += sum(one.param_type_name == "option" for one in command.params)
    return count


def find_overruns(
    measured: dict[str, dict[str, int]], limits: dict[str, dict[str, int]]
) -> list[str]:
    """What is above its limit, one sentence each; a new room has a limit of nothing."""
    return [
        f"{room}: {count} {what}, limit {limits.get(room, {}).get(what, 0)}"
        for room, counts in measured.items()
        for what, count in counts.items()
        if count > limits.get(room, {}).get(what, 0)
    ]


def load_limits() -> dict[str, dict[str, int]]:
    """The limits as committed."""
    limits: dict[str, dict[str, int]] = json.loads(LIMITS.read_text(encoding="utf-8"))
    return limits


def main() -> None:
    """Print the sizes; lower the limits if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lower", action="store_true")
    asked = parser.parse_args()
    measured, limits = measure_rooms(), load_limits() if LIMITS.exists() else {}
    totals: Counter[str] = Counter()
    for room, counts in measured.items():
        totals.update(counts)
        most = limits.get(room, {})
        print(room, *(f"{what} {count} of {most.get(what, 0)}" for what, count in counts.items()))
    print("all", *(f"{what} {count}" for what, count in totals.items()))
    if asked.lower:
        kept: dict[str, Any] = {
            room: {
                what: min(count, limits.get(room, {}).get(what, count))
                for what, count in counts.items()
            }
            for room, counts in measured.items()
        }
        lines = [f"  {json.dumps(room)}: {json.dumps(counts)}" for room, counts in kept.items()]
        LIMITS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
