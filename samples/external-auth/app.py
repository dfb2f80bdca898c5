"""A stand-in for an application: greets whom the gateway names. python3 app.py PORT"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class App(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = f"hello {self.headers.get('X-User', 'stranger')}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal is for the tutorial."""


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), App).serve_forever()
