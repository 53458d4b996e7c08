"""Built extensions: modules that a script compiles from C++ and CUDA sources.

Those without CUDA are built as on any machine. Of the others nothing is built: a call is one kernel
that reads and writes the tensors it is given. What it returns is read from the source of its C++
function, which usually allocates its results and calls a kernel that fills them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from perfmodel.extensions.emulation.driver.descriptions import tensors_in
from perfmodel.extensions.emulation.driver.gpu import Gpu
from perfmodel.extensions.emulation.driver.user_kernels import record_kernel

_FUNCTION = re.compile(
    r"\b(void|(?:[\w:]*\b(?:Tensor|vector|tuple)\b(?:\s*<[^;{()]*>)?))\s*&?\s*"
    r"(\w+)\s*\(([^(){};]*)\)\s*(?:\{|;)"
)
"""A C++ function that returns nothing or tensors: result, name, parameters."""
_BINDING = re.compile(r'\bdef\(\s*"(\w+)"\s*,\s*&?\s*(?:\w+::)*(\w+)')
_LOCAL = re.compile(r"\b(\w+)\s*=\s*([^;=][^;]*);")
_RETURN = re.compile(r"\breturn\s+([^;]*);")
_CALL = re.compile(r"(?:(?:torch|at|std)::)?(\w+)(?:<[^()]*>)?\s*[({](.*)[)}]", re.DOTALL)
_SPACES = re.compile(
    r"\b(?:torch|at|std|c10)::|\bstatic_cast<[^>]*>|\(\s*(?:int|int64_t|long)\s*\)"
)
_MOST_STEPS = 32
"""Names that are followed from a result to the call that makes it."""


class _Function(NamedTuple):
    """A C++ function: whether it returns something, its parameters, and its body if it has one."""

    has_result: bool
    parameters: tuple[str, ...]
    body: str


def install_extensions(gpu: Gpu, building: Any) -> None:
    """Answer extensions that need CUDA; the module *building* of torch makes the others."""
    load, load_inline = building.load, building.load_inline

    def answer(name: str, sources: Any, *more: Any, **words: Any) -> Any:
        paths = [Path(one) for one in _listed(sources)]
        if not (words.get("with_cuda") or any(path.suffix == ".cu" for path in paths)):
            return load(name, sources, *more, **words)
        return _unbuilt(gpu, name, [path.read_text(encoding="utf-8") for path in paths])

    def answer_inline(
        name: str, cpp_sources: Any, cuda_sources: Any = None, *more: Any, **words: Any
    ) -> Any:
        if not (words.get("with_cuda") or cuda_sources):
            return load_inline(name, cpp_sources, cuda_sources, *more, **words)
        return _unbuilt(gpu, name, [*_listed(cpp_sources), *_listed(cuda_sources)])

    building.load, building.load_inline = answer, answer_inline


def _listed(sources: Any) -> list[str]:
    return (
        [str(sources)] if isinstance(sources, str | Path) else [str(one) for one in sources or ()]
    )


def _unbuilt(gpu: Gpu, name: str, sources: Sequence[str]) -> ModuleType:
    """The extension *name*: a call of any function reads and writes all tensors it is given."""
    gpu.recorder.notes[
        f"The extension {name} is CUDA code and was not built: each call counts as one kernel that "
        "reads and writes its tensors, and returns what its C++ source allocates, or a tensor like "
        "its first where that is not clear."
    ] = None
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", "\n".join(sources), flags=re.DOTALL)
    functions, bound = _functions_in(text), dict(_BINDING.findall(text))

    def call(function: str, *args: Any, **words: Any) -> Any:
        given = tensors_in([args, *words.values()])
        result = _result_of(functions, bound.get(function, function), (*args, *words.values()))
        record_kernel(gpu, function, inputs=given, outputs=[*given, *tensors_in([result])])
        return result

    made: Any = ModuleType(name)
    made.__getattr__ = partial(partial, call)
    return cast("ModuleType", made)


def _functions_in(text: str) -> dict[str, _Function]:
    """Functions of the source *text*; a definition counts more than a declaration."""
    found: dict[str, _Function] = {}
    for match in _FUNCTION.finditer(text):
        result, name, parameters = match.groups()
        body = _block(text, match.end()) if match[0].endswith("{") else ""
        if body or name not in found:
            names = (re.findall(r"\w+", one.partition("=")[0]) for one in parameters.split(","))
            listed = tuple(words[-1] for words in names if words)
            found[name] = _Function(result != "void", listed, body)
    return found


def _block(text: str, start: int) -> str:
    """What is between the brace before *start* and the one that closes it."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return text[start:place]
    return text[start:]


