"""Sums with TensorFlow's own collective operations: NCCL between GPUs, or a ring over gRPC between CPUs.

With NCCL, gradients never pass through host memory. The ring runs the same code on CPUs, where MPI with shared
memory is faster. Every process runs a TensorFlow server, which must be started before the first TensorFlow
operation; the servers learn each other's addresses over MPI.

These servers have no password, and whoever reaches one can read files as the user who trains. TensorFlow binds
them to all networks ("0.0.0.0:" is a constant of its grpc_server_lib.cc), so each gets a socket filter that lets
only the job's machines connect.
"""

import contextlib
import ipaddress
import os
import random
import socket
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.core.protobuf import tensorflow_server_pb2

# There is no public name for this; the public MultiWorkerMirroredStrategy calls the same functions.
from tensorflow.python.eager import context

from distributed import socket_filter
from distributed.collectives import places_by_rounding
from distributed.collectives.mpi import broadcast
from distributed.world import World
from ringbase.errors import InputError

NETWORK_VARIABLE = "RINGBERT_NETWORK"  # unlike an address, the same for all machines; bert-launch forwards it
JOB = "worker"
GROUP_KEYS = {"nccl": 1, "ring": 2}
CONNECT_S = 20  # time limit for a rank to accept a connection
# Below the ports that Linux assigns to connections, so that no connection takes the port between the check and the
# start of the server.
PORTS = range(15000, 32000)
# Parts of a rank's share that are sent at the same time. With TensorFlow's default, -1, the ring takes 2 to 3
# times as long for 88 MB.
SUBDIVISIONS = {"nccl": -1, "ring": 16}
# NCCL refuses two ranks on one card of one host. Under these variables each rank is a host, and sockets join them.
NCCL_SHARING = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}

_started = False  # whether this process has its server, which lives as long as the process
_instance_keys: dict[tuple, int] = {}  # one table per process, like TensorFlow's own


class TensorflowCollectives:
    """Sums with CollectiveReduceV2 on the device of this rank."""

    def __init__(self, world: World, name: str):
        # TensorFlow's nccl_manager.cc sums float16, float32, float64, int32 and int64, and refuses bfloat16.
        # XLA compiles NCCL's sums, not those of the ring.
        self.name, self.compresses, self.in_graph = name, name == "ring", name == "nccl"
        self._compiled = tf.function(self._sums, autograph=False)
        self._comm, self._size = world.comm, world.size
        self._device = tf.device(f"/job:{JOB}/task:{world.rank}/device:{'GPU' if name == 'nccl' else 'CPU'}:0")

    def all_reduce_sum(self, tensors: Sequence[tf.Tensor], compresses: bool = False) -> list[tf.Tensor]:
        """With `compresses`, every addition rounds to bfloat16."""
        return self._compiled(list(tensors), compresses and self.compresses)

    def _sums(self, tensors: list[tf.Tensor], compresses: bool) -> list[tf.Tensor]:
        sums, before = list(tensors), list[tf.Tensor]()
        for rounds, places in sorted(places_by_rounding(tensors, compresses).items()):
            flat = tf.concat([tf.reshape(tensors[place], [-1]) for place in places], 0)
            with tf.control_dependencies(before):  # so that all ranks have the same order
                before = [self._sum(tf.cast(flat, tf.bfloat16) if rounds else flat)]
            sizes = [tensors[place].shape.num_elements() for place in places]
            for place, part in zip(places, tf.split(tf.cast(before[0], flat.dtype), sizes), strict=True):
                sums[place] = tf.reshape(part, tensors[place].shape)
        return sums

    def _sum(self, flat: tf.Tensor) -> tf.Tensor:
        if not flat.shape.num_elements():
            return flat
        # The ranks' calls find each other by a key. All sums of one dtype and size share one, as every rank makes
        # them in the same order: TensorFlow never forgets a key, so new ones would fill the memory.
        kind = (self.name, flat.dtype, flat.shape[0])
        with self._device:
            return tf.raw_ops.CollectiveReduceV2(
                input=flat,
                merge_op="Add",
                final_op="Id",
                ordering_token=[],
                max_subdivs_per_device=SUBDIVISIONS[self.name],
                group_size=self._size,
                group_key=GROUP_KEYS[self.name],
                instance_key=_instance_keys.setdefault(kind, len(_instance_keys) + 1),
                communication_hint=self.name,
            )

    def broadcast(self, value: tf.Tensor, root: int = 0) -> tf.Tensor:
        return broadcast(self._comm, value, root)  # over MPI: it happens once

    def close(self) -> None:
        pass  # the server lives as long as the process


