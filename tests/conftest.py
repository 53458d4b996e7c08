"""What every test may ask for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The everyday profile draws the same examples each time, so that a red run is due to the
# change it tests; `HYPOTHESIS_PROFILE=ci` looks for new ones.
settings.register_profile("dev", max_examples=50, deadline=None, derandomize=True)
settings.register_profile("ci", max_examples=500, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

CHECKOUT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of measured tables; tests that need it skip where it is absent."""
    default = CHECKOUT.parent / "shared" / "data"
    folder = Path(os.environ.get("PERFMODEL_SHARED_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"measured tables are not here: {folder} is no directory")
    return folder