def _result_of(functions: dict[str, _Function], name: str, args: Sequence[Any]) -> Any:
    """What the C++ function *name* returns, or a tensor like its first where that is not clear."""
    function = functions.get(name)
    if function is None or not function.has_result:
        return None
    try:
        return _Reader(functions, function, args).result()
    except Exception:  # Any C++ may be there; what cannot be read is taken to be like the input.
        given = tensors_in(list(args))
        return torch.empty_like(given[0]) if given else None


class _Reader:
    """Follows the result of *function* to what allocates it."""

    def __init__(
        self, functions: dict[str, _Function], function: _Function, args: Sequence[Any]
    ) -> None:
        self._functions = functions
        self._body = function.body
        self._known: dict[str, Any] = dict(zip(function.parameters, args, strict=False))
        self._locals = dict(_LOCAL.findall(function.body))
        self._steps = 0

    def result(self) -> Any:
        """The value of the last `return`."""
        found = self._value(_RETURN.findall(self._body)[-1])
        return found if isinstance(found, Tensor) else list(tensors_in(found))

    def _value(self, text: str) -> Any:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise RecursionError(text)
        text = text.strip()
        if text in self._known:
            return self._known[text]
        if text in self._locals:
            self._known[text] = self._value(self._locals[text])
            return self._known[text]
        if text.startswith("{"):
            return [self._value(part) for part in _parts(text[1:-1])]
        call = _CALL.fullmatch(text)
        if call is not None and "." not in text[: call.start(2)]:
            return self._called(call[1], _parts(call[2]))
        return self._number(text)

    def _called(self, name: str, parts: list[str]) -> Any:
        if name in self._functions:
            args = [self._value(part) for part in parts]
            return _Reader(self._functions, self._functions[name], args).result()
        if name in ("make_tuple", "vector", "tie"):
            return [self._value(part) for part in parts]
        make = getattr(torch, name)
        if name.endswith("_like"):
            return make(self._value(parts[0]))
        return make(self._value(parts[0]), **self._options(" ".join(parts[1:])))

    def _options(self, text: str) -> dict[str, Any]:
        """Format and device of a new tensor: as stated, else those of a tensor that is named."""
        text = " ".join([text, *(self._locals.get(word, "") for word in re.findall(r"\w+", text))])
        tensors = [one for one in self._known.values() if isinstance(one, Tensor)]
        named = [
            one
            for name, one in self._known.items()
            if isinstance(one, Tensor) and re.search(rf"\b{name}\b", text)
        ]
        like = next(iter((*named, *tensors)))
        stated = re.search(
            r"\bk(Float|Half|BFloat16|Double|Int|Long|Bool|Byte|Int32|Int64)\b", text
        )
        names = {"Byte": "uint8"}
        dtype = getattr(torch, names.get(stated[1], stated[1].lower())) if stated else like.dtype
        return {"device": like.device, "dtype": dtype}

    def _number(self, text: str) -> Any:
        """An expression over sizes, such as `x.size(0) / 2`."""
        plain = _SPACES.sub("", text).replace("sizes()", "shape").replace("/", "//")
        for name in set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", plain)) - set(self._known):
            self._known[name] = self._value(name) if name in self._locals else None
        return eval(plain, {"__builtins__": {}}, self._known)  # noqa: S307  the user's own source


def _parts(text: str) -> list[str]:
    """The parts of *text* between commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]
