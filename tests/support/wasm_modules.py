"""Small WebAssembly modules for Envoy, assembled by hand: no toolchain, some hundred bytes.

Source: the WebAssembly core specification, binary format; the proxy-wasm ABI 0.2.1.
"""

from __future__ import annotations

from collections.abc import Sequence

I32, FUNCTION = 0x7F, 0x60
RESPONSE_HEADERS = 2
PLUGIN_CONFIGURATION = 7
CONTINUE = 0

_MAGIC = b"\0asm\x01\0\0\0"
_LOCAL_GET, _GLOBAL_GET, _GLOBAL_SET, _LOAD, _CONST, _CALL, _ADD, _DROP, _END = (
    0x20, 0x23, 0x24, 0x28, 0x41, 0x10, 0x6A, 0x1A, 0x0B,
)  # fmt: skip

_HEADER_AT, _VALUE_AT, _ADDRESS_AT, _SIZE_AT, _HEAP_AT = 1024, 1280, 2048, 2052, 4096


def marking(header: str, value: str = "") -> bytes:
    """A module that adds a header to responses; without a value the value is the plugin's configuration, as text."""
    functions: list[tuple[str, int, bytes]] = [
        ("proxy_abi_version_0_2_1", _NOTHING, b""),
        # The address of the heap's end, which then moves up.
        ("malloc", _ONE_TO_ONE, _global_get() + _global_get() + _get(0) + bytes([_ADD]) + bytes([_GLOBAL_SET, 0])),
        ("proxy_on_context_create", _TWO_TO_NOTHING, b""),
        ("proxy_on_vm_start", _TWO_TO_ONE, _const(1)),
        ("proxy_on_configure", _TWO_TO_ONE, _const(1) if value else _read_configuration()),
        ("proxy_on_response_headers", _THREE_TO_ONE, _add_header(header, value)),
    ]
    data = [(_HEADER_AT, header.encode()), (_VALUE_AT, value.encode())]
    return _module(functions, data)


def _read_configuration() -> bytes:
    arguments = (PLUGIN_CONFIGURATION, 0, 1000, _ADDRESS_AT, _SIZE_AT)
    return b"".join(map(_const, arguments)) + _call(1) + bytes([_DROP]) + _const(1)


def _add_header(header: str, value: str) -> bytes:
    shown = _const(_VALUE_AT) + _const(len(value)) if value else _load(_ADDRESS_AT) + _load(_SIZE_AT)
    added = _const(RESPONSE_HEADERS) + _const(_HEADER_AT) + _const(len(header)) + shown + _call(0) + bytes([_DROP])
    return added + _const(CONTINUE)


_IMPORTS = (("proxy_add_header_map_value", 5), ("proxy_get_buffer_bytes", 5))
_TYPES = (
    b"\x60\0\0",
    bytes([FUNCTION, 1, I32, 1, I32]),
    bytes([FUNCTION, 2, I32, I32, 0]),
    bytes([FUNCTION, 2, I32, I32, 1, I32]),
    bytes([FUNCTION, 3, I32, I32, I32, 1, I32]),
    bytes([FUNCTION, 5, I32, I32, I32, I32, I32, 1, I32]),
)
_NOTHING, _ONE_TO_ONE, _TWO_TO_NOTHING, _TWO_TO_ONE, _THREE_TO_ONE = range(5)


def _module(functions: Sequence[tuple[str, int, bytes]], data: Sequence[tuple[int, bytes]]) -> bytes:
    imports = [_text("env") + _text(name) + bytes([0, kind]) for name, kind in _IMPORTS]
    exports = [_text("memory") + bytes([2, 0])]
    exports += [_text(name) + bytes([0]) + _u32(i + len(imports)) for i, (name, _, _) in enumerate(functions)]
    bodies = [b"\0" + code + bytes([_END]) for _, _, code in functions]
    return _MAGIC + b"".join(
        (
            _section(1, _TYPES),
            _section(2, imports),
            _section(3, [_u32(kind) for _, kind, _ in functions]),
            _section(5, [b"\0\x02"]),
            _section(6, [bytes([I32, 1]) + _const(_HEAP_AT) + bytes([_END])]),
            _section(7, exports),
            _section(10, [_u32(len(body)) + body for body in bodies]),
            _section(11, [b"\0" + _const(at) + bytes([_END]) + _u32(len(b)) + b for at, b in data]),
        )
    )


def _section(number: int, entries: Sequence[bytes]) -> bytes:
    body = _u32(len(entries)) + b"".join(entries)
    return bytes([number]) + _u32(len(body)) + body


def _const(value: int) -> bytes:
    return bytes([_CONST]) + _s32(value)


def _get(local: int) -> bytes:
    return bytes([_LOCAL_GET, local])


def _global_get() -> bytes:
    return bytes([_GLOBAL_GET, 0])


def _load(address: int) -> bytes:
    return _const(address) + bytes([_LOAD, 2, 0])


def _call(function: int) -> bytes:
    return bytes([_CALL, function])


def _text(value: str) -> bytes:
    return _u32(len(value)) + value.encode()


def _u32(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _s32(value: int) -> bytes:
    found = bytearray()
    while not -0x40 <= value < 0x40:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value & 0x7F])
