"""A stand-in for an application on a VM: says who it is, and what the one that it calls has said.

python3 app.py NAME [URL]
"""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

NAME, URL = sys.argv[1], (sys.argv[2] if len(sys.argv) > 2 else "")


def called() -> tuple[int, str]:
    """The answer of the one that it calls, with the status."""
    try:
        with urlopen(URL, timeout=10) as answer:
            return 200, answer.read().decode()
    except HTTPError as error:
        return error.code, f"{error.code}\n"
    except (URLError, OSError) as error:
        return 502, f"{error}\n"


class App(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        status, said = called() if URL and self.path != "/health" else (200, "")
        body = (f"{NAME}: {said}" if said else f"{NAME}\n").encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


Server(("0.0.0.0", 9080), App).serve_forever()
