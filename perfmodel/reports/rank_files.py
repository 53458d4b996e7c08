"""Files of a ranking: JSON, CSV, a web page, and the first plan for TorchRec."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from embeddings.torchrec_plan import to_torchrec
from perfmodel.planning.question import RankQuestion
from perfmodel.planning.ranking import Ranking
from perfmodel.reports.rank_document import to_ranking_csv, to_ranking_json


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The files that were asked for; `-` for JSON is standard output."""

    json_file: str | None = None
    csv_file: Path | None = None
    report_file: Path | None = None
    plan_file: Path | None = None

    def write(self, ranking: Ranking, question: RankQuestion) -> None:
        """Write *ranking* everywhere it was asked for."""
        if self.json_file == "-":
            sys.stdout.write(to_ranking_json(ranking, question))
        elif self.json_file is not None:
            text = to_ranking_json(ranking, question)
            Path(self.json_file).write_text(text, encoding="utf-8")
        if self.csv_file is not None:
            self.csv_file.write_text(to_ranking_csv(ranking), encoding="utf-8")
        if self.report_file is not None:
            from perfmodel.reports.rank_page import build_rank_page

            self.report_file.write_text(build_rank_page(ranking), encoding="utf-8")
        if self.plan_file is not None:
            text = json.dumps(to_torchrec(ranking.plans[0].plan), indent=1)
            self.plan_file.write_text(text + "\n", encoding="utf-8")
