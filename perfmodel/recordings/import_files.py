"""Import of files: traces of one job or several become job folders, each with its score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfmodel.recordings.chakra_jobs import load_chakra_job
from perfmodel.recordings.importing import import_job
from perfmodel.recordings.recorded_job import RecordedJob, SelfReplay
from perfmodel.recordings.self_replay import with_score
from perfmodel.recordings.storage import save_recorded_job
from traces.job_trace import TraceFormat, detect_format, load_job_traces


@dataclass(frozen=True, slots=True, eq=False)
class ImportedJob:
    """A job that was scored, and the folder it was written to."""

    folder: Path
    job: RecordedJob

    @property
    def score(self) -> SelfReplay:
        """How well it replays itself."""
        assert self.job.score is not None
        return self.job.score


def import_kineto(paths: Sequence[Path], out: Path) -> tuple[ImportedJob, ...]:
    """Import Kineto traces: files of one job, a folder of them, or a folder of such folders.

    One job is written to *out*, several to folders in it with their names.
    """
    return _save([import_job(traces) for traces in load_job_traces(list(paths))], out)


def import_chakra(paths: Sequence[Path], out: Path) -> tuple[ImportedJob, ...]:
    """Import the Chakra traces of one job, files or a folder of them."""
    return _save([load_chakra_job(_files(paths))], out)


def are_chakra(paths: Sequence[Path]) -> bool:
    """Whether *paths* hold Chakra files and nothing else."""
    return {detect_format(file) for file in _files(paths)} == {TraceFormat.CHAKRA}


def _save(jobs: Sequence[RecordedJob], out: Path) -> tuple[ImportedJob, ...]:
    imported = []
    for job in jobs:
        scored = with_score(job)
        folder = out if len(jobs) == 1 else out / job.graph.facts.name
        save_recorded_job(scored, folder)
        imported.append(ImportedJob(folder, scored))
    return tuple(imported)


def _files(paths: Sequence[Path]) -> list[Path]:
    return [
        file
        for path in paths
        for file in (sorted(path.iterdir()) if path.is_dir() else [path])
        if file.is_file()
    ]
