"""Blocks of collective constants: what each learns from, and the fit of all of them.

One-host rows decide the host blocks, then rows of several hosts the fabric blocks;
`collective_blocks.yaml` lists both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from collectives.calibration import Calibration, Constants, load_default_calibration
from collectives.collective import Protocol
from collectives.constants import (
    FabricConstants,
    FabricEntry,
    HostConstants,
    HostEntry,
    SoftwareConstants,
)
from collectives.measurements import CollectiveMeasurement
from collectives.wiring import HostLinkClass
from perfmodel.base.documents import load_yaml
from perfmodel.base.errors import CalibrationError
from perfmodel.base.forms import read_mapping
from perfmodel.extensions.measurements.calibration.collective_fit import (
    FitRows,
    build_batches,
    fit_constants,
)

KIND_PULL, OWN_PULL = 0.25, 0.05
"""How strongly a network is drawn to its prior, against an error of a row of one."""

OF_HOST = ("proxy_ns", "ll_bytes_per_s")
"""What proxies do is of the host's processor: a network of its kind says nothing of it."""

_Entry = TypeVar("_Entry", HostEntry, FabricEntry)


@dataclass(frozen=True, slots=True)
class ConstantBlock(Generic[_Entry]):
    """A block of constants to fit: its *entry* with prior constants, and what it learns from.

    *prior* names the block that it starts from, of a network its kind; *frozen* constants keep
    their prior. Without rows
    its bandwidth is halfway from its prior's to what *reach_of* reaches where two ranks share a NIC
    and slow each other down.
    """

    entry: _Entry
    learns_from: tuple[str, ...]
    prior: str
    frozen: tuple[str, ...]
    reach_of: str = ""

    def rows(self, batches: Sequence[FitRows], *, several_hosts: bool) -> list[FitRows]:
        """Those of *batches* that it learns from."""
        return [
            batch
            for batch in batches
            if (batch.wiring.host_count > 1) is several_hosts
            and batch.wiring.topology_name in self.learns_from
        ]


@dataclass(frozen=True, slots=True)
class Blocks:
    """All blocks, in the order of fitting, and the priors that no block holds.

    *other_pcie* is how machines without rows borrow; machines *left_out* in turn show the error of
    unseen ones.
    """

    hosts: tuple[ConstantBlock[HostEntry], ...]
    fabrics: tuple[ConstantBlock[FabricEntry], ...]
    pcie: HostConstants
    software: SoftwareConstants
    other_pcie: Mapping[str, Any]
    left_out: tuple[str, ...]

    def with_pcie(self, entries: Sequence[HostEntry]) -> tuple[HostEntry, ...]:
        """*entries* and those of other PCIe machines."""
        rule, prior = self.other_pcie, self.pcie
        measured = {entry.name: entry.constants for entry in entries}
        usual = replace(
            measured.get(rule["learns_from"], prior),
            **{name: getattr(prior, name) for name in rule["frozen"]},
            **dict.fromkeys(rule["uncrowded"], 0.0),
        )
        others = [
            HostEntry(
                name=links,
                architecture=architecture,
                link_class=HostLinkClass(links),
                machines=(),
                constants=usual,
            )
            for links, architecture in rule["architectures"].items()
        ]
        return (*entries, *others)


@cache
def load_blocks() -> Blocks:
    """The blocks and priors that come with perfmodel."""
    path = Path(__file__).with_name("collective_blocks.yaml")
    content = load_yaml(path, error_type=CalibrationError)
    priors = content["priors"]
    nvlink, fabric = HostConstants(**priors["nvlink"]), FabricConstants(**priors["fabric"])
    pcie = replace(nvlink, **priors["pcie"])

    every = [protocol.value for protocol in Protocol]
    usual = {
        "machines": (),
        "protocols": every,
        "pair_ll_bytes": 0,
        "tree_reach": 1.0,
    }

    def block(
        kind: type[_Entry], one: Mapping[str, Any], prior: Any, frozen: Any
    ) -> ConstantBlock[_Entry]:
        names = {field.name for field in fields(kind)}
        own = {key: value for key, value in {**usual, **one}.items() if key in names}
        entry = read_mapping(kind, {**own, "constants": asdict(prior)}, document=path.name)
        frozen = tuple(one.get("frozen", frozen))
        source = tuple(one["learns_from"])
        return ConstantBlock(entry, source, one.get("prior", ""), frozen, one.get("reach_of", ""))

    def host(one: Mapping[str, Any]) -> ConstantBlock[HostEntry]:
        is_nvlink = HostLinkClass(one["link_class"]).is_nvlink
        return block(HostEntry, one, nvlink if is_nvlink else pcie, content["host_frozen"])

    def network(one: Mapping[str, Any]) -> ConstantBlock[FabricEntry]:
        prior = replace(fabric, **priors.get(one["prior"], {}))
        return block(FabricEntry, one, prior, content["fabric_frozen"])

    return Blocks(
        tuple(map(host, content["hosts"])),
        tuple(map(network, content["fabrics"])),
        pcie,
        SoftwareConstants(**priors["software"]),
        content["other_pcie"],
        tuple(content["left_out"]),
    )


