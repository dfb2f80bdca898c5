"""The file ``/etc/resolv.conf``: name servers and search domains (``resolv.conf(5)``), read again when it changes."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

import attrs
import structlog

log = structlog.get_logger(scope="agent.dns")

MAX_NAME_SERVERS = 8
MAX_FILE_SIZE = 65_536
_DEFAULT = "127.0.0.1"
"""The name server that the C library asks where the file names none."""


@attrs.frozen
class ResolverConfig:
    """The name servers and search domains of the file."""

    name_servers: tuple[str, ...] = ()
    search: tuple[str, ...] = ()


def parse_resolv_conf(text: str) -> ResolverConfig:
    """Read the file's text. As in the C library, lines that mean nothing to us are passed over."""
    name_servers: list[str] = []
    search: tuple[str, ...] = ()
    for line in text.splitlines():
        words = line.split()
        if len(words) < 2 or words[0].startswith(("#", ";")):
            continue
        if words[0] == "nameserver" and _is_address(words[1]):
            name_servers.append(words[1])
        elif words[0] in ("search", "domain"):
            search = tuple(word.strip(".").lower() for word in words[1:] if word.strip("."))
    return ResolverConfig(tuple(dict.fromkeys(name_servers))[:MAX_NAME_SERVERS] or (_DEFAULT,), search)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


class ResolvConf:
    """The file and what it last said. While it cannot be read, that is kept."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._problem = ""
        self.config = ResolverConfig((_DEFAULT,))
        self.reread()

    def reread(self) -> bool:
        """Read the file if it is another than last time. True if what it says changed."""
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp == self._stamp:
                return False
            with self._path.open("rb") as file:
                text = file.read(MAX_FILE_SIZE).decode(errors="replace")
        except OSError as error:
            self._stamp = None
            if (problem := error.strerror or str(error)) != self._problem:
                self._problem = problem
                in_force = ", ".join(self.config.name_servers)
                log.warning("resolver file cannot be read", file=str(self._path), reason=problem, in_force=in_force)
            return False
        self._stamp, self._problem = stamp, ""
        before, self.config = self.config, parse_resolv_conf(text)
        return self.config != before
