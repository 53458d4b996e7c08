"""Install the wheel of a folder in an empty environment, ask it one question, say what is inside.

python docs/try_wheel.py dist
"""

from __future__ import annotations

import collections
import json
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"


def main(folder: Path) -> None:
    """Try the one wheel in *folder*; archives beside it are named with their sizes."""
    [wheel] = folder.glob("*.whl")
    for path in sorted(folder.iterdir()):
        print(f"{path.name}  {path.stat().st_size / 2**20:.1f} MiB")
    names = [name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")]
    counted = collections.Counter(name.partition("/")[0] for name in names)
    kinds = collections.Counter(Path(name).suffix or Path(name).name for name in names)
    print("  files by package: " + ", ".join(f"{name} {n}" for name, n in counted.items()))
    print("  files by kind: " + ", ".join(f"{name} {n}" for name, n in kinds.most_common(8)))
    with tempfile.TemporaryDirectory() as place:
        venv.create(place, with_pip=True)
        python = Path(place) / "bin" / "python"
        install = ["-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([python, *install, "-c", CONSTRAINTS, wheel.resolve()], check=True)
        program = Path(place) / "bin" / "perfmodel"
        print(_output(program, "--version", cwd=place).splitlines()[0])
        answer = _output(
            program, "predict", "--topology", "dgx_h100.yaml", "--json", "-", cwd=place
        )
        print(f"  make predict's question: {json.loads(answer)['iteration_time_ms']:.3f} ms")


def _output(*words: str | Path, cwd: str) -> str:
    done = subprocess.run(words, cwd=cwd, check=True, capture_output=True, text=True)
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
