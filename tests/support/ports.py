"""Free ports for servers that tests start."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket

# Below the ports that systems give to outgoing connections; processes of one time look in different places.
_FIRST = 10_000 + os.getpid() % 200 * 100
_PORTS = itertools.cycle(range(_FIRST, _FIRST + 100))


def free_ports(count: int) -> list[int]:
    """So many ports of the loopback address that nobody listens on."""
    found: list[int] = []
    for port in itertools.islice(_PORTS, 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no free ports")
