"""The Python interface of emulation."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from perfmodel.api.questions import AUTO, File, Where, open_place
from perfmodel.extensions.emulation import emulate as emulation
from perfmodel.extensions.emulation.request import Emulation
from perfmodel.extensions.emulation.summary import EmulatedJob


def emulate(request: Emulation, out: File, **where: Unpack[Where]) -> EmulatedJob:
    """Run the torch script of *request* on virtual GPUs and write its job to the folder *out*."""
    with open_place(**AUTO | where) as place:
        return emulation.emulate(request, Path(out), place=place)
