"""`python -m tests.fingerprint`: ask all questions and write what was found.

python -m tests.fingerprint --texts --looks              after a change of prose
python -m tests.fingerprint --numbers --texts --looks    after a change of the model, with its
                                                         reason in CHANGELOG
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.fingerprint.asking import KINDS, ask, find_recorded, prepare
from tests.fingerprint.questions import QUESTIONS


def main() -> None:
    """Write the kinds that are wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    for kind in KINDS:
        parser.add_argument(f"--{kind}", action="store_true")
    wanted = vars(parser.parse_args())
    found: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
    with tempfile.TemporaryDirectory() as place:
        prepare(Path(place))
        for name in QUESTIONS:
            began = time.perf_counter()
            for kind, of_name in zip(KINDS, ask(name, Path(place)), strict=True):
                found[kind][name] = of_name
            print(f"{name}: {time.perf_counter() - began:.1f} s")
    for kind in filter(wanted.get, KINDS):
        lines = [
            f"{json.dumps(name)}: {{\n"
            + ",\n".join(f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
                         for key, value in of_name.items())
            + "\n}"
            for name, of_name in found[kind].items()
        ]  # fmt: skip
        find_recorded(kind).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
