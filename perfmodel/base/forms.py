"""Forms: documents read into frozen values, with every fault at its place.

A frozen dataclass that inherits `Form` describes one mapping of a document. A field is called as
in Python without the unit (`launch_ns` is `launch: 5 us`) unless it has an alias; the alias
`memory.size` is the key `size` of the section `memory`. pydantic checks the values
(`fields` has their types), and `faults` says what it finds in sentences with a line or a path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache, partial, reduce
from pathlib import Path
from typing import Any, ClassVar, TypeVar, Union, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import core_schema

from perfmodel.base.documents import find_line, parse_yaml, read_yaml
from perfmodel.base.errors import InputError
from perfmodel.base.faults import FaultList, iter_faults
from perfmodel.base.fields import Line, as_fault

T = TypeVar("T")
MOST_LEVELS = 8
"""How many documents one may extend, one after the other."""


def key_of(field: str) -> str:
    """The key of *field* in a document: its name without the unit."""
    return re.sub(r"_(ns|bytes|bytes_per_s|flops|hz|w)$", "", field)


KEEPS_UNITS = ConfigDict(extra="forbid")
"""`__pydantic_config__` of forms whose keys are the names of fields, units and all."""


class Form:
    """What a frozen dataclass inherits to be read from a document.

    *sections* are the keys whose mappings are read into fields with a dotted alias.
    """

    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="forbid", alias_generator=key_of)
    sections: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.no_info_wrap_validator_function(cls._read, handler(source))

    @classmethod
    def _read(cls, content: Any, handler: Callable[[Any], Any]) -> Any:
        if cls.sections and isinstance(content, Mapping):
            content = dict(_iter_flat(content, cls.sections))
        return as_fault(handler, content)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        document: dict[str, Any] = handler.resolve_ref_schema(handler(schema))
        needed = document.get("required", [])
        for section in cls.sections:
            keys = [key for key in document["properties"] if key.startswith(f"{section}.")]
            inner = {key.partition(".")[2]: document["properties"].pop(key) for key in keys}
            required = [key.partition(".")[2] for key in keys if key in needed]
            document["properties"][section] = {
                "type": "object",
                "additionalProperties": False,
                "properties": inner,
                "required": required,
            }
            needed += [section] if required else []
        if cls.sections:
            document["required"] = [key for key in needed if key in document["properties"]]
        return document


def _iter_flat(content: Mapping[str, Any], sections: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if key in sections and isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", one) for inner, one in value.items())
        else:
            yield key, value


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationHeader(Form):
    """What every file of fitted constants states about itself."""

    source: Line
    hardware: Line
    software: Line
    date: Line
    licence: Line
    command: Line

    @property
    def about(self) -> dict[str, str]:
        """The header by its keys."""
        return {one.name: getattr(self, one.name) for one in fields(CalibrationHeader)}


@dataclass(frozen=True, slots=True)
class Document:
    """What a document says before it is checked.

    *locate* makes a path a place; *advice* ends the list of its faults.
    """

    name: str
    content: Any
    error_type: type[InputError] = InputError
    locate: Callable[[str], str] = str
    advice: str = ""

    def faults(self) -> FaultList:
        """A list for faults of this document."""
        return FaultList(self.name, locate=self.locate)

    def read(self, kind: Callable[..., T]) -> T:
        """The document as a *kind*."""
        try:
            value: T = _adapter(kind).validate_python(self.content)
        except ValidationError as error:
            faults = self.faults()
            for place, rule in iter_faults(error, self.content, partial(_schema, kind)):
                faults.add(place or "file", rule)
            faults.check(self.error_type, self.advice)
            raise
        return value


def load_document(path: Path, error_type: type[InputError], *, what: str = "") -> Document:
    """The YAML file at *path*; *what* it is comes before its name in errors."""
    text = read_yaml(path, error_type=error_type)
    return replace(parse_document(text, str(path), error_type), name=f"{what} {path}".strip())


def parse_document(text: str, name: str, error_type: type[InputError]) -> Document:
    """The YAML document in *text*; *name* names it in errors."""
    content = parse_yaml(text, document=name, error_type=error_type)
    return Document(name, content, error_type, partial(find_line, [(name, text)]))


@lru_cache(maxsize=64)
def _parse_shared(text: str, document: str, error_type: Any) -> dict[str, Any]:
    """What *text* says; many documents extend the same few, and nothing may change these."""
    return parse_yaml(text, document=document, error_type=error_type)


def load_extended(
    path: Path,
    error_type: type[InputError],
    *,
    find: Callable[[str], Path],
    merge: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]],
) -> Document:
    """The YAML file at *path*, merged over what its key `extends` names."""
    files: list[tuple[str, str]] = []
    contents: list[dict[str, Any]] = []
    following: Path | None = path
    while following is not None:
        if len(files) > MOST_LEVELS:
            raise error_type(f"{path}: `extends` chain is longer than {MOST_LEVELS}; is it a loop?")
        text = read_yaml(following, error_type=error_type, must_close=True)
        files.append((following.name, text))
        contents.append(_parse_shared(text, str(following), cast("Any", error_type)))
        following = find(str(contents[-1]["extends"])) if "extends" in contents[-1] else None
    content = reduce(merge, reversed(contents))
    return Document(str(path), content, error_type, partial(find_line, files))


def read_mapping(
    kind: Callable[..., T],
    content: Any,
    *,
    document: str,
    error_type: type[InputError] = InputError,
) -> T:
    """*content* as a *kind*; *document* names it in errors."""
    return Document(document, content, error_type).read(kind)


def to_plain(value: Any) -> Any:
    """*value* as a document states it, without what is at its default."""
    adapter = _adapter(cast("Any", type(value)))
    return adapter.dump_python(value, mode="json", by_alias=True, exclude_defaults=True)


DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(*kinds: Any) -> dict[str, Any]:
    """The JSON Schema of documents that are read as one of *kinds*."""
    return {"$schema": DIALECT, **_adapter(Union[kinds]).json_schema()}  # noqa: UP007  made of a list


_schema = cache(json_schema)
"""The same, for faults only: nothing may change it."""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
