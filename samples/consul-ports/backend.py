"""A stand-in for an application with two ports: python3 backend.py PORT ADMIN_PORT. /close at the second closes it."""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Orders(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    says = "orders"

    def do_GET(self) -> None:
        self.answer(f"{self.says}\n".encode())

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal is for the tutorial."""


class Admin(Orders):
    says = "orders, for operators"

    def do_GET(self) -> None:
        is_last = self.path == "/close"
        self.answer(b"closing\n" if is_last else f"{self.says}\n".encode())
        if is_last:
            Thread(target=admin.shutdown).start()


admin = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Admin)
Thread(target=ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Orders).serve_forever).start()
admin.serve_forever()
admin.server_close()
