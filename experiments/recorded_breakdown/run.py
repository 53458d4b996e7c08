"""What every stream of a recorded DLRM and of a recorded Transformer spent its time on."""

import json
import os
from pathlib import Path

import yaml

from perfmodel.cli.trace import plot_stream_parts
from perfmodel.recordings.documents import stream_parts_document
from perfmodel.recordings.stream_parts import split_streams
from traces.job_trace import load_job_trace

HERE = Path(__file__).parent
DATA = Path(os.environ.get("PERFMODEL_SHARED_DATA", HERE.parents[1] / "../shared/data"))


def main() -> None:
    scenario = yaml.safe_load((HERE / "scenario.yaml").read_text(encoding="utf-8"))
    documents = []
    for name in scenario["recordings"]:
        recording = load_job_trace(DATA / "traces" / name)
        documents.append(stream_parts_document(recording.name, split_streams(recording)))
    plot_stream_parts(documents, HERE / "breakdown.png")
    shares = {
        document["job"]: {
            f"rank {stream['rank']} stream {stream['stream']}": {
                part: round(100 * length / stream["window_ms"], 1)
                for part, length in stream["parts_ms"].items()
            }
            for stream in document["streams"]
        }
        for document in documents
    }
    (HERE / "results.json").write_text(json.dumps(shares, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
