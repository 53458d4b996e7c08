"""`perfmodel topology`: list, show and check machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, show and check machines. Example: perfmodel topology show dgx_h100",
)


@app.command("list")
def list_machines() -> None:
    """List the machines and GPUs that come with perfmodel.

    Example: perfmodel topology list
    """
    from perfmodel import api
    from perfmodel.reports.listings import report_machines
    from perfmodel.reports.terminal import print_report

    print_report(report_machines(api.list_topologies(), api.list_devices()))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A name of the catalog, or a file.")],
    plot: Annotated[
        Path | None, typer.Option(help="Draw it into this file too, .png or .svg.")
    ] = None,
    hosts: Annotated[int, typer.Option(help="How many of them, behind their fabric.")] = 1,
) -> None:
    """Show a machine: what it has, what is wired to what, and how fast.

    Example: perfmodel topology show dgx_h100 --hosts 64 --plot dgx_h100.png
    """
    from perfmodel import api
    from perfmodel.reports.machines import report_topology
    from perfmodel.reports.terminal import print_report
    from topologies import build_cluster

    topology = api.load_topology(name)
    cluster = build_cluster(topology, hosts=hosts)
    if plot is not None:
        from perfmodel.reports.machine_picture import write_picture

        write_picture(topology, plot, cluster)
    print_report(report_topology(topology, cluster))
    if plot is not None:
        print(f"Wrote {plot}")


@app.command()
def check(
    file: Annotated[str, typer.Argument(help="A topology file.")],
) -> None:
    """Check a topology file and name every fault in it.

    Example: perfmodel topology check my_cluster.yaml
    """
    from perfmodel import api

    topology = api.load_topology(file)
    print(
        f"{file}: good. {topology.name} has {topology.gpus_per_host} GPUs "
        f"({topology.device.name}), {len(topology.vertices)} vertices, "
        f"{len(topology.links)} one-way links, "
        f"{'a fabric' if topology.fabric else 'no fabric'}."
    )
