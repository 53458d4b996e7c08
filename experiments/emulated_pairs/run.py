"""What-ifs against emulations of the real change: python run.py FOLDER [--again].

FOLDER keeps the emulated jobs; those that are there are not emulated again without --again.

python run.py FOLDER --table TRACES asks the ten of Daydream alone, of emulated jobs and of
the recordings in the folder TRACES, and prints the table of docs/how_to/whatifs.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
PERFMODEL = [sys.executable, "-c", "from perfmodel.cli import main; main()"]
MACHINE, DEVICE = "dgx_a100", "a100_sxm_80gb"


def perfmodel(*words: str) -> subprocess.CompletedProcess[str]:
    root = str(HERE.parents[1])
    return subprocess.run(
        [*PERFMODEL, *words], cwd=HERE, env=os.environ | {"PYTHONPATH": root}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip


def emulate(folder: Path, script: str, *, ranks: int) -> None:
    plain = ["--plain"] if ranks == 1 else []
    done = perfmodel(
        "emulate", "--ranks", str(ranks), *plain, "--device", DEVICE, "--overwrite",
        "--out", str(folder), "--", "train.py", *script.split(),
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stderr)


def iteration_ms(folder: Path) -> float:
    done = perfmodel("predict", "--job", str(folder), "--topology", MACHINE, "--json", "-")
    return float(json.loads(done.stdout)["iteration_time_ms"])


def ask(folder: Path, change: str, *, machine: str = MACHINE) -> dict[str, Any]:
    """How *change* moves the job in *folder*, and what it touched; or why it is refused."""
    place = ("--topology", machine) if machine else ()
    done = perfmodel("whatif", str(folder), *place, "--apply", change, "--json", "-")
    if done.returncode:
        return {"refused": done.stderr.strip().splitlines()[-1]}
    answer = json.loads(done.stdout)
    touched = answer["steps"][0]["touched"]
    return {
        "before_ms": answer["before"]["iteration_time_ms"],
        "after_ms": answer["iteration_time_ms"],
        "change_pct": answer["change_pct"],
        "touched": {key: touched[key] for key in ("retimed", "removed", "added", "reordered")},
    }


def import_recordings(place: Path, traces: Path, recordings: dict[str, str]) -> None:
    for name, folder in recordings.items():
        if not (place / name).is_dir():
            done = perfmodel("import", str(traces / folder), "--out", str(place / name), "--quiet")
            if done.returncode:
                sys.exit(done.stderr)


def ask_daydream(place: Path, scenario: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The ten of Daydream, of every job: by optimisation and job."""
    jobs = dict.fromkeys(scenario["daydream_jobs"], MACHINE) | dict.fromkeys(
        scenario["daydream_recordings"], ""
    )
    jobs = {name: machine for name, machine in jobs.items() if (place / name).is_dir()}
    listed: dict[str, dict[str, Any]] = {}
    for title, changes in scenario["daydream"].items():
        for job, machine in jobs.items():
            change = changes["emulated" if machine and "emulated" in changes else "apply"]
            answer = ask(place / job, change.replace("MACHINE", MACHINE), machine=machine)
            listed.setdefault(title, {})[job] = {"apply": change, **answer}
            print(f"{title:14} {job:12} {in_words(answer)}", flush=True)
    return listed


def in_words(answer: dict[str, Any]) -> str:
    """One cell of the table."""
    if "refused" in answer:
        return f"refused: {answer['refused'].split(': ', 2)[-1]}"
    touched = ", ".join(f"{count:,} {word}" for word, count in answer["touched"].items() if count)
    return f"{answer['change_pct']:+.1f} % ({touched})"


def main() -> None:
    place = Path(sys.argv[1]).resolve()
    scenario = yaml.safe_load((HERE / "scenario.yaml").read_text(encoding="utf-8"))
    if "--table" in sys.argv:
        traces = Path(sys.argv[sys.argv.index("--table") + 1]).resolve()
        import_recordings(place, traces, scenario["daydream_recordings"])
        write({"daydream": ask_daydream(place, scenario)})
        return
    times_ms = {}
    for name, job in scenario["jobs"].items():
        if "--again" in sys.argv or not (place / name).is_dir():
            emulate(place / name, job.get("arguments", ""), ranks=job.get("ranks", 8))
        times_ms[name] = iteration_ms(place / name)
        print(f"{name:20} {times_ms[name]:8.2f} ms", flush=True)
    pairs = {}
    for name, pair in scenario["pairs"].items():
        before, after = times_ms[pair["from"]], times_ms[pair["to"]]
        answer = ask(place / pair["from"], pair["apply"])
        found = float(answer["after_ms"]) - before if "after_ms" in answer else None
        ratio = None if found is None else found / (after - before)
        pairs[name] = {
            "apply": pair["apply"],
            "before_ms": round(before, 3),
            "emulated_change_ms": round(after - before, 3),
            "answered_change_ms": None if found is None else round(found, 3),
            "ratio": None if ratio is None else round(ratio, 3),
        }
        print(f"{name:24} {after - before:+9.2f} {found:+9.2f} {ratio:6.2f}", flush=True)
    write({"pairs": pairs, "daydream": ask_daydream(place, scenario)})


def write(found: dict[str, Any]) -> None:
    """Put *found* in the place of what the results had."""
    path = HERE / "results.json"
    results = json.loads(path.read_text(encoding="utf-8")) | found
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
