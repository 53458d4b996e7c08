"""Another user in a box: no home, everything read-only but the temporary directory.

    python -m tests.faults.boxed [--python /usr/bin/python3]

Asks each kind of question as the user `nobody`, in a mount namespace of its own whose root is
read-only and whose /tmp is empty. Every answer must be there, without a complaint, and the bytes
of predictions must be those outside of the box. Afterwards only the cache of compiled code may be
left. Needs root, `unshare` and `setpriv`, and a Python that `nobody` may run. Exits with 1 where
a question has no answer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy

from tests.conftest import CHECKOUT

BOX = """
set -e
mount --bind "$1" /tmp
for place in $(findmnt -rn -o TARGET | grep -v '^/proc\\|^/dev\\|^/sys\\|^/tmp'); do
  mount -o remount,bind,ro "$place"
done
cd /tmp
shift
exec setpriv --reuid=65534 --regid=65534 --clear-groups env -i PATH=/usr/bin:/bin "$@"
"""
FILES = CHECKOUT / "tests" / "fingerprint" / "files"
PREDICT = ("predict", "--topology", "quad_a100", "--set", "batch=1024", "--samples", "8", "--quiet")
SCRIPT = """
import torch
layer = torch.nn.Linear(256, 256).cuda()
update = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(4):
    update.zero_grad()
    layer(torch.randn(64, 256, device="cuda")).sum().backward()
    update.step()
"""
RANK = ("rank", "--topology", "quad_a100", "--tables", str(FILES / "tables.yaml"), "--batch", "64")
IMPORT = ("import", str(FILES / "traces"), "--out", "/tmp/job")
QUESTIONS: dict[str, tuple[str, ...]] = {
    "predict": (*PREDICT, "--executor", "serial", "--json", "-"),
    "predict on Ray": (*PREDICT, "--executor", "ray", "--workers", "2", "--json", "-"),
    "page": (*PREDICT, "--report", "/tmp/page.html"),
    "picture": ("topology", "show", "dgx_a100", "--plot", "/tmp/picture.png"),
    "rank": (*RANK, "--quiet"),
    "import": (*IMPORT, "--quiet"),
    "predict a job": ("predict", "--job", "/tmp/job", "--force", "--quiet"),
    "emulate": ("emulate", "--device", "a100_sxm_80gb", "--ranks", "1", "--out", "/tmp/emulated",
                "--", "/tmp/train.py"),
}  # fmt: skip


def ask_in_box(python: str, place: Path, words: tuple[str, ...]) -> subprocess.CompletedProcess:
    paths = os.pathsep.join([str(CHECKOUT), str(Path(numpy.__file__).parents[1])])
    unshared = ["unshare", "-m", "-p", "-f", "--mount-proc", "bash", "-c", BOX, "box", str(place)]
    asked = [f"PYTHONPATH={paths}", python, "-m", "perfmodel", *words]
    return subprocess.run([*unshared, *asked], capture_output=True, text=True, check=False)


def judge(name: str, done: subprocess.CompletedProcess, wanted: str) -> str:
    """What is wrong with an answer, or nothing."""
    # What an emulation assumes is said there.
    if done.returncode or (done.stderr and name != "emulate"):
        return f"exit {done.returncode}: {done.stderr.strip()[-400:]}"
    if "--json" in QUESTIONS[name] and without_run(done.stdout) != wanted:
        return "other bytes than outside"
    return ""


def without_run(text: str) -> str:
    answer = json.loads(text)
    del answer["run"]
    return json.dumps(answer)


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask as another user with nothing to write to.")
    parser.add_argument("--python", default=sys.executable)
    python = parser.parse_args().python
    outside = subprocess.run(
        [sys.executable, "-m", "perfmodel", *QUESTIONS["predict"]],
        cwd=CHECKOUT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    wanted, faults = without_run(outside.stdout), 0
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o1777)
        (place / "train.py").write_text(SCRIPT)
        for question, words in QUESTIONS.items():
            found = judge(question, ask_in_box(python, place, words), wanted)
            faults += bool(found)
            print(f"{question:<16} {found or 'answered'}", flush=True)
        made = {"train.py", "page.html", "picture.png", "job", "emulated"}
        left = sorted(path.name for path in place.iterdir() if path.name not in made)
        print(f"left in the temporary directory: {', '.join(left)}")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