def fits(world: World) -> bool:
    """Whether `--backend auto` takes NCCL: every rank has a card of its own, and strangers are kept out."""
    if not own_gpus(world):
        return False
    if reason := why_open(world):
        world.say(
            f"note: NCCL's ports cannot be closed to strangers ({reason}), so --backend auto is mpi; "
            f"{socket_filter.OPEN_VARIABLE}=1 allows open ports"
        )
    return not reason


def open(world: World, name: str) -> TensorflowCollectives:
    """Starts this process's server unless it runs already. `name` is "nccl" or "ring"."""
    if world.size == 1:
        raise InputError(f"--backend {name} needs several ranks: start the program under mpirun or bert-launch")
    if name == "nccl" and not world.device.is_gpu:
        raise InputError(
            f"--backend nccl needs GPUs, but these {world.size} ranks compute on CPUs: use --backend auto"
        )
    if name == "nccl" and not own_gpus(world):
        if not world.device.may_be_shared:
            raise InputError(
                f"--backend nccl needs a card of its own for each rank, but these {world.size} ranks share cards: "
                "use --backend auto, or give --share_gpus to test NCCL, slowly, over sockets"
            )
        os.environ.update(NCCL_SHARING, NCCL_HOSTID=f"rank-{world.rank}")
        world.say("note: ranks that share a card sum over sockets, slowly: --backend nccl is then for tests only")
    if not _started:
        if reason := why_open(world):
            raise InputError(
                f"--backend {name}: its ports cannot be closed to strangers ({reason}), who could read files as "
                f"you: use --backend mpi, or set {socket_filter.OPEN_VARIABLE}=1 if you trust all who can reach "
                "these machines"
            )
        _start_server(world)
    return TensorflowCollectives(world, name)


def why_open(world: World) -> str:
    """Why some rank's server would be open to strangers; "" if none would, or if the user allows it."""
    reason = "" if may_be_open() else socket_filter.why_impossible()
    return next(filter(None, world.all_gather(reason and f"{reason} on {socket.gethostname()}")), "")


def may_be_open() -> bool:
    return os.environ.get(socket_filter.OPEN_VARIABLE) == "1"


def own_gpus(world: World) -> bool:
    """Whether every rank computes on a card of its own; NCCL also refuses two instances (MIG) of one card."""
    if not world.device.is_gpu:
        return False
    cards = world.all_gather((world.node, world.device.bus_id))
    return len(set(cards)) == world.size


def _start_server(world: World) -> None:
    global _started
    if context.context()._context_handle is not None:
        raise RuntimeError("open_collectives must come before the first TensorFlow operation")
    host = host_address(world)
    with listening() as keeper:
        servers = world.all_gather(f"{host}:{keeper.getsockname()[1]}")
        sources = _check_reachable(world, servers)
        if may_be_open():
            keeper.close()
        else:
            os.environ["TF_GRPC_REUSE_PORT"] = "1"  # with the keeper
            socket_filter.refuse_all(keeper)
        _without_proxy(servers)
        context.context().configure_collective_ops(
            collective_leader=f"/job:{JOB}/replica:0/task:0", use_nccl_communication=world.device.is_gpu
        )
        context.context().enable_collective_ops(_server_definition(world, servers))
        context.context().ensure_initialized()
        _started = True
        if not may_be_open():
            socket_filter.accept_only(sources, keeper)
    world.barrier()  # no rank may call a server before it runs
    _check_reachable(world, servers)  # not if an address is translated on the way


