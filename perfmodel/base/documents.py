"""Documents: YAML from untrusted files, and the lines of its keys.

Aliases are refused: a few hundred bytes of nested aliases expand to gigabytes, and none of our
formats needs them. YAML does not notice a missing end, so a document that starts with `---` must
end with `...`, as all of ours do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from perfmodel.base.errors import InputError
from perfmodel.base.reading import quote, read_text

MAX_DOCUMENT_BYTES = 8 * 2**20
MOST_FILES = 8
"""How many files are kept in memory to find lines in."""


def _refusal(node: Any, rule: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, rule, node.start_mark)


class _Strict:
    """Before a loader: no aliases and no repeated keys."""

    def compose_node(self: Any, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            rule = "aliases (*name) are not allowed; write the value out"
            raise _refusal(self.peek_event(), rule)
        return super().compose_node(parent, index)  # type: ignore[misc]  # the loader's

    def construct_mapping(self: Any, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refusal(key, "a key must be a plain word")
            if key.value in seen:
                raise _refusal(key, f"key {key.value!r} occurs twice")
            seen.add(key.value)
            if not isinstance(self.construct_object(key), str):
                raise _refusal(key, f"key {key.value} must be a word; quote it")
        return super().construct_mapping(node, deep)  # type: ignore[misc]  # the loader's


def _construct_number(loader: Any, node: Any) -> int | float:
    """A number as people read it: YAML 1.1 takes 017 for 15, 0x10 for 16 and 1:30 for 90."""
    if not _DECIMAL.fullmatch(node.value):
        raise _refusal(node, f"{quote(node.value)} must be a decimal number; quote a word")
    is_whole = node.tag.endswith(":int")
    construct = loader.construct_yaml_int if is_whole else loader.construct_yaml_float
    number: int | float = construct(node)
    return number


_DECIMAL = re.compile(
    r"[-+]?(?:(?:0|[1-9][0-9_]*)(?:\.[0-9_]*)?(?:e[-+]?[0-9]+)?|\.[0-9_]+|\.inf)|\.nan",
    re.IGNORECASE,
)


class _StrictLoader(_Strict, yaml.SafeLoader):
    """Safe YAML, made stricter."""


_LOADERS: list[Any] = [_StrictLoader]
with suppress(ImportError):
    from yaml.cyaml import CParser  # type: ignore[attr-defined]  # stubs do not export it

    class _FastLoader(_Strict, Composer, CParser, SafeConstructor, Resolver):
        """The same with libyaml's scanner, which is ten times as fast.

        Python's composer comes first: it is the one that is made stricter.
        """

        def __init__(self, stream: Any) -> None:
            CParser.__init__(self, stream)
            for part in (Composer, SafeConstructor, Resolver):
                part.__init__(self)

    _LOADERS.insert(0, _FastLoader)
for _loader in _LOADERS:
    for _tag in ("int", "float"):
        _loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _construct_number)


def load_yaml(path: Path, *, error_type: type[InputError] = InputError) -> dict[str, Any]:
    """Read the mapping in the YAML file at *path*; anything else raises *error_type*."""
    text = read_yaml(path, error_type=error_type)
    return parse_yaml(text, document=str(path), error_type=error_type)


def read_yaml(path: Path, *, error_type: type[InputError], must_close: bool = False) -> str:
    """The text of the YAML file at *path*, unless it was cut.

    With *must_close* the end must be marked although the beginning is not.
    """
    text = read_text(path, error_type, MAX_DOCUMENT_BYTES)
    if (must_close or _BEGINNING.match(text)) and not _END.search(text):
        _check_no_other_format(text, str(path), error_type)
        raise error_type(
            f"{path}: must end with a line `...`, but does not: it may have been cut. Add the "
            "line if nothing is missing."
        )
    return text


_BEGINNING = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\r?\n)*---(?:\s|$)")
_END = re.compile(r"(?:^|\n)\.\.\.\s*$")


def _parse(text: str) -> Any:
    for loader in _LOADERS[:-1]:
        # The slow one says better what is wrong.
        with suppress(yaml.YAMLError):
            return yaml.load(text, Loader=loader)  # noqa: S506  safe, and made stricter
    return yaml.load(text, Loader=_StrictLoader)  # noqa: S506  a SafeLoader, made stricter


def parse_yaml(
    text: str, *, document: str, error_type: type[InputError] = InputError
) -> dict[str, Any]:
    """Read the mapping in *text*; *document* names it in errors."""
    try:
        content = _parse(text)
    except yaml.YAMLError as fault:
        _check_no_other_format(text, document, error_type)
        raise error_type(f"{document}: not valid YAML. {_one_line(fault)}") from None
    except (RecursionError, ValueError) as fault:
        raise error_type(f"{document}: not readable as YAML ({type(fault).__name__}).") from None
    if content is None:
        raise error_type(f"{document}: is empty; must be lines of `key: value`.")
    if not isinstance(content, dict):
        _check_no_other_format(text, document, error_type)
        raise error_type(
            f"{document}: must be lines of `key: value`, or a file of a program that is known here."
        )
    return content


_OTHER_FORMATS = {
    "output of nccl-tests": (re.compile(r"(?s).*(?:nThread|out-of-place|NCCL INFO)"),
                             "`perfmodel calibrate collectives` fits constants to it"),
    "XML": (re.compile(r"\s*<[?!/A-Za-z]"), "NCCL's topology XML is given with --topology"),
    "a shell script": (re.compile(r"#![^\n]*sh\b"),
                       "Only Megatron-LM's arguments are read; `perfmodel emulate` runs scripts"),
    "a table": (re.compile(r"[^\n:,]*(?:,[^\n:,]*){2,}\r?\n"),
                "`perfmodel calibrate runs` and `calibrate kernels` make a calibration of one"),
    "a Python script": (re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*(?:import|from) +[\w.]+"),
                        "`perfmodel emulate` makes a job of a script"),
    "TOML": (re.compile(r"""(?:[ \t]*(?:[#;][^\n]*)?\r?\n)*[ \t]*"""
                        r"""(?:\[\[?[\w .'"-]+\]\]?[ \t]*(?:[#;\r\n]|$)|[\w.'"-]+[ \t]*=[^=])"""),
             "A file of torchtitan is given with --workload, or with --layout-from for its layout"),
}  # fmt: skip
"""How files begin that are not YAML, and what they are for; TOML may be INI, too."""


