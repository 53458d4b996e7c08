"""Constants with their corrections as the file that perfmodel reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.costs.calibration_files import Entry
from perfmodel.costs.corrections import (
    RANGE,
    Correction,
    Matrix,
    Network,
    OrderedCorrection,
    OrderedNetwork,
)
from perfmodel.extensions.measurements.calibration.constants_file import (
    documents_to_text,
    entry_to_document,
)

LARGE_MATRIX = 1000
TINY_WEIGHT = 1e-4


def entries_to_text(header: Mapping[str, str], entries: Sequence[Entry]) -> str:
    """A calibration file of *entries*, one entry per line."""
    documents = []
    for entry in entries:
        document = entry_to_document(entry)
        if entry.correction is not None:
            document["correction"] = correction_to_document(entry.correction)
        if entry.ordered is not None:
            document["ordered"] = ordered_to_document(entry.ordered)
        documents.append(document)
    return documents_to_text(header, documents)


def correction_to_document(correction: Correction) -> dict[str, Any]:
    """*correction* as plain lists, five digits, for a calibration file."""
    document = {name: _rounded(getattr(correction, name), digits=5) for name in RANGE}
    return {**document, "shift": _network_to_document(correction.shift)}


def ordered_to_document(correction: OrderedCorrection) -> dict[str, Any]:
    """*correction* as plain lists, six digits, for a calibration file."""
    document = {name: _rounded(getattr(correction, name), digits=6) for name in RANGE}
    order = {one.name: getattr(correction.order, one.name) for one in fields(OrderedNetwork)}
    return {
        **document,
        "order": {name: _rounded_weights(values) for name, values in order.items()},
        "spread": _network_to_document(correction.spread),
    }


def _network_to_document(network: Network) -> list[dict[str, Any]]:
    return [
        {"weight": _rounded(weight, digits=5), "bias": _rounded(bias, digits=5)}
        for weight, bias in network.layers
    ]


def _rounded(values: Matrix | NDArray[np.float32], *, digits: int) -> Any:
    flat = [float(f"{value:.{digits}g}") for value in values.ravel()]
    return np.array(flat).reshape(values.shape).tolist()


def _rounded_weights(values: NDArray[np.float64]) -> Any:
    """Weights for a file; large matrices keep three digits and drop their many tiny weights."""
    if values.size < LARGE_MATRIX:
        return _rounded(values, digits=6)
    return [
        [float(f"{value:.3g}") if value > TINY_WEIGHT else 0 for value in row]
        for row in values.tolist()
    ]
