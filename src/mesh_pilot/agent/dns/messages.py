"""DNS messages: queries read, our own answers written, and the answers of name servers passed on as bytes.

``dnspython`` reads names and writes answers. The records that a name server sent are not decoded: only their structure
is checked, and the id, the case of the question and the times to live are set in place. Its ``Message`` would do all of
this, but takes half as long again for an answer of ours, thrice as long for one that is passed on, refuses records
that clients understand and it does not, and writes others than the name server did. For the same reason
``dns.asyncquery``, which takes and gives such messages, asks no name server here. Source: RFC 1035, 2181, 2308, 6891.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import attrs
import dns.exception
import dns.name
import dns.renderer
import dns.wire
from dns.rcode import Rcode
from dns.rdata import Rdata
from dns.rdataclass import IN
from dns.rdataset import Rdataset, from_rdata_list
from dns.rdatatype import RdataType
from dns.rdtypes.ANY.PTR import PTR
from dns.rdtypes.IN.A import A
from dns.rdtypes.IN.AAAA import AAAA
from dns.rdtypes.IN.SRV import SRV

HEADER_SIZE = 12
PLAIN_UDP_SIZE = 512
"""The size of answers over UDP for clients without EDNS."""
OWN_UDP_SIZE = 4096
"""The largest answer that we send over UDP: the way to our clients is the loopback."""
UPSTREAM_UDP_SIZE = 1232
"""The size of answers that we ask name servers for over UDP: no fragments on any usual network."""
MAX_SIZE = 65_535

_QR, _AA, _TC, _RD, _RA, _AD, _CD = 0x8000, 0x0400, 0x0200, 0x0100, 0x0080, 0x0020, 0x0010
_OPCODE, _RCODE, _DO = 0x7800, 0x000F, 0x8000
_HEADER = struct.Struct("!HHHHHH")
_OPT = struct.Struct("!BHHBBHH")
_RECORD_SIZES = {RdataType.A: 16, RdataType.AAAA: 28}
"""Bytes of an address record whose name is a pointer."""
_NOT_SERVED = (RdataType.AXFR, RdataType.IXFR)


class MessageError(ValueError):
    """A message that is not one of DNS, or no answer to what was asked."""


@attrs.frozen
class DnsQuery:
    """A query of a client."""

    packet: bytes = attrs.field(repr=False)
    name: str = ""
    """The name in question: lower case, without the last dot. Empty for the root and for what is not a host name."""
    type: int = 0
    upstream: bytes = attrs.field(default=b"", repr=False)
    """The query that name servers are asked, with id 0. Queries that have it in common get the same answer."""
    is_plain: bool = False
    """True for one question of class IN, with nothing else that matters: its answers can be kept."""
    udp_size: int = PLAIN_UDP_SIZE
    has_edns: bool = False
    question_end: int = HEADER_SIZE
    refusal: Rcode | None = None
    """The response code that it gets without looking further."""

    @property
    def question(self) -> bytes:
        return self.packet[HEADER_SIZE : self.question_end]


def read_query(packet: bytes) -> DnsQuery | None:
    """Read a packet of a client; None for what gets no answer: an answer, or less than a header."""
    if len(packet) < HEADER_SIZE:
        return None
    _, flags, questions, answers, authorities, additional = _HEADER.unpack_from(packet)
    if flags & _QR:
        return None
    unread = DnsQuery(packet, upstream=b"\0\0" + packet[2:])
    if flags & _OPCODE:
        return unread
    try:
        if questions != 1:
            raise MessageError("not one question")
        name, size = dns.name.from_wire(packet, HEADER_SIZE)
        end = HEADER_SIZE + size + 4
        type_, class_ = struct.unpack_from("!HH", packet, end - 4)
        if sum(len(label) + 1 for label in name.labels) != size:
            raise MessageError("a pointer in the question")
        query = attrs.evolve(unread, name=_text(name), type=type_, question_end=end)
        if type_ in _NOT_SERVED:
            return attrs.evolve(query, refusal=Rcode.NOTIMP)
        if class_ != IN or answers or authorities or additional > 1:
            return query
        edns = b""
        if additional:
            root, kind, udp_size, _, version, edns_flags, length = _OPT.unpack_from(packet, end)
            if root or kind != RdataType.OPT:
                return query
            if end + _OPT.size + length > len(packet):
                raise MessageError("an option beyond the end")
            query = attrs.evolve(query, has_edns=True, udp_size=min(max(udp_size, PLAIN_UDP_SIZE), OWN_UDP_SIZE))
            if version:
                return attrs.evolve(query, refusal=Rcode.BADVERS)
            edns = _OPT.pack(0, RdataType.OPT, UPSTREAM_UDP_SIZE, 0, 0, edns_flags & _DO, 0)
    except (MessageError, dns.exception.DNSException, struct.error):
        return DnsQuery(packet, refusal=Rcode.FORMERR)
    header = _HEADER.pack(0, flags & (_RD | _AD | _CD), 1, 0, 0, additional)
    # The length of a label, at most 63, is below the letters: the question can be made lower case as a whole.
    asked = packet[HEADER_SIZE : end - 4].lower() + packet[end - 4 : end]
    return attrs.evolve(query, upstream=header + asked + edns, is_plain=True)


def _text(name: dns.name.Name) -> str:
    labels = name.labels[:-1]
    if any(b"." in label or not label.isascii() for label in labels):
        return ""
    return b".".join(labels).lower().decode()


def to_name(host: str) -> dns.name.Name:
    """A host as a name. Raises MessageError."""
    try:
        return dns.name.Name([*(label.encode() for label in host.split(".")), b""])
    except (dns.exception.DNSException, UnicodeError) as error:
        raise MessageError(f"{host!r} is not a name: {error}") from None


def address_data(address: str) -> Rdata:
    """The data of an A or AAAA record."""
    if ":" in address:
        return AAAA(IN, RdataType.AAAA, address)
    return A(IN, RdataType.A, address)


def port_data(host: str, port: int) -> Rdata:
    """The data of an SRV record. Raises MessageError."""
    return SRV(IN, RdataType.SRV, 0, 0, port, to_name(host))


def pointer_data(host: str) -> Rdata:
    """The data of a PTR record. Raises MessageError."""
    return PTR(IN, RdataType.PTR, to_name(host))


def write_answer(
    query: DnsQuery,
    data: Sequence[Rdata] = (),
    *,
    ttl: int = 0,
    limit: int = MAX_SIZE,
    code: Rcode = Rcode.NOERROR,
    additional: Sequence[tuple[str, Rdata]] = (),
) -> bytes:
    """Our own answer, of at most ``limit`` bytes. It says so (TC) if not all data fit.

    ``additional`` has records of other hosts, added while there is room.
    """
    flags = _QR | _RA | (int.from_bytes(query.packet[2:4], "big") & (_RD | _CD | _OPCODE)) | (code & _RCODE)
    if code in (Rcode.NOERROR, Rcode.NXDOMAIN):
        flags |= _AA
    opt = _OPT.pack(0, RdataType.OPT, OWN_UDP_SIZE, code >> 4, 0, 0, 0) if query.has_edns else b""
    limit -= len(opt)
    renderer = dns.renderer.Renderer(0, 0, limit)
    if query.question:
        owner = dns.name.from_wire(query.packet, HEADER_SIZE)[0]
        renderer.add_question(owner, *struct.unpack("!HH", query.question[-4:]))
        for kind in dict.fromkeys(each.rdtype for each in data):
            those = [each for each in data if each.rdtype == kind]
            if size := _RECORD_SIZES.get(kind):
                those = those[: (limit - renderer.output.tell()) // size]
            if not _add(renderer, dns.renderer.ANSWER, owner, those, ttl):
                break
    if renderer.counts[1] < len(data):
        flags |= _TC
    else:
        for host, each in additional:
            if not _add(renderer, dns.renderer.ADDITIONAL, to_name(host), [each], ttl):
                break
    counts = renderer.counts
    counts[3] += bool(opt)
    body = renderer.output.getvalue()[HEADER_SIZE:]
    return _HEADER.pack(int.from_bytes(query.packet[:2], "big"), flags, *counts) + body + opt


def _add(renderer: dns.renderer.Renderer, section: int, name: dns.name.Name, data: list[Rdata], ttl: int) -> bool:
    """Add records; False if they do not fit."""
    if not data:
        return True
    records: Rdataset = from_rdata_list(ttl, data)
    try:
        renderer.add_rdataset(section, name, records, want_shuffle=False)
    except dns.exception.TooBig:
        return False
    return True


@attrs.frozen
class DnsAnswer:
    """An answer of a name server, with id 0 and the question as we asked it."""

    message: bytes = attrs.field(repr=False)
    code: int
    is_truncated: bool
    ttl: int
    """Seconds that it is good for: the smallest of its records', or what its SOA says of names that are not."""
    ttl_offsets: tuple[int, ...] = ()

    def aged(self, age: int, *, at_least: int = 0) -> bytes:
        """The message with times to live reduced by ``age``."""
        aged = bytearray(self.message)
        for offset in self.ttl_offsets:
            ttl = int.from_bytes(aged[offset : offset + 4], "big")
            aged[offset : offset + 4] = max(at_least, ttl - age).to_bytes(4, "big")
        return bytes(aged)


