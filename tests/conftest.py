"""What every test may ask for."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from perfmodel.base.extensions import has_extension
from perfmodel.cli import main

# The everyday profile draws the same examples each time, so that a red run is due to the
# change it tests; `HYPOTHESIS_PROFILE=ci` looks for new ones.
settings.register_profile("dev", max_examples=50, deadline=None, derandomize=True)
settings.register_profile("ci", max_examples=500, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out modules that need an extension in a tree that has none (`make core`)."""
    if has_extension("recordings") or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text(encoding="utf-8")
    return any(word in text for word in ("perfmodel.extensions", "tests.extensions")) or None


CHECKOUT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of measured tables; tests that need it skip where it is absent."""
    default = CHECKOUT.parent / "shared" / "data"
    folder = Path(os.environ.get("PERFMODEL_SHARED_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"measured tables are not here: {folder} is no directory")
    return folder


@dataclass(frozen=True)
class Typed:
    """What a command printed."""

    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON on standard output."""
        return json.loads(self.out)

    @property
    def said(self) -> str:
        """The message on standard error in one line; it is no traceback and no bug of ours."""
        assert "Traceback" not in self.err
        assert "internal fault" not in self.err
        return " ".join(self.err.split())


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Callable[..., Typed]:
    """Run a command in this process: its words in one text, more words, and the exit code."""

    def run(words: str, *more: object, code: int = 0) -> Typed:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([*shlex.split(words), *map(str, more)])
        shown = Typed(*capsys.readouterr())
        assert stop.value.code == code, shown.err
        return shown

    return run


@pytest.fixture
def ask(typed: Callable[..., Typed]) -> Callable[..., Any]:
    """Run a command and read its answer as JSON."""
    return lambda words, *more: typed(words, *more, "--json", "-").document


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> Any:
    """What the cases of a module with recorded values give, found once."""
    return request.module.values()
