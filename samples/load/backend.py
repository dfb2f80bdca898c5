"""An application that reports its load with each response (ORCA). python3 backend.py NAME PORT UTILIZATION"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME, PORT, UTILIZATION = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])


class Reviews(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = f"{NAME}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        # A real application measures both: requests a second, and the share of its capacity that they take.
        self.send_header("endpoint-load-metrics", f"TEXT rps_fractional=100, application_utilization={UTILIZATION}")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the terminal is for the tutorial."""


ThreadingHTTPServer(("127.0.0.1", PORT), Reviews).serve_forever()