MAX_TTL = 3600
"""A longer time to live is cut: an agent asks once an hour at least."""
MAX_NEGATIVE_TTL = 300


def read_answer(message: bytes, query: bytes, id_: int) -> DnsAnswer:
    """Read a name server's answer to ``query``, which was sent with ``id_``. Raises MessageError."""
    if len(message) < HEADER_SIZE:
        raise MessageError("less than a header")
    got, flags, questions, answers, authorities, additional = _HEADER.unpack_from(message)
    asked_flags, asked = int.from_bytes(query[2:4], "big"), int.from_bytes(query[4:6], "big")
    if got != id_ or not flags & _QR or (flags ^ asked_flags) & _OPCODE:
        raise MessageError("not the answer to the query")
    code, truncated = flags & _RCODE, bool(flags & _TC)
    unread = DnsAnswer(b"\0\0" + message[2:], code, truncated, 0)
    # Passed on unread: other operations than queries, and an error of a server that does not repeat the question.
    if asked_flags & _OPCODE or (asked and not questions and code not in (Rcode.NOERROR, Rcode.NXDOMAIN)):
        return unread
    if questions != asked:
        raise MessageError("another question")
    if asked != 1:
        return unread
    try:
        _, size = dns.name.from_wire(query, HEADER_SIZE)
        end = HEADER_SIZE + size + 4
        if message[HEADER_SIZE:end].lower() != query[HEADER_SIZE:end].lower():
            raise MessageError("another question")
        if truncated:  # the rest comes over TCP; what is here may end in the middle of a record
            return unread
        offsets, ttls = _walk(dns.wire.Parser(message, end), answers, authorities, additional)
    except (dns.exception.DNSException, struct.error) as error:
        raise MessageError(f"not a DNS message: {error}") from None
    return attrs.evolve(
        unread,
        message=b"\0\0" + message[2:HEADER_SIZE] + query[HEADER_SIZE:end] + message[end:],
        ttl=min([MAX_TTL, *ttls]) if ttls else 0,
        ttl_offsets=tuple(offsets),
    )


