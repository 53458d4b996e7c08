"""`perfmodel workload`, `topology` and `embeddings`: look into models, machines and indices."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from perfmodel import api
from perfmodel.base.cautions import Cautions
from perfmodel.base.extensions import load_extension
from perfmodel.base.options import Option
from perfmodel.base.writing import check_writable, write_file
from perfmodel.cli.commands import command, command_group
from perfmodel.cli.options import Outputs, Strict, argument
from perfmodel.prediction.scenario import DEFAULT_WORKLOAD, Faults, Overrides

CatalogName = Annotated[str, argument("NAME", "A name of the catalog, or a file.")]
SCHEMA_VERSION = 1
workload = command_group(
    help="List, show and import models. Example: perfmodel workload show llama3_8b"
)
topology = command_group(
    help="List, show, check and import machines. Example: perfmodel topology show dgx_h100"
)
embeddings = command_group()


@command(workload, name="list")
def list_models() -> None:
    """List the workloads and software stacks that come with perfmodel.

    Example: perfmodel workload list
    """
    from perfmodel.reports.machines import report_models
    from perfmodel.reports.terminal import print_report

    workloads = [(title.name, title.description) for title in api.list_workloads()]
    stacks = [(name, api.load_stack(name).description) for name in api.list_stacks()]
    print_report(report_models(workloads, stacks, default=DEFAULT_WORKLOAD))


@command(workload, name="show")
def show_workload(name: CatalogName) -> None:
    """Print the file of a workload, to be changed and used.

    Example: perfmodel workload show llama3_8b > my_gpt.yaml
    """
    from perfmodel.workloads.catalog import find_workload

    api.load_workload(name)
    if load_extension("formats", "models").read_foreign(find_workload(name)) is not None:
        print(api.import_workload(name).text, end="")
        return
    print(find_workload(name).read_text(encoding="utf-8"), end="")


@command(workload, name="import")
def import_model(
    *,
    file: Annotated[str, argument("FILE", "config.json or its folder, or settings of a program.")],
    overrides: Overrides = (),
    out: Annotated[str | None, Option(metavar="FILE.yaml", help="Write the workload here.")] = None,
    fields: Annotated[bool, Option(help="List how every field was read.")] = False,
    files: Annotated[Outputs, "json_file", "is_strict"],
) -> None:
    """Turn the model file of another program into a workload.

    Read are the config.json of a Hugging Face model, arguments of Megatron-LM in a file or script,
    and files of NeMo, Megatron-Bridge and torchtitan. Example: perfmodel workload import
    Llama-3.1-8B/config.json --set batch=512 --out my_llama.yaml
    """
    report = load_extension("formats", "report")
    found = api.import_workload(file, overrides)
    cautions = Cautions(unknown_keys=found.workload.unknown_keys)
    if files.is_strict:
        cautions.refuse()
    if out is not None:
        check_writable("--out", Path(out))
        write_file(Path(out), found.text)
    elif not fields and files.json_file is None:
        print(found.text, end="")
        return
    about = (found.workload, found.kind, found.uses)
    shown = about if fields else (*about[:2], ())
    shown_report = report.report_import(*shown).warned(cautions)
    files.write(shown_report, lambda: report.import_document(*about))
    if out is not None and files.is_printed:
        print(f"Wrote {out}")


@command(topology, name="list")
def list_machines() -> None:
    """List the machines and GPUs that come with perfmodel.

    Example: perfmodel topology list
    """
    from perfmodel.reports.machines import report_machines
    from perfmodel.reports.terminal import print_report

    print_report(report_machines(api.list_topologies(), api.list_devices()))


@command(topology, name="show")
def show_topology(
    name: CatalogName,
    plot: Annotated[
        str | None, Option(metavar="FILE", help="Also draw it into this file, .png or .svg.")
    ] = None,
    hosts: Annotated[int, Option(metavar="N", help="Number of hosts, joined by their fabric.")] = 1,
    faults: Faults = (),
) -> None:
    """Show a machine: what it has, what is wired to what, and how fast; with faults, a host of it.

    Example: perfmodel topology show dgx_h100 --hosts 64 --plot dgx_h100.png
    """
    from perfmodel.reports.machines import report_topology
    from perfmodel.reports.terminal import print_report
    from topologies import build_cluster

    machine = api.load_topology(name, faults=faults)
    cluster = build_cluster(machine, hosts=hosts)
    cluster.check_faults()
    if plot is not None:
        from perfmodel.reports.machine_picture import write_picture

        write_picture(machine, Path(plot), cluster)
    print_report(report_topology(machine, cluster))
    if plot is not None:
        print(f"Wrote {plot}")


@command(topology, name="import")
def import_machine(
    *,
    file: Annotated[str, argument("FILE", "NCCL topology XML, or output of nvidia-smi topo -m.")],
    gpu: Annotated[
        str | None, Option(metavar="NAME|FILE", help="The GPU, where the file does not name it.")
    ] = None,
    nic_rate: Annotated[
        str | None, Option(metavar="RATE", help="Rate of one NIC, e.g. '400 Gbit/s'.")
    ] = None,
    out: Annotated[str | None, Option(metavar="FILE.yaml", help="Write the machine here.")] = None,
    is_strict: Strict = False,
) -> None:
    """Turn the topology file of another program into a machine file.

    Read are the XML that NCCL writes (NCCL_TOPO_DUMP_FILE) and the matrix of `nvidia-smi topo -m`.
    What they do not say is listed under `assumed` in the file. Example: perfmodel topology import
    topo.xml --gpu h100_sxm --out my_machine.yaml
    """
    from perfmodel.prediction.gate import check_machine

    found = api.import_topology(file, gpu=gpu, nic_rate=nic_rate)
    cautions = check_machine(found.topology)
    if is_strict:
        cautions.refuse()
    if out is None:
        print(found.text, end="")
        return
    from perfmodel.reports.terminal import print_report

    report = load_extension("formats", "report")
    check_writable("--out", Path(out))
    write_file(Path(out), found.text)
    print_report(report.report_machine_import(found.topology, found.kind).warned(cautions))
    print(f"Wrote {out}")


@command(topology)
def check(
    file: Annotated[str, argument("FILE", "A topology file.")],
    is_strict: Strict = False,
) -> None:
    """Check a topology file and name every fault in it.

    Example: perfmodel topology check my_cluster.yaml
    """
    from perfmodel.prediction.gate import check_machine

    machine = api.load_topology(file)
    cautions = check_machine(machine)
    if is_strict:
        cautions.refuse()
    print(
        f"{file}: valid. {machine.name} has {machine.gpus_per_host} GPUs "
        f"({machine.device.name}), {len(machine.vertices)} vertices, "
        f"{len(machine.links)} one-way links, "
        f"{'a fabric' if machine.fabric else 'no fabric'}."
    )
    for said in (*machine.assumed, *cautions.lines()):
        print(f"  {said}")


@embeddings.callback()
def _embeddings() -> None:
    """Inspect index files."""


@command(embeddings)
def describe(
    *,
    file: Annotated[str, argument("FILE", "npz, parquet, pt or pth.")],
    batch: Annotated[int, Option(metavar="N", min=1, help="Samples per batch.")] = 4096,
    files: Annotated[Outputs, "json_file"],
) -> None:
    """Show pooling and reuse of the indices in FILE, over the whole set and within batches."""
    from perfmodel.reports.rank import report_statistics

    found = api.describe_indices(file, batch=batch)
    document = {
        "schema_version": SCHEMA_VERSION,
        "source": found.source,
        "samples": found.sample_count,
        "batch": found.batch_size,
        "tables": [asdict(table) for table in found.tables],
    }
    files.write(report_statistics(found), lambda: document)
