"""How Sphinx builds the manual: pages in MyST, references generated from the code, no network."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from generate import write_generated_pages  # noqa: E402 - the checkout must be on the path first

import perfmodel  # noqa: E402 - as above

project = "perfmodel"
author = "the authors of perfmodel"
project_copyright = "Apache-2.0"
version = release = perfmodel.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
# ARCHITECTURE.md and SCHEMA.md are written for the repository: their links lead to files there.
suppress_warnings = ["myst.xref_missing", "myst.header"]
exclude_patterns = ["_build", "_generated", "README.md"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
# Types that `perfmodel.api` imports only for checking are named, not linked.
nitpicky = False

html_theme = "furo"
html_title = f"perfmodel {release}"
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"

write_generated_pages(HERE / "_generated")
