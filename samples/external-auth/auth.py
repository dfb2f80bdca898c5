"""An authorization server: lets callers with a known token pass, and says who they are. python3 auth.py PORT"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

USERS = {"Bearer t0p-secret": "ann", "Bearer al50-secret": "ben"}


class Auth(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        user = USERS.get(self.headers.get("Authorization", ""))
        body = b"" if user else b"who are you?\n"
        self.send_response(200 if user else 401)
        self.send_header("X-User" if user else "WWW-Authenticate", user or "Bearer")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal is for the tutorial."""


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Auth).serve_forever()
