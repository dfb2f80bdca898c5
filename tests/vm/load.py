"""Runs on a VM of a test: calls a URL without pause in several threads until SIGTERM, and notes each call that failed.

python3 load.py URL RESULT [THREADS]. A line of RESULT is JSON: the times since the epoch, and what went wrong; or
the number of calls so far. A connection serves ten calls.
"""

from __future__ import annotations

import http.client
import json
import signal
import sys
import threading
import time
from typing import IO
from urllib.parse import urlsplit

URL, RESULT = urlsplit(sys.argv[1]), sys.argv[2]
THREADS = int(sys.argv[3]) if len(sys.argv) > 3 else 4
PAUSE_SECONDS = 0.03
CALLS_OF_A_CONNECTION = 10
ended = threading.Event()
calls = [0] * THREADS


def call(connection: http.client.HTTPConnection) -> str:
    """What is wrong with the answer; empty if nothing is."""
    connection.request("GET", URL.path or "/")
    answer = connection.getresponse()
    said = answer.read().decode(errors="replace")
    return "" if answer.status == 200 else f"{answer.status} {said[:200]}"


def work(number: int, result: IO[str]) -> None:
    while not ended.is_set():
        connection = http.client.HTTPConnection(URL.hostname or "", URL.port or 80, timeout=15)
        for _ in range(CALLS_OF_A_CONNECTION):
            began = time.time()
            try:
                wrong = call(connection)
            except (OSError, http.client.HTTPException) as error:
                wrong = f"{type(error).__name__}: {error}"
            calls[number] += 1
            if wrong:
                result.write(json.dumps({"at": began, "until": time.time(), "wrong": wrong}) + "\n")
                result.flush()
                break
            if ended.wait(PAUSE_SECONDS):
                break
        connection.close()


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with open(RESULT, "a", encoding="utf-8") as result:  # noqa: PTH123 - runs alone, and without the venv
        threads = [threading.Thread(target=work, args=(number, result)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.1)
            result.write(json.dumps({"calls": sum(calls)}) + "\n")
            result.flush()


main()
