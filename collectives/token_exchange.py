"""Token exchanges: kernels of DeepEP and its kind that take tokens to their experts and back.

A token goes once to each rank that has experts for it, and once to each other host, whose ranks
pass it on. Three things may decide: the multiprocessors that the library takes, the NVLinks of a
GPU, its NICs. Before the payload every call counts tokens, and over hosts waits for the others.

Leaves out: uneven routing; callers give the tokens of the most loaded rank.
Source: kernels and their counting as in the public DeepEP; constants fitted to
`../shared/data/moe_exchange` (`experiments/fitting/token_exchange.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from collectives.wiring import Wiring
from perfmodel.base.documents import load_yaml
from perfmodel.base.provenance import Provenance

FILE = Path(__file__).parent / "calibrations" / "token_exchange.yaml"
SOFTNESS = 6.0
"""How sharply the slowest of multiprocessors, links and NICs decides."""
NS_PER_US = 1e3


class TokenLibrary(Enum):
    """Libraries that send a token once to a rank; the value is the word used in files."""

    DEEPEP = "deepep"
    HYBRIDEP = "hybridep"


@dataclass(frozen=True, slots=True)
class TokenRouting:
    """How *tokens* of a rank are spread: each chooses *top_k* of *experts* that the group divides.

    With *is_combine* their results come back. *sms* multiprocessors do the work. Tokens that choose
    experts *is_in_turn* take neighbours.
    """

    library: TokenLibrary
    tokens: int
    top_k: int
    experts: int
    is_combine: bool
    sms: int
    is_in_turn: bool = False

    def reached(self, places: int) -> float:
        """Places of *places* equal ones that a token is expected to be needed at."""
        held = self.experts // places
        if held < 1:
            return float(min(self.top_k, places))
        if self.is_in_turn:
            # Choices begin at multiples of top_k: a place begins or ends within some of them.
            is_even = held % self.top_k == 0 or self.top_k % held == 0
            several = self.top_k if is_even else held + self.top_k - 1
            return min(max(1.0, several / held), float(places))
        # None of top_k different experts is among those that a place holds.
        missed = math.prod(
            max(self.experts - held - number, 0) / (self.experts - number)
            for number in range(self.top_k)
        )
        return places * (1.0 - missed)


@dataclass(frozen=True, slots=True)
class ExchangeConstants:
    """What a direction of the exchange costs on a GPU, in microseconds of one multiprocessor.

    A call pays *floor_us*, *host_us* for every doubling of hosts and the square root of
    *fill_us* times its work. Work on multiprocessors is *token_us* a token, *copy_us* a copy,
    *byte_us* a byte of a copy; over several hosts, where half of the multiprocessors pass on what
    arrives, it is *relay_ratio* times as much.
    *link_ratio* and *nic_ratio* are shares of the datasheet's bandwidth.
    """

    floor_us: float
    host_us: float
    token_us: float
    copy_us: float
    byte_us: float
    fill_us: float
    relay_ratio: float
    link_ratio: float
    nic_ratio: float


@dataclass(frozen=True, slots=True)
class ExchangeTime:
    """A predicted call: its duration, what remains without bytes, and how long links are busy."""

    duration_ns: float
    latency_ns: float
    gpu_busy_ns: float
    nic_busy_ns: float
    relative_sigma: float
    provenance: Provenance


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeCalls:
    """Calls as columns: tokens, bytes of one, copies that leave a rank, hosts, and bandwidths."""

    tokens: Any
    token_bytes: Any
    copies: Any
    leaving: Any
    hosts: Any
    other_hosts: Any
    sms: Any
    link_bytes_per_s: Any
    nic_bytes_per_s: Any


def predict_exchange_us(calls: ExchangeCalls, constants: ExchangeConstants) -> Any:
    """Microseconds of *calls*, with those of links and NICs."""
    one, row = constants, calls.token_bytes
    work = one.token_us + calls.copies * (one.copy_us + one.byte_us * row)
    work = calls.tokens * work * np.where(calls.hosts > 1, one.relay_ratio, 1.0) / calls.sms
    link = calls.tokens * row * calls.leaving * 1e6 / (one.link_ratio * calls.link_bytes_per_s)
    nic = calls.tokens * row * calls.other_hosts * 1e6 / (one.nic_ratio * calls.nic_bytes_per_s)
    parts = np.stack(np.broadcast_arrays(work, link, nic)) + 1e-9
    largest = parts.max(axis=0)
    slowest = largest * ((parts / largest) ** SOFTNESS).sum(axis=0) ** (1 / SOFTNESS)
    start = one.floor_us + one.host_us * np.log2(calls.hosts)
    return start + slowest + np.sqrt(one.fill_us * slowest), link, nic


def price_tokens(routing: TokenRouting, size_bytes: int, wiring: Wiring) -> ExchangeTime:
    """Predict the exchange of *size_bytes* a rank, each token counted once, over *wiring*."""
    ranks, hosts = wiring.rank_count, wiring.host_count
    per_host = max(wiring.ranks_per_host, 1)
    constants, sigma, is_own = constants_for(wiring.architecture, routing)
    copies = routing.reached(ranks)
    calls = ExchangeCalls(
        tokens=float(routing.tokens),
        token_bytes=size_bytes / max(routing.tokens, 1),
        copies=copies,
        leaving=copies * (per_host - 1) / per_host,
        hosts=float(hosts),
        other_hosts=routing.reached(hosts) * (hosts - 1) / hosts,
        # HybridEP moves tokens without spending instructions on bytes, so that links decide.
        sms=float(routing.sms) if routing.library is TokenLibrary.DEEPEP else math.inf,
        link_bytes_per_s=wiring.pair_bandwidth_bytes_per_s,
        # NICs of a host serve all its ranks.
        nic_bytes_per_s=(wiring.nic_bandwidth_bytes_per_s or math.inf) / per_host,
    )
    (duration, link, nic), (nothing, _, _) = (
        predict_exchange_us(one, constants)
        for one in (calls, ExchangeCalls(**{**_fields(calls), "tokens": 0.0}))
    )
    wait_ns = wiring.call_latency_ns
    provenance = Provenance.INTERPOLATED if is_own else Provenance.EXTRAPOLATED
    return ExchangeTime(
        duration_ns=float(duration) * NS_PER_US + wait_ns,
        latency_ns=float(nothing) * NS_PER_US + wait_ns,
        gpu_busy_ns=float(link) * NS_PER_US,
        nic_busy_ns=float(nic) * NS_PER_US,
        relative_sigma=sigma,
        provenance=provenance,
    )


def _fields(calls: ExchangeCalls) -> dict[str, Any]:
    return {name: getattr(calls, name) for name in ExchangeCalls.__slots__}


@lru_cache(maxsize=1)
def load_constants() -> Mapping[str, Any]:
    """The fitted constants by architecture and direction, and how far they were off."""
    return load_yaml(FILE)


def constants_for(
    architecture: str, routing: TokenRouting
) -> tuple[ExchangeConstants, float, bool]:
    """Constants of *routing* on *architecture*, their spread, and whether they are its own.

    A generation without measurements uses those of the newest one; only DeepEP was measured, so
    other libraries have the spread of an unseen GPU.
    """
    file = load_constants()
    own = file["architectures"].get(architecture)
    found = own or file["architectures"][file["stand_in"]]
    is_own = own is not None and routing.library is TokenLibrary.DEEPEP
    direction = "combine" if routing.is_combine else "dispatch"
    sigma = file["sigma"] if is_own else file["unseen_sigma"]
    return ExchangeConstants(**found[direction]), sigma, is_own
