"""Where the time of a large model with experts goes, with and without overlap of the exchange.

python experiments/experts_time/run.py [--quick] [--out FOLDER]
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from experiments.figures import COLOURS, PAGE, new_figure, read_measured, read_wishes
from perfmodel.api import Scenario, predict
from perfmodel.reports.document import to_document

KINDS = {
    "experts' GEMMs": ("ffn/experts up", "ffn/experts down"),
    "exchange of tokens": ("ffn/dispatch", "ffn/combine"),
    "attention": ("attention/core",),
    "other GEMMs": ("attention/", "ffn/router", "ffn/up", "ffn/down", "head/logits"),
}
"""Parts of the critical path, by what their labels contain; the first that fits."""
REST = "kernels of memory, transfers, optimizer"


def main() -> None:
    """Predict every machine with and without overlap, and draw what the time is made of."""
    wishes = read_wishes(__file__, __doc__)
    scenario = wishes.scenario()
    found: dict[str, Any] = {}
    for name, machine in scenario["machines"].items():
        for overlap in scenario["overlaps"]:
            found[f"{name}{', overlapped' if overlap else ''}"] = ask(scenario, machine, overlap)
    measured = read_beside(scenario["measured"])
    costs = grow(scenario)
    wishes.write_results({"predicted": found, "measured": measured, "growth": costs})
    figure, axes = new_figure(width=PAGE, height=0.3 * len(found) + 0.9)
    draw(axes, found, measured)
    wishes.save(figure, "parts.png")


def ask(scenario: dict[str, Any], machine: dict[str, Any], overlap: bool) -> dict[str, Any]:
    """The time per iteration and its parts on the critical path."""
    changes = {**scenario["common"], **machine["layout"], "parallel.expert_overlap": overlap}
    answer = predict(
        Scenario(
            topology=machine["topology"],
            workload=scenario["workload"],
            hosts=machine["hosts"],
            ranks_per_host=machine["ranks_per_host"],
            stack=machine["stack"],
            overrides=changes,
            samples=scenario["samples"],
        ),
        executor="serial",
    )
    document = to_document(answer)
    path_ms = dict.fromkeys([*KINDS, REST], 0.0)
    for line in document["critical_path"]["by_label"]:
        kind = next(
            (one for one, words in KINDS.items() if any(w in line["name"] for w in words)), REST
        )
        path_ms[kind] += line["ms"]
    seconds = document["iteration_time_ms"] / 1e3
    path_ms["waiting"] = max(seconds * 1e3 - sum(path_ms.values()), 0.0)
    tokens = changes["batch"] * 4096
    ranks = machine["hosts"] * machine["ranks_per_host"]
    return {
        "iteration_s": seconds,
        "interval_s": [end / 1e3 for end in document["interval_ms"]],
        "tokens_per_s_per_gpu": tokens / seconds / ranks,
        "parts_s": {kind: ms / 1e3 for kind, ms in path_ms.items()},
        "memory_gib": document["memory_gib"]["peak"],
    }


def grow(scenario: dict[str, Any]) -> dict[str, list[dict[str, float]]]:
    """Processor seconds of predictions, as experts, stages and micro-batches grow."""
    growth = scenario["growth"]
    machine = scenario["machines"][growth["machine"]]
    lines: dict[str, list[dict[str, float]]] = {}
    for name, change in growth["changed"].items():
        for value in change["values"]:
            layout = {**machine["layout"], **growth["layout"], **change.get("with", {})}
            layout[change["field"]] = value
            began_s = time.process_time()
            answer = ask(scenario, {**machine, "layout": layout}, False)
            seconds = time.process_time() - began_s
            line = {name: value, "processor_s": seconds, "iteration_s": answer["iteration_s"]}
            lines.setdefault(name, []).append(line)
    return lines


def read_beside(wanted: dict[str, str]) -> list[dict[str, Any]]:
    """Measured runs of the same model and GPU: release, settings, tokens per second and GPU."""
    return [
        {
            "release": row["release"],
            "gpus": int(row["n_gpus"]),
            "dispatcher": row["dispatcher"],
            "overlap": row["ep_overlap"],
            "graph": row["cuda_graph"],
            "iteration_s": float(row["iter_time_s"]),
            "tokens_per_s_per_gpu": float(row["gbs"])
            * float(row["seq_len"])
            / float(row["iter_time_s"])
            / float(row["n_gpus"]),
        }
        for row in read_measured("core_transformer.csv")
        if row["model"] == wanted["model"] and row["device"] == wanted["device"]
    ]


def draw(axes: Any, found: dict[str, Any], measured: list[dict[str, Any]]) -> None:
    """A lying bar of parts for every prediction, in microseconds of a GPU per token."""
    names = list(found)
    left = np.zeros(len(names))
    for number, kind in enumerate(next(iter(found.values()))["parts_s"]):
        widths = np.array(
            [
                one["parts_s"][kind] / one["iteration_s"] / one["tokens_per_s_per_gpu"] * 1e6
                for one in found.values()
            ]
        )
        axes.barh(names, widths, left=left, color=COLOURS[number % len(COLOURS)], label=kind)
        left += widths
    for one in measured:
        axes.axvline(1e6 / one["tokens_per_s_per_gpu"], color="black", linewidth=0.5, linestyle=":")
    axes.invert_yaxis()
    axes.set_xlabel("microseconds of a GPU per token (dotted: measured on 256 x GB200)")
    axes.legend(fontsize=5.5, ncols=3, loc="lower center", bbox_to_anchor=(0.4, 1.0))


if __name__ == "__main__":
    main()
