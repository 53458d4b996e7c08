"""Stacks made of recorded host overheads."""

import pytest

from perfmodel.base.errors import CalibrationError
from perfmodel.extensions.measurements.calibration.host import build_host_stack, load_host_lines
from perfmodel.graph.ops import HostPart
from perfmodel.stacks.profiles import load_stack

ABOUT = {"name": "mine", "extends": "pytorch_eager", "source": "a test", "licence": "none"}
ABOUT["date"] = "2026-01-01"


def write(path, *lines):
    path.write_text("\n".join(["type,op,mean_us,std_us,count", *lines]) + "\n")
    return path


def test_recorded_host_times_become_a_stack(tmp_path):
    table = write(
        tmp_path / "host_overheads.csv",
        "t1,,3.0,1,10", "t2,aten::mm,10,1,3", "t2,aten::add,30,1,1", "t3,aten::mm,2,1,4",
        "t4,cudaLaunchKernel,4,1,30", "t4,cudaMemcpyAsync,8,1,10", "t5,aten::mm,1,1,1",
    )  # fmt: skip
    (tmp_path / "mine.yaml").write_text(build_host_stack(load_host_lines(table), **ABOUT))

    host = load_stack(tmp_path / "mine.yaml").host
    # Launches: (30 x 4 + 10 x 8) / 40 = 5 us; operators not seen: (3 x 10 + 30) / 4 = 15 us.
    assert host.launch_ns == 5_000
    assert host.between_operators_ns == 3_000
    assert host.operators["mm"][HostPart.BEFORE_LAUNCH] == 10_000
    assert host.default[HostPart.BEFORE_LAUNCH] == 15_000


@pytest.mark.parametrize(
    "line", ["t9,aten::mm,1,1,1", "t2,aten::mm,inf,1,1", "t2,aten::mm,-1,1,1", "t2,aten::mm,1,1,0"]
)
def test_a_wrong_line_is_named(tmp_path, line):
    with pytest.raises(CalibrationError, match="line 2"):
        load_host_lines(write(tmp_path / "t.csv", line))
