"""Install the archives of a folder in empty environments and say what is inside.

    python docs/try_wheel.py dist [python3.12 ...]

Without interpreters, every release of Python that is promised and installed is tried.
"""

from __future__ import annotations

import collections
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"


PROMISED = ("python3.11", "python3.12", "python3.13")


def main(folder: Path, interpreters: list[str]) -> None:
    """Try the one wheel and the one source archive in *folder*; all must answer alike."""
    [wheel], [source] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    in_wheel = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    with tarfile.open(source) as archive:
        in_source = {one.name.partition("/")[2] for one in archive.getmembers() if one.isfile()}
    for path, names in ((wheel, in_wheel), (source, in_source)):
        print(f"{path.name}  {path.stat().st_size / 2**20:.1f} MiB")
        _tell(names)
    missing = sorted(name for name in in_wheel - in_source if ".dist-info/" not in name)
    if missing:
        sys.exit(f"{source.name}: must hold what the wheel holds, lacks {', '.join(missing[:5])}")
    wanted = interpreters or PROMISED
    found = [one for one in wanted if shutil.which(one)]
    for one in [name for name in wanted if name not in found]:
        print(f"{one}: not installed here, so not tried")
    answers = [answer for one in found for answer in _answers(one, wheel, source)]
    if len(set(answers)) != 1:
        sys.exit(f"must answer alike in every environment, got {answers}")


def _answers(interpreter: str, wheel: Path, source: Path) -> list[float]:
    """What `make predict` asks, of the wheel and then of the source archive."""
    answers = []
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([interpreter, "-m", "venv", place], check=True)
        for path, options in ((wheel, ["-c", str(CONSTRAINTS)]), (source, ["--no-deps"])):
            words = ["-m", "pip", "install", "-qq", "--disable-pip-version-check"]
            again = ["--force-reinstall"] if answers else []
            python = Path(place) / "bin" / "python"
            subprocess.run([python, *words, *options, *again, path.resolve()], check=True)
            program = Path(place) / "bin" / "perfmodel"
            version = _output(program, "--version", cwd=place).splitlines()[0]
            question = ("predict", "--topology", "dgx_h100.yaml", "--json", "-")
            answer = json.loads(_output(program, *question, cwd=place))["iteration_time_ms"]
            print(f"{interpreter}, {path.name}: {version}, predicts {answer:.3f} ms")
            answers.append(answer)
    return answers


def _tell(names: set[str]) -> None:
    counted = collections.Counter(name.partition("/")[0] for name in names if "/" in name)
    kinds = collections.Counter(Path(name).suffix or Path(name).name for name in names)
    print("  files by folder: " + ", ".join(f"{name} {n}" for name, n in counted.most_common()))
    print("  files by kind: " + ", ".join(f"{name} {n}" for name, n in kinds.most_common(8)))


def _output(*words: str | Path, cwd: str) -> str:
    done = subprocess.run(words, cwd=cwd, check=True, capture_output=True, text=True)
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
