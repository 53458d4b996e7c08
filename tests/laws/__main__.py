"""`make laws`: thousands of random scenarios and what breaks a law."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from perfmodel.api.questions import build_scenario
from perfmodel.base.errors import PerfModelError
from perfmodel.execution.executor import SerialExecutor
from perfmodel.prediction.predict import predict
from tests.laws.agreements import AGREEMENTS, Agreement
from tests.laws.drawing import Case, draw_case
from tests.laws.laws import LAWS, Law, Quantity


@dataclass(frozen=True)
class Broken:
    """How a law was broken, and the name of the exemption that covers it."""

    words: str
    exemption: str = ""


def answer(case: Case, quantity: Quantity, folder: Path) -> int:
    """The predicted iteration of *case*, or the memory of its fullest rank."""
    question = build_scenario(case.scenario(folder))
    if quantity is Quantity.MEMORY:
        assert question.memory_fit is not None
        return question.memory_fit.peak_bytes
    # Only the time: nothing is explained.
    asked = replace(question, options=replace(question.options, is_explained=False))
    return predict(asked, executor=SerialExecutor()).period_ns


def check(case: Case, law: Law | Agreement, folder: Path) -> Broken | None:
    """How *case* breaks a *law* that applies to it; None if it does not."""
    if isinstance(law, Agreement):
        own_ns, other_ns = law.times_ns(case, folder)
        return None if law.holds(own_ns, other_ns) else Broken(f"{own_ns} and {other_ns} ns")
    first = law.start(case)
    second = law.change(first)
    assert second is not None
    before, after = (answer(one, law.quantity, folder) for one in (first, second))
    if law.relation.holds(before, after):
        return None
    change = after / before - 1
    covering = [
        one.name for one in law.exemptions if abs(change) <= one.bound and one.applies(first)
    ]
    return Broken(f"{before} -> {after} ({change:+.2%})", " or ".join(covering))


def applies(law: Law | Agreement, case: Case) -> bool:
    """Whether *law* says anything about *case*."""
    if isinstance(law, Agreement):
        return law.applies(case)
    return law.change(case) is not None


def main() -> int:
    """Draw, ask, print violations as they are found, and count them by law."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=lambda text: int(text, 0), default=1)
    parser.add_argument("--count", type=int, default=2000, help="Scenarios.")
    parser.add_argument("--first", type=int, default=0, help="Scenarios that are left out.")
    asked = parser.parse_args()
    chooser = random.Random(asked.seed)
    tried, broken, exempt = Counter[str](), Counter[str](), Counter[str]()
    refused = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for number in range(asked.count):
            case = draw_case(chooser)
            law = chooser.choice([one for one in (*LAWS, *AGREEMENTS) if applies(one, case)])
            if number < asked.first:
                continue
            if number % 50 == 0:
                print(f"{number} of {asked.count}", flush=True)
            try:
                fault = check(case, law, folder)
            except PerfModelError as error:
                refused += 1
                print(f"{number:>5} refused, {law.name}: {case}: {error}"[:400], flush=True)
                continue
            tried[law.name] += 1
            if fault is None:
                continue
            (exempt if fault.exemption else broken)[law.name] += 1
            shown = f"{number:>5} {law.name}: {case}: {fault.words} {fault.exemption}"
            print(shown.rstrip(), flush=True)
    for law in (*LAWS, *AGREEMENTS):
        print(
            f"{law.name:<40} {tried[law.name]:>5} tried {broken[law.name]:>4} broken "
            f"{exempt[law.name]:>4} exempt"
        )
    total = sum(broken.values())
    print(
        f"{total} of {sum(tried.values())} broken, {sum(exempt.values())} exempt, {refused} "
        f"refused, seed {asked.seed}"
    )
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
