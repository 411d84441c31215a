"""Keeps strangers from servers of this process that listen on all networks, as TensorFlow's do.

Linux runs a program, the socket filter, on every packet that arrives for a socket, and drops what
it refuses: socket(7), Documentation/networking/filter.rst. A process may give filters to its own
sockets (some kernels want CAP_NET_ADMIN), and accepted connections inherit them. A server accepts
connections before it can get a filter. So another socket, the keeper, holds the port before, gets
all connections while both share it, and refuses them.
"""

import contextlib
import ctypes
import ipaddress
import os
import random
import socket
import struct
from collections.abc import Iterable, Iterator

SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF = 26, 51  # Python's socket has no names for them
# The filter's instructions: load an octet or a word of the IP header, shift, compare and jump,
# return.
LOAD_OCTET, LOAD_WORD, SHIFT_RIGHT, JUMP_IF_EQUAL, RETURN = 0x30, 0x20, 0x74, 0x15, 0x06
IP_HEADER = 0xFFF00000  # where SKF_NET_OFF puts it
VERSION, SOURCE = IP_HEADER, IP_HEADER + 12
NOTHING, WHOLE_PACKET = 0, 0xFFFFFFFF
STRANGER = "127.0.0.2"  # an address of every machine, which no job uses
ANSWER_S = 0.2  # loopback answers within a millisecond, if it answers

Program = list[tuple[int, int, int, int]]  # (code, instructions to skip if true, if false, operand)


def listening(ports: range) -> socket.socket:
    """A socket on a free port of all networks, by IPv6 too where there is any, as gRPC's servers
    listen. A server of this user can share the port, as gRPC's do under TF_GRPC_REUSE_PORT=1."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    kind: dict = {"family": family, "dualstack_ipv6": both}
    for port in random.SystemRandom().sample(ports, 100):
        with contextlib.suppress(OSError):  # the port is taken
            # one that shares the port would not notice
            socket.create_server(("", port), **kind).close()
            return socket.create_server(("", port), backlog=1024, reuse_port=True, **kind)
    raise OSError(f"no free port among {ports.start} to {ports.stop}")


def refuse_all(keeper: socket.socket) -> None:
    """From now on nobody can connect to the port of this socket, nor to a server that comes to
    share the port."""
    _set_program(keeper, SO_ATTACH_FILTER, [(RETURN, 0, 0, NOTHING)])
    # Which of the sockets that share a port gets a connection: the first, which is this one.
    _set_program(keeper, SO_ATTACH_REUSEPORT_CBPF, [(RETURN, 0, 0, 0)])


def accept_only(sources: Iterable[str], keeper: socket.socket) -> None:
    """Hands the keeper's port to this process's server that shares it: only these IPv4 addresses
    can connect. Raises OSError if the system refuses the filter, or if a stranger gets through."""
    refused = (RETURN, 0, 0, NOTHING)
    accepted = (RETURN, 0, 0, WHOLE_PACKET)
    program = [
        (LOAD_OCTET, 0, 0, VERSION),
        (SHIFT_RIGHT, 0, 0, 4),
        (JUMP_IF_EQUAL, 1, 0, 4),
        refused,
        (LOAD_WORD, 0, 0, SOURCE),
    ]
    for source in sorted(sources):
        address = int(ipaddress.IPv4Address(source))
        program += [(JUMP_IF_EQUAL, 0, 1, address), accepted]
    program.append(refused)
    for server in _others_on_its_port(keeper):
        _set_program(server, SO_ATTACH_FILTER, program)
    port = keeper.getsockname()[1]
    keeper.close()
    with contextlib.suppress(TimeoutError):
        socket.create_connection(("127.0.0.1", port), ANSWER_S, (STRANGER, 0)).close()
        raise OSError("socket filters have no effect")


def _set_program(listener: socket.socket, option: int, program: Program) -> None:
    packed = [struct.pack("HBBI", *instruction) for instruction in program]
    instructions = ctypes.create_string_buffer(b"".join(packed))
    # C's struct sock_fprog: their number, and where they are.
    described = struct.pack("HP", len(program), ctypes.addressof(instructions))
    listener.setsockopt(socket.SOL_SOCKET, option, described)


def _others_on_its_port(keeper: socket.socket) -> Iterator[socket.socket]:
    """This process's other sockets that listen on the keeper's port."""
    descriptors = set(map(int, os.listdir("/proc/self/fd")))
    port = keeper.getsockname()[1:2]  # by slices: other kinds of sockets may have none
    for descriptor in descriptors - {keeper.fileno()}:
        # Suppressed: it is no socket, or closed by now.
        with (
            contextlib.suppress(OSError),
            socket.fromfd(descriptor, keeper.family, keeper.type) as other,
        ):
            listens = other.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if listens and other.getsockname()[1:2] == port:
                yield other
