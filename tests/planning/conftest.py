"""Tables that plans are made for."""

from __future__ import annotations

import pytest

TABLES = """
tables:
  - {name: hot, rows: 100000, width: 128, pooling_factor: 80, distribution: {zipf: 0.7}}
  - {name: warm, rows: 200000, width: 128, pooling_factor: 30, pooling_deviation: 9}
  - {name: mild, rows: 5000, width: 64, pooling_factor: 20}
  - {name: cold, rows: 1000, width: 64, pooling_factor: 2}
  - {name: tiny, rows: 10, width: 64, pooling_factor: 1}
"""


@pytest.fixture
def tables(tmp_path):
    """A file of five tables."""
    path = tmp_path / "tables.yaml"
    path.write_text(TABLES)
    return str(path)
