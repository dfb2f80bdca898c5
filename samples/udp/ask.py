"""Clients that send a datagram each, and print the answers: python3 ask.py PORT TEXT [CLIENTS]"""

import socket
import sys

port, text = int(sys.argv[1]), sys.argv[2]
for _ in range(int(sys.argv[3]) if len(sys.argv) > 3 else 1):
    with socket.socket(type=socket.SOCK_DGRAM) as client:
        client.settimeout(2)
        client.sendto(text.encode(), ("127.0.0.1", port))
        try:
            print(client.recv(65536).decode())
        except TimeoutError:
            print("no answer")
