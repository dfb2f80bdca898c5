"""Small messages read by their field numbers: the generated classes would cost the agent more memory than they save."""

from __future__ import annotations

from mesh_pilot.base.protowire import LEN, fields


class Parts:
    """The fields of an encoded message that have a length: texts, bytes and messages, each copied."""

    def __init__(self, data: bytes | memoryview) -> None:
        """Raises WireError."""
        self._values: dict[int, list[bytes]] = {}
        for number, kind, start, end in fields(data):
            if kind == LEN:
                self._values.setdefault(number, []).append(bytes(data[start:end]))

    def __contains__(self, number: int) -> bool:
        return number in self._values

    def all(self, number: int) -> list[bytes]:
        """The values of a repeated field."""
        return self._values.get(number, [])

    def last(self, number: int) -> bytes:
        """The value of a field; empty if it is not set."""
        return self._values.get(number, (b"",))[-1]

    def text(self, number: int, errors: str = "strict") -> str:
        """The same as text. Raises UnicodeDecodeError where ``errors`` does not say otherwise, as ``texts`` does."""
        return self.last(number).decode(errors=errors)

    def texts(self, number: int, errors: str = "strict") -> tuple[str, ...]:
        return tuple(value.decode(errors=errors) for value in self.all(number))
