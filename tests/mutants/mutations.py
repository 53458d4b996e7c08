"""Mutations: small wrong turns that a line of code could have taken.

Generic operators only: a comparison, a sign, a number one off, min for max, a
term left out, a branch swapped. Each is a change of one expression of one file,
written back as text in its place so that everything else stays as it was.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
SIGNS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*"}
RIVALS = {
    "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all",
    "all": "any", "floor": "ceil", "ceil": "floor", "argmin": "argmax", "argmax": "argmin",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutation:
    """*wrong* in place of the text between two offsets of *path*."""

    path: Path
    line: int
    start: int
    end: int
    right: str
    wrong: str

    def apply(self, text: str) -> str:
        """The whole file, mutated."""
        return text[: self.start] + self.wrong + text[self.end :]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.right!r} -> {self.wrong!r}"


def find_mutations(path: Path) -> list[Mutation]:
    """Every mutation of the file at *path*, in order of the text."""
    text = path.read_text(encoding="utf-8")
    source = _Source(path, text)
    found = [
        mutation
        for node in _iter_code(ast.parse(text))
        for mutation in source.mutate(node)
        if mutation.right != mutation.wrong
    ]
    return sorted(found, key=lambda one: (one.start, one.end, one.wrong))


def _iter_code(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run: no annotations, no texts of errors, and nothing that cannot happen."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list") or isinstance(tree, ast.Raise):
            continue
        # `strict=True` of a zip asserts that both are as long; asserts are left alone, too.
        if isinstance(tree, ast.keyword) and tree.arg == "strict":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr | ast.Assert):
                yield child
                yield from _iter_code(child)


class _Source:
    """The text of a file, and where its nodes stand in it."""

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._text = path, text
        self._starts = [0]
        for line in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def mutate(self, node: ast.AST) -> Iterator[Mutation]:
        """What can go wrong at *node*."""
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            wrong = COMPARISONS[type(node.ops[0])]
            left, right = self._of(node.left), self._of(node.comparators[0])
            yield self._rewrite(node, f"({left} {wrong} {right})")
        elif isinstance(node, ast.BinOp):
            yield from self._sum(node)
        elif isinstance(node, ast.Constant):
            yield from self._constant(node)
        elif isinstance(node, ast.IfExp | ast.If | ast.BoolOp | ast.UnaryOp):
            yield from self._branch(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield from self._swap_name(node.func)

    def _sum(self, node: ast.BinOp) -> Iterator[Mutation]:
        if type(node.op) not in SIGNS or self._is_text(node):
            return
        left, right = self._of(node.left), self._of(node.right)
        yield self._rewrite(node, f"(({left}) {SIGNS[type(node.op)]} ({right}))")
        if isinstance(node.op, ast.Add | ast.Sub):
            yield self._rewrite(node, f"({left})")

    def _constant(self, node: ast.Constant) -> Iterator[Mutation]:
        if isinstance(node.value, bool):
            yield self._rewrite(node, str(not node.value))
        elif isinstance(node.value, int):
            yield self._rewrite(node, str(node.value + 1))

    def _branch(self, node: ast.IfExp | ast.If | ast.BoolOp | ast.UnaryOp) -> Iterator[Mutation]:
        if isinstance(node, ast.IfExp):
            test, body, other = self._of(node.test), self._of(node.body), self._of(node.orelse)
            yield self._rewrite(node, f"(({other}) if {test} else ({body}))")
        elif isinstance(node, ast.If):
            yield self._rewrite(node.test, f"(not ({self._of(node.test)}))")
        elif isinstance(node, ast.BoolOp):
            word = " or " if isinstance(node.op, ast.And) else " and "
            yield self._rewrite(
                node, "(" + word.join(f"({self._of(value)})" for value in node.values) + ")"
            )
        elif isinstance(node.op, ast.Not | ast.USub):
            yield self._rewrite(node, f"({self._of(node.operand)})")

    def _swap_name(self, func: ast.Name | ast.Attribute) -> Iterator[Mutation]:
        name = func.id if isinstance(func, ast.Name) else func.attr
        if name in RIVALS:
            before = "" if isinstance(func, ast.Name) else f"{self._of(func.value)}."
            yield self._rewrite(func, before + RIVALS[name])

    def _is_text(self, node: ast.BinOp) -> bool:
        return any(
            isinstance(side, ast.JoinedStr)
            or (isinstance(side, ast.Constant) and isinstance(side.value, str))
            for side in (node.left, node.right)
        )

    def _offset(self, line: int, column: int) -> int:
        start = self._starts[line - 1]
        # Columns count bytes; our sources are nearly all ASCII, but not quite.
        return start + len(self._text[start:].encode()[:column].decode(errors="ignore"))

    def _span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._offset(node.lineno, node.col_offset),
            self._offset(node.end_lineno, node.end_col_offset),
        )

    def _of(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self._text[start:end]

    def _rewrite(self, node: ast.expr, wrong: str) -> Mutation:
        start, end = self._span(node)
        return Mutation(self._path, node.lineno, start, end, self._text[start:end], wrong)
