"""Lists of the machines and GPUs that come with perfmodel."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from perfmodel.base.dtypes import DType
from topologies import list_catalog, list_devices, load_device, load_topology


def build_machine_list() -> Table:
    """One line a machine of the catalog."""
    table = _table("Machines (--topology)", ("", "GPUs", "NVLink", ""))
    for name in list_catalog():
        topology = load_topology(name)
        nvlink = topology.nvlink_bandwidth_bytes_per_s(0) / 1e9
        table.add_row(
            Text(name),
            str(topology.gpus_per_host),
            f"{nvlink:g} GB/s" if nvlink else "-",
            Text(topology.description),
        )
    return table


def build_device_list() -> Table:
    """One line a GPU, with the dense peaks and the memory bandwidth."""
    table = _table("GPUs", ("", "TFLOP/s fp32", "tf32", "fp16", "fp8", "memory", "TB/s"))
    for name in list_devices():
        device = load_device(name)
        peaks = [
            f"{device.peak_flops[dtype] / 1e12:.4g}" if dtype in device.peak_flops else "-"
            for dtype in (DType.FP32, DType.TF32, DType.FP16, DType.FP8)
        ]
        memory = f"{device.memory_bytes / 2**30:.4g} GiB"
        bandwidth = f"{device.memory_bandwidth_bytes_per_s / 1e12:.4g}"
        table.add_row(Text(name), *peaks, memory, bandwidth)
    return table


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None)
    for number, column in enumerate(columns):
        is_words = not column
        table.add_column(
            column,
            justify="left" if is_words else "right",
            no_wrap=not is_words or number == 0,
            style="cyan" if number == 0 else None,
        )
    return table
