"""Write what commands and cells print into README and manual: python -m tests.manual [PAGE...]."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.manual.pages import CHECKOUT, PAGES, follow, rewritten

chosen = [Path(name).resolve() for name in sys.argv[1:]] or PAGES
for path in chosen:
    page = path.read_text()
    with tempfile.TemporaryDirectory() as folder:
        new = rewritten(page, list(follow(page, Path(folder))))
    path.write_text(new)
    print("written" if new != page else "the same", path.relative_to(CHECKOUT))
if not sys.argv[1:]:
    subprocess.run([sys.executable, CHECKOUT / "docs" / "notebook.py"], check=True)