def fit_collectives(measurements: Sequence[CollectiveMeasurement]) -> Calibration:
    """Fit all blocks that *measurements* have rows for; the others keep their priors."""
    if not measurements:
        raise CalibrationError("calibration of collectives: must be given measurements, got none.")
    blocks = load_blocks()
    skeleton = replace(
        load_default_calibration(),
        hosts=blocks.with_pcie([block.entry for block in blocks.hosts]),
        fabrics=tuple(block.entry for block in blocks.fabrics),
        software_constants=blocks.software,
        spans=(),
        uncertainty={},
    )
    batches = build_batches(measurements, skeleton)
    software = blocks.software
    hosts: dict[str, HostEntry] = {}
    for block in blocks.hosts:
        rows = block.rows(batches, several_hosts=False)
        if not rows:
            continue
        prior = hosts.get(block.prior, block.entry).constants
        host = _fit_host(rows, prior, software, block.frozen)
        if any(batch.call.software.is_before_2_24 for batch in rows):
            software = _fit_software(rows, host, software)
            host = _fit_host(rows, host, software, block.frozen)
        hosts[block.entry.name] = replace(block.entry, constants=host)
    partial = replace(
        skeleton, hosts=blocks.with_pcie(list(hosts.values())), software_constants=software
    )
    return replace(partial, fabrics=_fit_fabrics(batches, partial))


def _fit_host(
    rows: Sequence[FitRows],
    prior: HostConstants,
    software: SoftwareConstants,
    frozen: Sequence[str],
) -> HostConstants:
    return fit_constants(
        prior,
        rows,
        lambda batch, host: batch.predict_ns(Constants(host, None, software)),
        frozen=frozen,
    )


def _fit_software(
    rows: Sequence[FitRows], host: HostConstants, prior: SoftwareConstants
) -> SoftwareConstants:
    return fit_constants(
        prior, rows, lambda batch, tried: batch.predict_ns(Constants(host, None, tried))
    )


def _fit_fabrics(batches: Sequence[FitRows], partial: Calibration) -> tuple[FabricEntry, ...]:
    """Every network from its own rows, drawn to what all networks of its kind have in common.

    One without rows is what its kind has in common, and a kind without rows as the first one. What
    a kind has in common stands between its prior and what its machines say: the prior counts as
    one network more.
    """
    blocks = load_blocks().fabrics

    def fit(
        prior: FabricConstants,
        some: Sequence[ConstantBlock[FabricEntry]],
        pull: float,
        frozen: tuple[str, ...] = (),
    ) -> FabricConstants:
        rows = [row for one in some for row in one.rows(batches, several_hosts=True)]
        if not rows:
            return prior
        return fit_constants(
            prior,
            rows,
            lambda batch, fabric: batch.predict_ns(
                partial.constants(batch.wiring)._replace(fabric=fabric)
            ),
            frozen=(*some[0].frozen, *frozen),
            pull=pull,
        )

    common: dict[str, FabricConstants] = {}
    for kind in dict.fromkeys(block.prior for block in blocks):
        alike = [block for block in blocks if block.prior == kind]
        measured = [block for block in alike if block.rows(batches, several_hosts=True)]
        is_known = any(block.learns_from for block in alike)
        start = alike[0].entry.constants if is_known else next(iter(common.values()))
        common[kind] = _between(start, fit(start, alike, KIND_PULL, OF_HOST), len(measured))
    found = {block.entry.name: fit(common[block.prior], [block], OWN_PULL) for block in blocks}
    for block in blocks:
        if block.reach_of:
            own, other = found[block.entry.name], found[block.reach_of]
            reached = other.simple_ratio / (1.0 + other.nic_crowding)
            found[block.entry.name] = replace(own, simple_ratio=(own.simple_ratio + reached) / 2)
    return tuple(replace(one.entry, constants=found[one.entry.name]) for one in blocks)


def _between(prior: FabricConstants, fitted: FabricConstants, networks: int) -> FabricConstants:
    """Between *prior* and what was *fitted* to so many *networks*, in the logarithm."""
    share = networks / (networks + 1)
    start = asdict(prior)
    found = {name: start[name] ** (1 - share) * one**share for name, one in asdict(fitted).items()}
    return replace(prior, **found)