def _without_proxy(servers: Sequence[str]) -> None:
    """Keeps gRPC from connecting to the other ranks through a proxy that the environment names."""
    existing = next(filter(None, map(os.environ.get, ("no_grpc_proxy", "no_proxy", "NO_PROXY"))), "")
    hosts = sorted({server.rpartition(":")[0] for server in servers})
    os.environ["no_grpc_proxy"] = ",".join(filter(None, [existing, *hosts]))  # noqa: SIM112


def _server_definition(world: World, servers: Sequence[str]) -> tensorflow_server_pb2.ServerDef:
    return tensorflow_server_pb2.ServerDef(
        cluster=tf.train.ClusterSpec({JOB: list(servers)}).as_cluster_def(),
        job_name=JOB,
        task_index=world.rank,
        protocol="grpc",
        default_session_config=context.context().config,
    )


def host_address(world: World) -> str:
    """The IPv4 address at which the other ranks reach this one.

    It is this machine's address in the network that the variable RINGBERT_NETWORK names. Without the variable it
    is the loopback address on a single machine, else the address of the interface that routes to another machine
    (by its name) or to the Internet. Raises InputError when there is none.
    """
    names = world.all_gather((world.node, socket.gethostname()))
    wanted = os.environ.get(NETWORK_VARIABLE) or None
    if wanted is None and world.num_nodes == 1:
        return "127.0.0.1"
    try:
        network = ipaddress.IPv4Network(wanted or "0.0.0.0/0", strict=False)
    except ValueError as error:
        raise InputError(f"{NETWORK_VARIABLE}={wanted} is not a network such as 10.0.0.0/24 ({error})") from None
    others = [*dict.fromkeys(name for node, name in names if node != world.node), "192.0.2.1"]
    for target in [str(next(network.hosts()))] if wanted else others:
        address = ipaddress.IPv4Address(_address_towards(target) or "0.0.0.0")
        if int(address) and address in network and (wanted or not address.is_loopback):
            return str(address)
    raise InputError(
        f"{socket.gethostname()} has no address in {wanted or 'a network with the other machines'}: set "
        f"{NETWORK_VARIABLE} to their common network, such as 10.0.0.0/24, or use --backend mpi"
    )


def _address_towards(target: str) -> str | None:
    """This machine's address on the route to `target`; None for an unknown name or without a route."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((target, 9))  # sends nothing, only chooses the interface
        return probe.getsockname()[0]
    return None


def listening() -> socket.socket:
    """A socket on a free port, to which the other ranks connect to check that they can reach it."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with contextlib.suppress(OSError):  # taken
            return socket_filter.listening(port)
    raise InputError(f"no free port among {PORTS.start} to {PORTS.stop}: use --backend mpi")


def _check_reachable(world: World, servers: Sequence[str]) -> set[str]:
    """The addresses from which the machines connect to the ranks' servers.

    Raises InputError on every rank unless each machine can connect to every rank; gRPC would wait forever.
    """
    refused, sources = None, set()
    for server in servers if world.local_rank == 0 else ():
        host, _, port = server.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), CONNECT_S) as connection:
                sources.add(connection.getsockname()[0])
        except OSError as error:
            refused = f"{socket.gethostname()} cannot reach {server} ({error})"
            break
    gathered = world.all_gather((refused, sources))
    if refusals := [reason for reason, _ in gathered if reason]:
        raise InputError(
            f"{refusals[0]}: set {NETWORK_VARIABLE} to a network that joins all machines, such as 10.0.0.0/24, "
            "or use --backend mpi"
        )
    return set().union(*(sources for _, sources in gathered))
