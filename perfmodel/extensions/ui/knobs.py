"""Knobs: every setting of the page, from the tables and schemas that the commands are made of.

A state is what stands after `#` in the address: settings by name, those of a model as after
`--set`. What is missing is open. Four knobs make the machine's parts faster or slower: they write
a machine file, so any answer is one of `perfmodel predict`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from perfmodel import api
from perfmodel.base.documents import find_document, load_yaml
from perfmodel.base.dtypes import DType
from perfmodel.base.errors import InputError, TopologyError
from perfmodel.base.units import parse_count
from perfmodel.extensions.ui.files import Files
from perfmodel.prediction.layouts.candidates import searched_fields
from perfmodel.prediction.scenario import RunQuestion, Scenario
from perfmodel.reports.text import pick, to_command
from perfmodel.workloads.fields import Workload
from topologies.device import load_device_document
from topologies.recognising import CATALOG

FIRST = ("batch", "sequence_length", *searched_fields().values(), "training.compute")
"""Fields that are shown at once; the others are folded by section."""
ABOUT = ("name", "description", "source", "stack", "family")
SCALES = {"compute": "compute", "memory": "GPU memory", "nvlink": "NVLink", "nic": "NIC"}
"""Parts of a machine that can be made faster, and their names."""
MOST_HOSTS = 4096


class Knob(NamedTuple):
    """A field of a model; a number, a text, or one of *choices*."""

    key: str
    section: str
    is_first: bool
    choices: tuple[str, ...]
    is_number: bool

    @property
    def label(self) -> str:
        """Its name on the page."""
        return self.key.rpartition(".")[2].replace("_", " ")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a state asks for: a scenario, and perhaps a whole run and a price."""

    scenario: Scenario
    price: float | None
    run: RunQuestion

    @property
    def command(self) -> str:
        """What to type for the same answer."""
        return to_command("predict", self.scenario, run=self.run, price=self.price)

    @property
    def python(self) -> str:
        """The same in Python."""
        one = self.scenario
        given = pick(one, "topology", "workload", "hosts", "stack", "overrides")
        words = ", ".join(f"{key}={value!r}" for key, value in given.items() if value)
        return f"from perfmodel import api\nprint(api.predict(api.Scenario({words})))"


@cache
def list_knobs(family: str) -> tuple[Knob, ...]:
    """The settings of the models of *family*, those that are shown at once first."""
    schema = api.json_schema("workload")
    of_family = next(
        one for one in schema["$defs"].values()
        if one.get("properties", {}).get("family", {}).get("const") == family
    )  # fmt: skip
    found = list(_iter_knobs(of_family, schema["$defs"], ""))
    return tuple(
        sorted(found, key=lambda one: FIRST.index(one.key) if one.is_first else len(FIRST))
    )


def _iter_knobs(
    section: Mapping[str, Any], known: Mapping[str, Any], prefix: str
) -> Iterator[Knob]:
    for name, field in section["properties"].items():
        kinds = [one for one in field.get("anyOf", [field]) if one.get("type") != "null"]
        kinds = [known[one["$ref"].rpartition("/")[2]] if "$ref" in one else one for one in kinds]
        kind, key = kinds[0], prefix + name
        if "properties" in kind:
            yield from _iter_knobs(kind, known, f"{key}.")
        elif kind["type"] != "array" and key not in ABOUT:
            choices = kind.get("enum", ["true", "false"] if kind["type"] == "boolean" else [])
            if kind.get("examples") == [DType.BF16.value]:
                choices = [one.value for one in DType]
            is_number = kind["type"] in ("integer", "number")
            yield Knob(key, prefix.rstrip("."), key in FIRST, tuple(map(str, choices)), is_number)


def now(workload: Workload) -> dict[str, str]:
    """The values of all knobs of *workload*, by key; none for those that are open."""
    values = dict(_iter_values(workload.model_dump(mode="json"), ""))
    return {one.key: values[one.key] for one in list_knobs(values["family"]) if one.key in values}


