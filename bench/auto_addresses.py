"""The automatic addresses of a large mesh: how often a host that comes moves another's, and what it costs.

python bench/auto_addresses.py [HOSTS]
"""

from __future__ import annotations

import sys
import time

from mesh_pilot.model.service import EPOCH
from mesh_pilot.world.auto_addresses import AutoAddresses

COMING = 100_000


def main() -> None:
    hosts = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    addresses = AutoAddresses()
    began = time.perf_counter()
    for number in range(hosts):
        addresses.put(f"service-{number}.service.consul", EPOCH)
    filled = time.perf_counter() - began
    moved = 0
    began = time.perf_counter()
    for number in range(COMING):
        host = f"coming-{number}.service.consul"
        moved += len(addresses.put(host, EPOCH))
        addresses.remove(host)
    took = time.perf_counter() - began
    print(f"{hosts} hosts without age: {filled * 1e3:.0f} ms")
    print(f"one more: {took / COMING * 1e6:.1f} us with its end; moves the address of another once in", end=" ")
    print(f"{COMING / moved:.0f}" if moved else f"more than {COMING}")


if __name__ == "__main__":
    main()
