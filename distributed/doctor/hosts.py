"""Checks of the hosts and the network between them: names, cores, clocks, ports."""

import socket
import time

from distributed.collectives.tensorflow import NETWORK_VARIABLE, PORTS, host_address, listening
from distributed.doctor.examination import Finding, failed, not_tested, ok, warning
from distributed.world import World

MOST_SECONDS_APART = 1.0
ROUND_TRIPS = 20
CONNECT_S = 5.0


def check_hosts(world: World) -> Finding:
    """The name and the address of each host."""
    places = world.all_gather((world.node, socket.gethostname(), host_address(world)))
    ranks_of: dict[int, int] = {}
    hosts: dict[int, str] = {}
    for node, name, address in places:
        ranks_of[node] = ranks_of.get(node, 0) + 1
        hosts[node] = f"{name} ({address})"
    shown = [f"{host}, {count(ranks_of[node], 'rank')}" for node, host in list(hosts.items())[:4]]
    more = f"; and {len(hosts) - 4} more" if len(hosts) > 4 else ""
    text = f"{count(len(hosts), 'host')}: {'; '.join(shown)}{more}"
    if len(set(ranks_of.values())) > 1:
        return warning(
            f"{text}: different numbers of ranks",
            "start equally many ranks on each host; a step waits for the slowest",
        )
    return ok(text, hosts=list(hosts.values()))


def check_cores(world: World) -> Finding:
    """How many threads each rank computes with."""
    if world.device.notes:
        note, _, advice = world.device.notes[0].partition("; ")
        return warning(note, advice)
    cores = count(len(world.device.machine_cores), "core")
    return ok(
        f"{count(world.device.threads, 'thread')} per rank, on {cores} of this host",
        threads=world.device.threads,
    )


def check_clocks(world: World) -> Finding:
    """How far the hosts' clocks are apart, by the shortest of several round trips of a message."""
    if world.num_nodes == 1:
        return not_tested("there is one host")
    firsts = [rank for rank, local_rank in enumerate(world.all_gather(world.local_rank)) if local_rank == 0]
    offsets = {rank: offset_s(world, rank) for rank in firsts[1:]}
    furthest = max(offsets, key=lambda rank: abs(offsets[rank])) if world.rank == 0 else 0
    names = world.all_gather(socket.gethostname())
    apart_s = world.broadcast(abs(offsets.get(furthest, 0.0)))
    if world.rank == 0 and apart_s > MOST_SECONDS_APART:
        return warning(
            f"the clock of {names[furthest]} is {apart_s:.3g} s away from that of {names[0]}",
            "synchronise the hosts' clocks (chrony, ntpd): logs and checkpoints are compared by time",
        )
    return ok(f"at most {apart_s * 1e3:.2g} ms apart", apart_s=apart_s)


def offset_s(world: World, other: int) -> float:
    """On rank 0, by how many seconds the clock of rank `other` is ahead; 0 elsewhere."""
    best = (float("inf"), 0.0)
    for _ in range(ROUND_TRIPS):
        if world.rank == 0:
            start_s = time.time()
            world.comm.send(None, other)
            there_s = world.comm.recv(source=other)
            end_s = time.time()
            best = min(best, (end_s - start_s, there_s - (start_s + end_s) / 2))
        elif world.rank == other:
            world.comm.recv(source=0)
            world.comm.send(time.time(), 0)
    return best[1]


def check_ports(world: World, is_needed: bool) -> Finding:
    """Whether each host can connect to a port of each other host, as the backends nccl and ring do.

    Args:
      is_needed: whether a backend that needs it is chosen or may be.
    """
    if world.size == 1:
        return not_tested("there is one rank")
    address = host_address(world)
    with listening() as listener:
        servers = world.all_gather((world.node, f"{address}:{listener.getsockname()[1]}", socket.gethostname()))
        refused = ""
        for node, server, name in servers if world.local_rank == 0 else ():
            if not refused and (reason := refusal(server)) and (node != world.node or world.num_nodes == 1):
                refused = f"{socket.gethostname()} cannot reach {name} at {server} ({reason})"
        world.barrier()
    if not refused:
        where = "of its own" if world.num_nodes == 1 else "of each other host"
        return ok(f"each host reaches ports {where}, among {PORTS.start} to {PORTS.stop - 1}")
    advice = (
        f"open the TCP ports {PORTS.start} to {PORTS.stop - 1} between the hosts, set {NETWORK_VARIABLE} to a "
        "network that joins all hosts, such as 10.0.0.0/24, or give --backend mpi, which needs no such port"
    )
    return failed(refused, advice) if is_needed else warning(refused, advice)


def refusal(server: str) -> str:
    """Why no connection to HOST:PORT can be made; nothing if it can."""
    host, _, port = server.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except OSError as error:
        return str(error.strerror or error)
    return ""


def count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"
