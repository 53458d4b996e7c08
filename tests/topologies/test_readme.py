import re
from pathlib import Path

import topologies
from topologies import build_cluster, load_topology

README = (Path(topologies.__file__).parent / "README.md").read_text()


def test_the_machine_in_the_readme_loads(tmp_path):
    path = tmp_path / "my_host.yaml"
    path.write_text(re.search(r"```yaml\n(.*?)```", README, re.S)[1])
    topology = load_topology(path)

    assert topology.nic_of_gpu == (0, 0, 1, 1)
    assert topology.nvlink_lanes(0, 1) == 12
    assert topology.gpu_route(0, 3).stops == ("cpu:0", "cpu:1")


def test_the_python_in_the_readme_says_the_truth():
    cluster = build_cluster(load_topology("dgx_h100"), hosts=64)

    assert cluster.route(0, 511).bandwidth_bytes_per_s == 50e9
