"""A UDP server that answers each datagram with its name: python3 server.py NAME PORT"""

import socket
import sys

name, port = sys.argv[1], int(sys.argv[2])
with socket.socket(type=socket.SOCK_DGRAM) as server:
    server.bind(("127.0.0.1", port))
    while True:
        data, client = server.recvfrom(65536)
        server.sendto(f"{name}: ".encode() + data, client)
