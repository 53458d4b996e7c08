"""Run a script on the CPU under torch.profiler and print the operators of one iteration."""

import json
import runpy
import sys

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

FIRST, LAST = 3, 4
steps = []
profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])


def stepped(*_):
    steps.append(None)
    if len(steps) == FIRST:
        profiler.start()
    elif len(steps) == LAST:
        profiler.stop()


register_optimizer_step_post_hook(stepped)
sys.argv = sys.argv[1:]
with open(1, "w", closefd=False) as out:
    sys.stdout = sys.stderr
    runpy.run_path(sys.argv[0], run_name="__main__")
    events = sorted(profiler.events(), key=lambda event: event.time_range.start)
    json.dump([event.name for event in events], out)
