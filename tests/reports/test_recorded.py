"""What pictures, pages and texts of answers made by hand hold, as recorded.

A picture is described by its lines, boxes and words in the units of the data, so that neither a
font nor a release of the drawing library takes part.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from collectives.collective import FREE, CollectiveKind
from embeddings.index_data import BIN_COUNT
from perfmodel.base.units import format_bandwidth, format_duration, format_size
from perfmodel.extensions.recordings.report import PARTS, draw_streams
from perfmodel.planning.plan_work import PlanBound
from perfmodel.prediction.comparing import Compared, Comparison
from perfmodel.reports.chrome_trace import iter_records
from perfmodel.reports.comparing import draw_comparison, report_comparison
from perfmodel.reports.document import to_document
from perfmodel.reports.html import to_page
from perfmodel.reports.machine_picture import write_picture
from perfmodel.reports.machines import report_topology
from perfmodel.reports.pictures import draw_sizes, draw_statistics, draw_times
from perfmodel.reports.prediction import report_prediction
from perfmodel.reports.rank import draw_ranking
from perfmodel.reports.runs import format_days, format_hours
from perfmodel.reports.terminal import to_text
from perfmodel.reports.text import format_range
from tests import recorded
from tests.reports.predictions import build_prediction
from topologies import build_cluster, load_topology

MACHINES = ("dgx_h100", "dgx1_v100", "gb200_nvl72", "l40s_pcie", "quad_a100", "alps_gh200")

NUMBERS = (0, 0.04, 1, 1.5, 23, 24, 999, 1000, 1024, 3600, 7199, 7200, 10_000, 172_799, 172_800,
           3e7, 2**30, 1.5e9, 7.7e12, 1e16)  # fmt: skip
"""Around the borders where formats change."""


def describe(figure: Figure) -> dict[str, Any]:
    """Lines, boxes and words of *figure*: how many, the first, and a digest of all."""
    words = [(one.get_text(), *one.get_position(), one.get_fontsize()) for one in figure.texts]
    legends = [
        [(handle.get_linewidth(), to_hex(handle.get_color())) for handle in one.legend_handles]
        + [text.get_text() for text in one.get_texts()]
        for one in figure.legends
    ]
    return {
        "inches": list(figure.get_size_inches()),
        "words": words,
        "legends": legends,
        "axes": [_describe_axes(axes) for axes in figure.axes],
    }


def _describe_axes(axes: Any) -> dict[str, Any]:
    lines = [
        (line.get_xydata().tolist(), line.get_linewidth(), to_hex(line.get_color()))
        for line in axes.lines
    ]
    boxes = [
        (patch.get_path().vertices.tolist(), patch.get_patch_transform().frozen().to_values(),
         to_hex(patch.get_facecolor()), patch.get_linewidth())
        for patch in axes.patches
    ]  # fmt: skip
    areas = [path.vertices.tolist() for one in axes.collections for path in one.get_paths()]
    words = [(text.get_text(), *map(float, text.get_position())) for text in axes.texts]
    legend = axes.get_legend()
    return {
        "limits": [*axes.get_xlim(), *axes.get_ylim()],
        "scales": [axes.get_xscale(), axes.get_yscale()],
        "labels": [axes.get_xlabel(), axes.get_ylabel(), axes.get_title()],
        "ticks": [text.get_text() for text in axes.get_yticklabels()][:12],
        "legend": [text.get_text() for text in legend.get_texts()] if legend else [],
        **{
            name: _digest(found)
            for name, found in (("lines", lines), ("boxes", boxes), ("areas", areas))
        },
        "words": words[:8],
        "all words": _digest(words),
    }


def _digest(found: list[Any]) -> list[Any]:
    """How many, what the first is, and a digest of all with six digits of each number."""

    def rounded(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [rounded(one) for one in value]
        return f"{value:.6g}" if isinstance(value, float | int) else value

    plain = json.dumps(rounded(recorded.plain(found)))
    return [len(found), hashlib.sha256(plain.encode()).hexdigest()[:12]]


def _saved(draw: Callable[[Path], Any]) -> dict[str, Any]:
    """The figure that *draw* writes when it is given a path, and how."""
    figures: list[dict[str, Any]] = []

    def keep(figure: Figure, *_: Any, **options: Any) -> None:
        figures.append({**describe(figure), "options": options})

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(Figure, "savefig", keep):
        draw(Path(folder) / "picture.svg")
    return figures[0]


def _comparison() -> Comparison:
    slower = replace(build_prediction(label="slower"), period_ns=48_000)
    found = (build_prediction(), slower)
    scenarios = [one.scenario for one in found]
    return Comparison(
        tuple(
            Compared(name, scenario, one)
            for name, scenario, one in zip(("a", "b $"), scenarios, found, strict=True)
        )
    )


def _ranking() -> Any:
    plans = [
        SimpleNamespace(
            plan=SimpleNamespace(name=f"plan {number}"),
            gains_ns={bound: 1e5 * (place - number) for place, bound in enumerate(PlanBound)},
            answer=SimpleNamespace(
                iteration_ns=3_000_000 + 500_000 * number,
                interval=SimpleNamespace(low_ns=2_000_000 + number, high_ns=4_500_000),
            ),
        )
        for number in range(3)
    ]
    return SimpleNamespace(plans=plans)


def _sizes(path: Path) -> None:
    sizes = np.array([1e3, 1e5, 1e7])
    words = (("ring", "ll"), ("ring", "ll"), ("nvls", "simple"))
    costs = [
        replace(
            FREE, duration_ns=2e4 * (1 + place), relative_sigma=0.1 + 0.05 * place,
            bus_bandwidth_bytes_per_s=1e9 * (place + 1), algorithm=algorithm, protocol=protocol,
        )
        for place, (algorithm, protocol) in enumerate(words)
    ]  # fmt: skip
    measured = [SimpleNamespace(size_bytes=4096, duration_ns=17_000)]
    cluster = build_cluster(load_topology("dgx_h100"), hosts=1)
    group = SimpleNamespace(ranks=range(8), cluster=cluster)
    sweep = SimpleNamespace(group=group, kind=CollectiveKind.ALL_REDUCE, measured=measured)
    draw_sizes(sweep, sizes, costs, path)


def _statistics(_: Path) -> None:
    reuse = [
        SimpleNamespace(of_rows=np.full(BIN_COUNT, share), of_lookups=np.arange(BIN_COUNT) * share)
        for share in (0.02, 0.03)
    ]
    tables = [SimpleNamespace(pooling_mean=mean) for mean in (0.01, 1.0, 30.0, 150.0)]
    found = SimpleNamespace(set_reuse=reuse[0], batch_reuse=reuse[1], batch_size=512, tables=tables)
    draw_statistics(found)


def _streams(path: Path) -> None:
    streams = [
        {"rank": rank, "stream": 7, "parts_ms": dict(zip(PARTS, times_ms, strict=True))}
        for rank, times_ms in enumerate(np.arange(18).reshape(3, 6) / 2)
    ]
    documents = [{"job": "one", "streams": streams}, {"job": "two $", "streams": streams[:1]}]
    draw_streams(documents, path)


def _read(report: Any) -> dict[str, Any]:
    """The text of *report* as lines, and its page without style, scripts and their digests."""
    page = to_page(report)
    page = re.sub(r"<(style|script)\b.*?</\1>|<meta http-equiv.*?>", "", page, flags=re.DOTALL)
    return {
        "text": to_text(report).splitlines(),
        "page": [line.strip() for line in page.splitlines() if line.strip()],
    }


def values() -> dict[str, Any]:
    """Everything that is recorded, by name."""
    found: dict[str, Any] = {
        f"picture of {name}": _saved(
            lambda path, name=name: write_picture(load_topology(name), path)
        )
        for name in MACHINES
    }
    cluster = build_cluster(load_topology("dgx_a100"), hosts=4)
    found["picture of a cluster"] = _saved(
        lambda path: write_picture(cluster.topology, path, cluster)
    )
    found["picture of times"] = describe(draw_times([("a", 1.5), ("b", 2.5)]))
    found["picture of a comparison"] = describe(draw_comparison(_comparison()))
    found["picture of a ranking"] = describe(draw_ranking(_ranking()))
    found["picture of sizes"] = _saved(_sizes)
    found["picture of statistics"] = _saved(_statistics)
    found["picture of streams"] = _saved(_streams)
    for write in (format_size, format_duration, format_bandwidth, format_days, format_hours):
        found[write.__name__] = [write(number) for number in NUMBERS]
    found["format_range"] = [format_range(low, 1.3 * low) for low in NUMBERS]
    prediction = build_prediction()
    found["prediction"] = _read(report_prediction(prediction, 2.5))
    found["prediction that does not fit"] = _read(
        report_prediction(build_prediction(peak_bytes=90 * 2**30))
    )
    found["document"] = {k: v for k, v in to_document(prediction, 2.5).items() if k != "run"}
    found["trace"] = list(iter_records(prediction, (0, 1)))
    found["comparison"] = _read(report_comparison(_comparison()))
    found["topology"] = _read(report_topology(cluster.topology, cluster))
    return found


def test_pictures_and_pages_hold_what_was_recorded(found):
    recorded.check(__file__, found)


def test_one_of_them_by_hand(found):
    # Rank 1 computes 30 of the 36 us, so that rank 0 waits 20 us for it.
    assert any("36 us" in line for line in found["prediction"]["text"])
    assert found["picture of times"]["axes"][0]["ticks"] == ["a", "b"]
