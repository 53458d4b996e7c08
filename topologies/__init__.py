"""What is wired to what: GPUs, links, hosts, fabrics, and where ranks sit.

Quantities are those of datasheets; what software reaches of them is for cost models to say.
"""

from topologies.cluster import Cluster, build_cluster
from topologies.device import (
    Device,
    HostLink,
    HostLinkKind,
    Multiprocessors,
    list_devices,
    load_device,
)
from topologies.link import Fabric, FabricKind, Link, LinkKind, Route, Vertex, VertexKind
from topologies.recognising import (
    cpu_speed,
    find_device,
    list_topologies,
    load_topology,
    name_devices,
)
from topologies.topology import Topology

__all__ = [
    "Cluster",
    "Device",
    "Fabric",
    "FabricKind",
    "HostLink",
    "HostLinkKind",
    "Link",
    "LinkKind",
    "Multiprocessors",
    "Route",
    "Topology",
    "Vertex",
    "VertexKind",
    "build_cluster",
    "cpu_speed",
    "find_device",
    "list_devices",
    "list_topologies",
    "load_device",
    "load_topology",
    "name_devices",
]
