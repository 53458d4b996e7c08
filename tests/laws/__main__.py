"""`make laws`: thousands of random scenarios and what breaks a law."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from perfmodel.api import predict
from perfmodel.base.errors import PerfModelError
from tests.laws.drawing import Case, draw_case
from tests.laws.laws import LAWS, Law


def time_ns(case: Case, folder: Path) -> int:
    """The predicted iteration of *case*."""
    return predict(case.scenario(folder), executor="serial").iteration_ns


def check(case: Case, law: Law, folder: Path) -> str:
    """How *case* breaks a *law* that applies to it; empty if it does not."""
    second = law.change(case)
    assert second is not None
    before_ns = time_ns(case, folder)
    after_ns = time_ns(second, folder)
    if law.relation.holds(before_ns, after_ns):
        return ""
    change = after_ns / before_ns - 1
    return f"{before_ns / 1e6:.4f} -> {after_ns / 1e6:.4f} ms ({change:+.2%})"


def main() -> int:
    """Draw, ask, print violations as they are found, and count them by law."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=lambda text: int(text, 0), default=1)
    parser.add_argument("--count", type=int, default=2000, help="Scenarios.")
    asked = parser.parse_args()
    chooser = random.Random(asked.seed)
    tried, broken = Counter[str](), Counter[str]()
    refused = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for number in range(asked.count):
            case = draw_case(chooser)
            law = chooser.choice([one for one in LAWS if one.change(case) is not None])
            try:
                fault = check(case, law, folder)
            except PerfModelError as error:
                refused += 1
                print(f"{number:>5} refused: {case}: {error}"[:400], flush=True)
                continue
            tried[law.name] += 1
            if fault:
                broken[law.name] += 1
                print(f"{number:>5} {law.name}: {case}: {fault}", flush=True)
    for law in LAWS:
        print(f"{law.name:<34} {tried[law.name]:>5} tried {broken[law.name]:>4} broken")
    total = sum(broken.values())
    print(f"{total} of {sum(tried.values())} broken, {refused} refused, seed {asked.seed}")
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
