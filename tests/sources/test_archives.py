"""Archives with modules: Python's own archives are read as Python does, and whatever else comes ends in small steps."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.net.fetching import FetchError
from mesh_pilot.sources.wasm.content import MAX_MEMBERS, PLUGIN_FILE, Unpacking, unwrap
from tests.support.wasm_modules import marking

MODULE = marking("x-mark", "yes")
LIMIT = 4096
Member = tuple[tarfile.TarInfo, bytes]
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def member(
    name: str, body: bytes = b"", kind: bytes = tarfile.REGTYPE, **more: object
) -> tuple[tarfile.TarInfo, bytes]:
    found = tarfile.TarInfo(name)
    found.size, found.type = len(body), kind
    for field, value in more.items():
        setattr(found, field, value)
    return found, body


def archive(*members: Member, form: int = tarfile.GNU_FORMAT) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as tar:
        for info, body in members:
            tar.addfile(info, io.BytesIO(body))
    return made.getvalue()


def header(name: bytes = b"x", size: bytes = b"0", kind: bytes = b"0", sums: bytes | None = None) -> bytes:
    block = bytearray(512)
    block[: len(name)] = name
    block[124 : 124 + len(size)] = size
    block[156:157] = kind
    block[257:263] = b"ustar\0"
    block[148:156] = b" " * 8
    block[148:156] = sums or b"%06o\0 " % sum(block)
    return bytes(block)


def below_zero(size: int) -> bytes:
    return size.to_bytes(12, signed=True)


def layer(data: bytes, step: int = 1000) -> bytes:
    """The module in a layer that comes in pieces."""
    with Unpacking.of_layer(LIMIT) as unpacking:
        for at in range(0, len(data), step):
            for _ in unpacking.feed(data[at : at + step]):
                assert len(unpacking.module) <= LIMIT
        return bytes(unpacking.finish())


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("step", [1, 511, 100_000])
def test_the_module_is_found_as_istios_agent_does(form: int, step: int) -> None:
    long = "folder/" * 30
    packed = archive(
        member("folder", kind=tarfile.DIRTYPE),
        member("link", kind=tarfile.SYMTYPE, linkname="plugin.wasm"),
        member("other.wasm", b"x" * 700, pax_headers={"comment": "a" * 600} if form == tarfile.PAX_FORMAT else {}),
        member(f"{long if form != tarfile.USTAR_FORMAT else ''}{PLUGIN_FILE}", MODULE),
        member(f"again/{PLUGIN_FILE}", b"x"),
        form=form,
    )
    assert layer(gzip.compress(packed), step) == MODULE


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (header(b"d", kind=b"5") + header(b"z", below_zero(-512), b"Z") * 2, "below 0"),
        (header(b"z", below_zero(-(2**80)), b"0"), "below 0"),
        (header(b"z", b"\x80" + b"\x7f" * 11), "bytes; 4096 are taken"),
        (header(b"z", b"\x80" + b"\xff" * 11, b"5"), "ends too early"),
        (header(b"z", b"-0000000777"), "not octal"),
        (header(b"z", b"99999999999"), "not octal"),
        (header(b"z", b"77777777777"), "bytes; 4096 are taken"),
        (header(b"z", sums=b"000000\0 "), "checksum"),
        (header(b"z", b"00000000700"), "ends too early"),
        (header(b"d", kind=b"5") * (MAX_MEMBERS + 1), f"more than {MAX_MEMBERS} files"),
        (header(b"z", b"%011o" % 10**6, b"L"), "a name of 1000000 bytes"),
        (header(b"z", b"00000000010", b"x") + b"99999 path=x".ljust(512, b"\0"), "pax record"),
        (header(b"z", b"00000000015", b"x") + b"13 size=4e9\n\n".ljust(512, b"\0"), "8 GiB"),
        (header(b"d", kind=b"5") + bytes(1024), "empty archive"),
        (header(b"s", kind=b"S") + header(b"s/", kind=b"\0") + bytes(1024), "empty archive"),
        (archive(member("x", b"<html>")), "not a WebAssembly module"),
        (archive(member("x", b"")), "not a WebAssembly module"),
        (gzip.compress(gzip.compress(gzip.compress(gzip.compress(gzip.compress(MODULE))))), "not a WebAssembly module"),
        (gzip.compress(bytes(50_000_000)), "not a WebAssembly module"),
        (gzip.compress(MODULE + bytes(50_000_000)), "has more than 4096 bytes"),
        (gzip.compress(b"") * 10_001, "more than 10000 parts"),
        (b"", "not a WebAssembly module"),
    ],
)
def test_odd_files_are_refused_with_a_reason(body: bytes, reason: str) -> None:
    with pytest.raises(FetchError, match=reason):
        unwrap(body, LIMIT)


@given(st.data())
def test_any_archive_is_read_as_python_reads_it(data: st.DataObject) -> None:
    kinds = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.CONTTYPE])
    names = st.sampled_from(["a", "b/" * 60 + "a", "\u00e4", "dir/plugin.wasm"])
    bodies = st.binary(max_size=600).map(MODULE.__add__)
    drawn = data.draw(st.lists(st.tuples(names, bodies, kinds), max_size=4))
    packed = archive(
        *(member(n, b if k not in (tarfile.DIRTYPE, tarfile.SYMTYPE) else b"", k) for n, b, k in drawn),
        form=data.draw(st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])),
    )
    expected: bytes | None = None
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        for each in tar:
            if each.isreg():
                file = tar.extractfile(each)
                expected = file.read() if file else b""
                break
    found: bytes | None = None
    with suppress(FetchError):
        found = bytes(unwrap(packed if data.draw(st.booleans()) else gzip.compress(packed), LIMIT))
    assert found == expected


def mutated(body: bytes) -> st.SearchStrategy[bytes]:
    edits = st.lists(st.tuples(st.integers(0, len(body) - 1), st.binary(min_size=1, max_size=12)), max_size=4)

    def apply(changes: list[tuple[int, bytes]]) -> bytes:
        changed = bytearray(body)
        for at, new in changes:
            changed[at : at + len(new)] = new
        return bytes(changed)

    return edits.map(apply)


WHOLE = archive(member("d", kind=tarfile.DIRTYPE), member("b/" * 60 + "x", b"y" * 600), member(PLUGIN_FILE, MODULE))


@given(mutated(WHOLE) | mutated(gzip.compress(WHOLE)), st.integers(1, 700))
def test_whatever_bytes_end_with_a_module_or_a_reason(body: bytes, step: int) -> None:
    def steps() -> Iterator[None]:
        with Unpacking.of_file(LIMIT) as unpacking:
            for at in range(0, len(body), step):
                yield from unpacking.feed(body[at : at + step])
            unpacking.finish()

    count = 0
    with suppress(FetchError):
        for _ in steps():
            count += 1
    assert count <= 4 * len(body)


def test_bytes_of_what_was_refused_are_freed_while_its_error_lives() -> None:
    with pytest.raises(FetchError) as caught, Unpacking.of_file(LIMIT) as unpacking:
        for _ in unpacking.feed(MODULE + bytes(LIMIT)):
            pass
    assert caught.value.__traceback__ is not None
    assert not unpacking.module
