"""A stand-in for an application: says where it is, and that it is well at /health. python3 backend.py PLACE PORT"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PLACE, PORT = sys.argv[1], int(sys.argv[2])


class Web(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = b"well\n" if self.path == "/health" else f"web {PLACE}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal is for the tutorial."""


ThreadingHTTPServer(("127.0.0.1", PORT), Web).serve_forever()
