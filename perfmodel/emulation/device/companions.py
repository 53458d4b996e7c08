"""Companions: packages beside torch that a CPU build would keep from being imported.

torchvision from PyPI is built for CUDA. Its native library does not load beside the CPU build,
and its Python part then stops at the operators that it describes; those are declared here.
Models, transforms and data sets need no more.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import torch

_DESCRIBED = tuple(
    f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms")
)


class CompanionFinder(MetaPathFinder):
    """Prepares for torchvision when it is first imported."""

    def __init__(self) -> None:
        self._libraries: list[torch.library.Library] = []
        self._is_prepared = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find nothing, but be asked first."""
        del path, target
        if fullname == "torchvision" and not self._is_prepared:
            self._is_prepared = True
            self._prepare()
        return None

    def _prepare(self) -> None:
        spec = find_spec("torchvision")
        if spec is None or spec.origin is None:
            return
        for library in Path(spec.origin).parent.glob("_C*.so"):
            try:
                torch.ops.load_library(str(library))
            except OSError:
                own = torch.library.Library("torchvision", "DEF")
                for schema in _DESCRIBED:
                    own.define(schema)
                self._libraries.append(own)
            return


def install_companions() -> None:
    """Be asked about imports before Python's own finders."""
    sys.meta_path.insert(0, CompanionFinder())
