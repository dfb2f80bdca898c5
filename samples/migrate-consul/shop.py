"""A service of the shop: it listens on the loopback alone, and calls the others through its proxy.

    python shop.py web-1 8080 api=127.0.0.2:9001 db=127.0.0.2:9002

    GET /via/api/via/db/items    asks api for /via/db/items, which asks db for /items
    GET /anything/else           answers itself

Each answer says who took part, the last one first.
"""

import http.client
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME, PORT, UPSTREAMS = sys.argv[1], int(sys.argv[2]), dict(pair.split("=") for pair in sys.argv[3:])


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        status, by = 200, []
        if self.path.startswith("/via/"):
            _, _, upstream, rest = self.path.split("/", 3)
            status, by = ask(upstream, f"/{rest}")
        body = json.dumps([*by, NAME]).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def ask(upstream: str, path: str) -> tuple[int, list[str]]:
    """The status of an upstream's answer, and who took part in it."""
    host, port = UPSTREAMS[upstream].split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    try:
        connection.request("GET", path, headers={"host": f"{upstream}.service.consul"})
        reply = connection.getresponse()
        body = reply.read()
        return reply.status, json.loads(body) if body.startswith(b"[") else [body.decode(errors="replace")]
    except OSError as error:
        return 502, [str(error)]
    finally:
        connection.close()


class Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


Server(("127.0.0.1", PORT), Service).serve_forever()