def _walk(parser: dns.wire.Parser, answers: int, authorities: int, additional: int) -> tuple[list[int], list[int]]:
    """Offsets of all times to live; those of the answers, and that of the SOA record that says what is not."""
    offsets: list[int] = []
    ttls: list[int] = []
    for index in range(answers + authorities + additional):
        parser.get_name(decompress=True)
        kind, _, ttl, size = parser.get_struct("!HHIH")
        position = parser.current
        data = parser.get_bytes(size)
        if kind in (RdataType.OPT, RdataType.TSIG):
            continue
        ttl = ttl if ttl < 2**31 else 0
        offsets.append(position - 6)
        if index < answers:
            ttls.append(ttl)
        elif index < answers + authorities and kind == RdataType.SOA and len(data) >= 4:
            ttls.append(min(ttl, int.from_bytes(data[-4:], "big"), MAX_NEGATIVE_TTL))
    return offsets, ttls


def for_client(message: bytes, query: DnsQuery, *, limit: int = MAX_SIZE) -> bytes:
    """A name server's answer as the client wants it: with its id, its spelling, and cut to ``limit`` (TC)."""
    if query.is_plain and len(message) >= query.question_end:
        message = query.packet[:2] + message[2:HEADER_SIZE] + query.question + message[query.question_end :]
    else:
        message = query.packet[:2] + message[2:]
    if len(message) <= limit:
        return message
    flags = int.from_bytes(message[2:4], "big") | _TC
    opt = _OPT.pack(0, RdataType.OPT, OWN_UDP_SIZE, 0, 0, 0, 0) if query.has_edns else b""
    counts = (1 if query.question else 0, 0, 0, bool(opt))
    return query.packet[:2] + flags.to_bytes(2, "big") + struct.pack("!HHHH", *counts) + query.question + opt
