"""`python -m tests.fingerprint`: ask all questions and write what was found.

python -m tests.fingerprint --texts        after a change of prose
python -m tests.fingerprint --numbers      after a change of the model, with its reason in CHANGELOG
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from tests.fingerprint.asking import NUMBERS, TEXTS, ask, prepare
from tests.fingerprint.questions import QUESTIONS


def main() -> None:
    """Write the texts, the numbers, or both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", action="store_true")
    parser.add_argument("--numbers", action="store_true")
    asked = parser.parse_args()
    numbers, texts = {}, {}
    with tempfile.TemporaryDirectory() as place:
        prepare(Path(place))
        for name in QUESTIONS:
            began = time.perf_counter()
            numbers[name], texts[name] = ask(name, Path(place))
            print(f"{name}: {len(numbers[name])} places, {time.perf_counter() - began:.1f} s")
    for is_wanted, path, found in ((asked.numbers, NUMBERS, numbers), (asked.texts, TEXTS, texts)):
        if is_wanted:
            lines = [
                f"{json.dumps(name)}: {{\n"
                + ",\n".join(f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
                             for key, value in of_name.items())
                + "\n}"
                for name, of_name in found.items()
            ]  # fmt: skip
            path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