def _check_no_other_format(text: str, document: str, error_type: type[InputError]) -> None:
    """Raise if *text*, which is not a YAML mapping, is of a format that is mistaken for one."""
    for name, (beginning, purpose) in _OTHER_FORMATS.items():
        if beginning.match(text):
            raise error_type(
                f"{document}: looks like {name}, but must be YAML: `key: value` lines. {purpose}; "
                "`perfmodel init` writes files to start from."
            )


def parse_value(text: str) -> Any:
    """The value that *text* says, read as strictly as a document; ValueError where it says none."""
    try:
        return _parse(text)
    except (yaml.YAMLError, RecursionError) as fault:
        raise ValueError(str(fault)) from None


def _one_line(fault: yaml.YAMLError) -> str:
    if isinstance(fault, yaml.MarkedYAMLError) and fault.problem_mark is not None:
        mark = fault.problem_mark
        return f"Line {mark.line + 1}, column {mark.column + 1}: {fault.problem}."
    return " ".join(str(fault).split())


def find_line(files: Sequence[tuple[str, str]], path: str) -> str:
    """*path* with its line, in the first of *files* (name and text) that has most of it.

    Each file extends the next one; the first is not named.
    """
    found = [_descend(_compose(text), path) for _, text in files]
    number = min(range(len(found)), key=lambda one: len(found[one][0]))
    line = found[number][1]
    file = f" of {Path(files[number][0]).name}" if number else ""
    return f"{path} (line {line}{file})" if line else path


@lru_cache(maxsize=MOST_FILES)
def _compose(text: str) -> Any:
    for loader in _LOADERS:
        with suppress(yaml.YAMLError):
            return yaml.compose(text, Loader=loader)
    return None


def _descend(node: Any, path: str) -> tuple[str, int]:
    """What is left of *path* below the last key of it that *node* has, and the line of that."""
    inner: tuple[str, int] = (path, 0)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            rest = path.removeprefix(key.value)
            if rest != path and rest[:1] in ("", ".", "["):
                left, line = _descend(value, rest.removeprefix("."))
                inner = left, line or key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode) and path.startswith("["):
        number, _, rest = path[1:].partition("]")
        if number.isdecimal() and int(number) < len(node.value):
            item = node.value[int(number)]
            left, line = _descend(item, rest.removeprefix("."))
            inner = left, line or item.start_mark.line + 1
    return inner


def list_documents(folder: Path) -> tuple[str, ...]:
    """Names of the documents in *folder*, in order."""
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


_HOUSE = Path(__file__).parents[2]
_CATALOGS = {
    _HOUSE / "topologies" / "catalog": "--topology",
    _HOUSE / "perfmodel" / "workloads" / "specs": "--workload",
    _HOUSE / "perfmodel" / "stacks" / "catalog": "--stack",
}
"""Folders of what has a name, and the option that takes it."""


def find_document(
    name_or_path: str | Path, *, folder: Path, what: str, error_type: type[InputError]
) -> Path:
    """The file that *name_or_path* means: a path that exists, else a name in *folder*."""
    path = Path(name_or_path)
    known = list_documents(folder)
    stem = path.name.removesuffix(".yaml").removesuffix(".yml")
    if stem not in known:  # DGX-H100 is dgx_h100
        stem = stem.lower().replace("-", "_")
    is_name = path.name == str(name_or_path) and stem in known
    if str(name_or_path).strip() and _exists(path) and not (path.is_dir() and is_name):
        return path
    if is_name:
        return folder / f"{stem}.yaml"
    # h100 is part of h100_sxm, and only looks like gv100.
    near = [name for name in known if stem and stem in name.split("_")]
    near = near or get_close_matches(stem, known, n=3, cutoff=0.5)
    # hgx_h100 means that GPU, whatever its machine is called.
    models = {part for part in stem.split("_") if any(letter.isdigit() for letter in part)}
    near.sort(key=lambda name: models.isdisjoint(name.split("_")))
    hint = f"Near: {', '.join(near)}." if near else f"Known: {', '.join(known)}."
    if path.name != str(name_or_path):
        hint = f"Check the path; nothing is downloaded from a hub. {hint if near else ''}".rstrip()
    others = {kind: option for kind, option in _CATALOGS.items() if folder != kind}
    if "," in stem:
        hint = f"Only one can be given; `perfmodel compare` takes several. {hint}"
    if found := next((one for kind, one in others.items() if stem in list_documents(kind)), ""):
        hint = f"It is the name of another thing. Give it with {found}."
    raise error_type(
        f"{what} {str(name_or_path)!r}: no such file, and nothing shipped has that name. {hint}"
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, or with a zero byte in it
        return False