def _iter_values(content: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _iter_values(value, f"{prefix}{name}.")
        elif value is not None:
            yield prefix + name, as_text(value)


def as_text(value: Any) -> str:
    """*value* as it is typed."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_state(state: Mapping[str, str], files: Files) -> Asked:
    """What *state* asks for; only the catalogs and *files* are read."""
    workload = files.find("workload", state.get("workload", ""))
    knobs = {one.key: one for one in list_knobs(api.load_workload(workload).family)}
    others = {"workload", "topology", "hosts", "stack", "price", "tokens", *SCALES}
    given = {key: value for key, value in state.items() if value}
    unknown = sorted(key for key in given if key not in others and key not in knobs)
    if unknown:
        raise InputError(f"{', '.join(unknown)}: {workload} has no such setting. Clear it.")
    for key in given.keys() & knobs.keys():
        _check_choice(key, given[key], knobs[key].choices)
    stack = given.get("stack")
    if stack is not None:
        _check_choice("stack", stack, api.list_stacks())
    tokens = given.get("tokens")
    try:
        run = RunQuestion(tokens=parse_count(tokens) if tokens else None)
        price = float(given["price"]) if "price" in given else None
        hosts = int(given.get("hosts", "1"))
        scales = {part: float(given[part]) for part in SCALES if part in given}
    except ValueError as fault:
        raise InputError(f"hosts, price and tokens must be numbers ({fault}).") from None
    if not 1 <= hosts <= MOST_HOSTS or (price or 0) < 0:
        raise InputError(f"hosts must be 1 to {MOST_HOSTS}, and a price 0 or more.")
    machine = change_machine(files.find("topology", state.get("topology", "")), scales, files)
    overrides = tuple(f"{key}={given[key]}" for key in knobs if key in given)
    return Asked(Scenario(machine, workload, overrides, hosts, stack=stack), price, run)


def _check_choice(key: str, value: str, choices: Collection[str]) -> None:
    if choices and value not in choices:
        raise InputError(f"{key}: must be one that the page offers, got {value!r}.")


def change_machine(name: str, scales: Mapping[str, float], files: Files) -> str:
    """The machine called *name* with parts that are so many times as fast, as a file."""
    scales = {part: ratio for part, ratio in scales.items() if ratio != 1}
    if not scales:
        return name
    if any(not 0.01 <= ratio <= 100 for ratio in scales.values()):
        raise InputError("A part of a machine must be 0.01 to 100 times as fast.")
    path = find_document(name, folder=CATALOG, what="topology", error_type=TopologyError)
    ending = "".join(f"_{part}_{ratio}" for part, ratio in scales.items())
    content = load_yaml(path)
    beside = path.parent / f"{content['device'].removesuffix('.yaml')}.yaml"
    device = load_device_document(beside if beside.is_file() else beside.stem).content
    links = [one for one in content.get("links", ()) if one.get("kind") == "nvlink"]
    fabric = content.get("fabric", {})
    rates: dict[str, list[tuple[dict[str, Any], str]]] = {
        "compute": [(device, "vector_fp32"), *((device["peak"], one) for one in device["peak"])],
        "memory": [(device["memory"], "bandwidth")],
        "nvlink": [(one, "bandwidth") for one in links],
        "nic": [(fabric["nic"], "bandwidth")] if fabric else [],
    }
    for part, ratio in scales.items():
        if not rates[part]:
            raise InputError(f"{name} has no {SCALES[part]} to change.")
        for place, key in rates[part]:
            place[key] = _times(place[key], ratio)
    content["name"], device["name"] = path.stem + ending, beside.stem + ending
    content["device"] = Path(files.write(device["name"], device)).name
    return files.write(content["name"], content)


def _times(quantity: str, ratio: float) -> str:
    number, unit = quantity.split(maxsplit=1)
    return f"{round(float(number) * ratio, 9)} {unit}"
