"""Istio's rules for Gateway and Sidecar: for each, a good and a bad object."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.rules import ABSENT, Rule, holds, problems_of, warns

HTTP = {"number": 80, "name": "http", "protocol": "HTTP"}
HTTPS = {"number": 443, "name": "https", "protocol": "HTTPS"}
SERVER = {"port": HTTP, "hosts": ["*"]}
GATEWAY: dict[str, Any] = {"selector": {"istio": "gateway"}, "servers": [SERVER]}
SECURE: dict[str, Any] = {
    "servers": [{"port": HTTPS, "hosts": ["a.b"], "tls": {"mode": "SIMPLE", "credentialName": "c"}}]
}
EGRESS = {"hosts": ["./*"]}
SIDECAR: dict[str, Any] = {"egress": [EGRESS]}
INGRESS: dict[str, Any] = {"ingress": [{"port": HTTP, "defaultEndpoint": "127.0.0.1:8080"}]}
SPKI = "NvqYIYSbgK2vCJpQhObf77vv+bQWtc5ek5RIOwPiC9A="
FILES = {"serverCertificate": "c", "privateKey": "k"}
PROXY = {"host": "a.b", "port": {"number": 80}}

GATEWAYS = [
    Rule("servers", [SERVER], ABSENT, "at least one server"),
    Rule("selector", {"a": "b"}, {"a": "b c"}, "not a label value", "selector[a]"),
    Rule("servers[0].hosts", ["*"], ABSENT, "at least one host"),
    Rule("servers[0].hosts", ["ns/*.b.com", "./a.b"], ["ns/"], "of the form namespace/host", "servers[0].hosts[0]"),
    Rule("servers[0].hosts", ["*/a.b"], ["n_s/a.b"], "is not a namespace", "servers[0].hosts[0]"),
    Rule("servers[0].hosts", ["*/a.b"], ["~/a.b"], "is not a namespace", "servers[0].hosts[0]"),
    Rule("servers[0].hosts", ["10.0.0.1"], ["localhost"], "is a short name", "servers[0].hosts[0]"),
    Rule("servers[0].hosts", ["*.a.b"], ["a.*.b"], "not a DNS label", "servers[0].hosts[0]"),
    Rule("servers[0].hosts", ["*.a.b"], ["*a.b"], "stand alone", "servers[0].hosts[0]"),
    Rule("servers[0].port", HTTP, ABSENT, "is missing"),
    Rule("servers[0].port.number", 80, 0, "not a port"),
    Rule("servers[0].port.name", "http", ABSENT, "is missing"),
    Rule("servers[0].port.protocol", "HTTP2", "ABC", "not a protocol"),
    Rule("servers[0].port.protocol", "TCP", ABSENT, "is missing"),
    warns("servers[0].port", HTTP, {**HTTP, "targetPort": 8080}, "no effect", "servers[0].port.targetPort"),
    Rule("servers[0].bind", "127.0.0.1", "localhost", "not an IP address"),
    Rule("servers[0].bind", "fd00::1", "fe80::1", "a link-local IPv6 address, which Envoy can't listen on"),
    Rule("servers[0].bind", "::1", "::ffff:10.0.0.1", "an IPv4 address in IPv6 form, which Envoy can't listen on"),
    Rule("servers[0].port.name", "p" * 500, "p" * 501, "has 501 characters, allowed are 500"),
    *(
        Rule(
            "servers[0]",
            {**SERVER, "port": {**HTTP, "number": 0}, "bind": f"unix://{good}"},
            {**SERVER, "port": {**HTTP, "number": 0}, "bind": f"unix://{bad}"},
            said,
            "servers[0].bind",
        )
        for good, bad, said in (
            ("/" + "x" * 106, "/" + "x" * 107, "has 108 bytes, allowed are 107"),
            ("@" + "x" * 106, "@" + "x" * 107, "has 108 bytes, allowed are 107"),
            ("/" + "ü" * 53, "/" + "ü" * 54, "has 109 bytes, allowed are 107"),
            ("/a b", "/a\0b", "zero byte"),
        )
    ),
    Rule(
        "servers[0]",
        {**SERVER, "port": {**HTTP, "number": 0}, "bind": "unix:///run/a.sock"},
        {**SERVER, "bind": "unix:///run/a.sock"},
        "must be 0",
        "servers[0].port.number",
    ),
    Rule(
        "servers",
        [SERVER, {**SERVER, "port": {**HTTP, "name": "other", "number": 81}}],
        [SERVER, {**SERVER, "port": {**HTTP, "number": 81}}],
        "names of ports must differ",
        "servers[1].port.name",
    ),
    Rule("servers[0].tls", {"httpsRedirect": True}, {"mode": "SIMPLE", **FILES}, "only httpsRedirect can be set"),
    Rule("servers[0].tls", {"httpsRedirect": True}, {"httpsRedirect": True, "privateKey": "k"}, "only httpsRedirect"),
    Rule(
        "servers[0]",
        {**SERVER, "port": {**HTTP, "protocol": "TCP"}},
        {**SERVER, "port": {**HTTP, "protocol": "TCP"}, "tls": {"mode": "SIMPLE", **FILES}},
        "use TLS",
        "servers[0].tls",
    ),
]

CERTIFICATES = [
    Rule("servers[0].tls", {"mode": "PASSTHROUGH"}, ABSENT, "protocol HTTPS needs it"),
    Rule(
        "servers[0].tls",
        {"mode": "SIMPLE", **FILES},
        {"mode": "SIMPLE", "privateKey": "k"},
        "is missing",
        "servers[0].tls.serverCertificate",
    ),
    Rule(
        "servers[0].tls",
        {"mode": "SIMPLE", **FILES},
        {"mode": "SIMPLE", "serverCertificate": "k"},
        "is missing",
        "servers[0].tls.privateKey",
    ),
    Rule(
        "servers[0].tls",
        {"mode": "MUTUAL", **FILES, "caCertificates": "a"},
        {"mode": "MUTUAL", **FILES},
        "is missing",
        "servers[0].tls.caCertificates",
    ),
    Rule(
        "servers[0].tls",
        {"mode": "OPTIONAL_MUTUAL", "credentialName": "a"},
        {"mode": "OPTIONAL_MUTUAL", **FILES},
        "is missing",
        "servers[0].tls.caCertificates",
    ),
    Rule(
        "servers[0].tls",
        {"mode": "ISTIO_MUTUAL"},
        {"mode": "ISTIO_MUTUAL", "credentialName": "c"},
        "uses the mesh's",
        "servers[0].tls.credentialName",
    ),
    Rule(
        "servers[0].tls",
        {"mode": "ISTIO_MUTUAL"},
        {"mode": "ISTIO_MUTUAL", "privateKey": "c"},
        "uses the mesh's",
        "servers[0].tls.privateKey",
    ),
    *(
        warns(
            "servers[0].tls",
            {"mode": "ISTIO_MUTUAL"},
            {"mode": "ISTIO_MUTUAL", name: value},
            "uses the mesh's",
            f"servers[0].tls.{name}",
        )
        for name, value in (("caCertCredentialName", "c"), ("insecureSkipVerify", True))
    ),
    warns(
        "servers[0].tls",
        {"mode": "AUTO_PASSTHROUGH"},
        {"mode": "PASSTHROUGH", "credentialName": "c"},
        "does not terminate",
        "servers[0].tls.credentialName",
    ),
    warns(
        "servers[0].tls",
        {"mode": "PASSTHROUGH"},
        {"mode": "PASSTHROUGH", "httpsRedirect": True},
        "it is for HTTP",
        "servers[0].tls.httpsRedirect",
    ),
    Rule(
        "servers[0].tls",
        {"mode": "SIMPLE", "credentialNames": ["a", "b"]},
        {"mode": "SIMPLE", "credentialNames": ["a", "b", "c"]},
        "at most 2",
        "servers[0].tls.credentialNames",
    ),
    Rule(
        "servers[0].tls",
        {"mode": "SIMPLE", "credentialNames": ["a"]},
        {"mode": "SIMPLE", "credentialNames": ["a"], "credentialName": "b"},
        "exclude each other",
        "servers[0].tls.credentialNames",
    ),
    Rule(
        "servers[0].tls",
        {"mode": "MUTUAL", "credentialName": "a"},
        {"mode": "MUTUAL", "credentialName": "a", "caCrl": "b"},
        "into the credential",
        "servers[0].tls.caCrl",
    ),
    Rule(
        "servers[0].tls",
        {"mode": "SIMPLE", "tlsCertificates": [FILES]},
        {"mode": "SIMPLE", "tlsCertificates": [FILES], "privateKey": "k"},
        "excludes",
        "servers[0].tls.tlsCertificates",
    ),
    Rule(
        "servers[0].tls",
        {"mode": "SIMPLE", "tlsCertificates": [FILES]},
        {"mode": "SIMPLE", "tlsCertificates": [{}]},
        "is missing",
        "servers[0].tls.tlsCertificates[0].privateKey",
    ),
    Rule(
        "servers[0].tls",
        {"mode": "SIMPLE", **FILES},
        {"mode": "SIMPLE", **FILES, "credentialName": "a"},
        "exclude each other",
        "servers[0].tls.credentialName",
    ),
    warns(
        "servers[0].tls",
        {"mode": "SIMPLE", "tlsCertificates": [FILES]},
        {"mode": "SIMPLE", "tlsCertificates": [FILES] * 3},
        "has more than 2",
        "servers[0].tls.tlsCertificates",
    ),
    Rule("servers[0].tls.minProtocolVersion", "TLSV1_2", "TLS1.2", "allowed: TLS_AUTO"),
    Rule("servers[0].tls.credentialName", "c" * 500, "c" * 501, "has 501 characters"),
    Rule("servers[0].tls.credentialName", "c", "c\0", "zero byte"),
    Rule(
        "servers[0].tls",
        {"mode": "SIMPLE", "credentialNames": ["a"]},
        {"mode": "SIMPLE", "credentialNames": ["c" * 501]},
        "has 501 characters",
        "servers[0].tls.credentialNames[0]",
    ),
    Rule(
        "servers[0].tls",
        {"mode": "SIMPLE", **FILES},
        {"mode": "SIMPLE", "serverCertificate": "c", "privateKey": "/" * 501},
        "has 501 characters",
        "servers[0].tls.privateKey",
    ),
    *(
        Rule(
            "servers[0].tls",
            {"mode": "MUTUAL", "credentialName": "c", field: good},
            {"mode": "MUTUAL", "credentialName": "c", field: [bad]},
            "is not the SHA-256 of",
            f"servers[0].tls.{field}[0]",
        )
        for field, good, bads in (
            ("verifyCertificateSpki", [SPKI], ("", "zz", SPKI[:-1], SPKI + "A", "!" * 44, "A" * 44, "-" + SPKI[1:])),
            (
                "verifyCertificateHash",
                ["a0" * 32, "A0" * 32, ":".join(["a0"] * 32)],
                ("", "a0", "z" * 64, "a" * 95, ":".join(["zz"] * 32), "a0" * 33),
            ),
        )
        for bad in bads
    ),
    Rule(
        "servers[0].tls",
        {"mode": "PASSTHROUGH", "minProtocolVersion": "TLSV1_2", "maxProtocolVersion": "TLSV1_3"},
        {"mode": "PASSTHROUGH", "minProtocolVersion": "TLSV1_3", "maxProtocolVersion": "TLSV1_2"},
        "is above",
        "servers[0].tls.minProtocolVersion",
    ),
    warns(
        "servers[0].tls.cipherSuites",
        ["AES128-SHA"],
        ["ROT13"],
        "not a known cipher suite",
        "servers[0].tls.cipherSuites[0]",
    ),
    warns(
        "servers[0].tls.cipherSuites",
        ["AES128-SHA", "AES256-SHA"],
        ["AES128-SHA", "AES128-SHA"],
        "given twice",
        "servers[0].tls.cipherSuites[1]",
    ),
]

EGRESSES = [
    Rule("", SIDECAR, {}, "says nothing"),
    Rule(
        "workloadSelector",
        {"labels": {"a": "b"}},
        {"labels": {"": "b"}},
        "must have a key",
        "workloadSelector.labels[]",
    ),
    Rule("egress[0].hosts", ["*/*", "~/*"], [], "at least one host"),
    Rule(
        "egress[0]",
        {**EGRESS, "port": HTTP, "bind": "fe80::1"},
        {**EGRESS, "port": HTTP, "bind": "fe80::1", "captureMode": "NONE"},
        "can't listen on",
        "egress[0].bind",
    ),
    Rule(
        "egress[0]",
        {**EGRESS, "bind": "::1", "captureMode": "NONE"},
        {**EGRESS, "bind": "::ffff:10.0.0.1", "captureMode": "NONE"},
        "can't listen on",
        "egress[0].bind",
    ),
    Rule(
        "egress[0]",
        {**EGRESS, "port": {**HTTP, "number": 0}, "bind": "unix:///a"},
        {**EGRESS, "port": {**HTTP, "number": 0}, "bind": "unix:///" + "x" * 107},
        "allowed are 107",
        "egress[0].bind",
    ),
    Rule("egress[0].hosts", ["*/*", "~shop/*"], ["~s_p/*"], "is not a namespace", "egress[0].hosts[0]"),
    Rule("egress[0].hosts", ["ns/a.b"], ["a.b"], "of the form namespace/host", "egress[0].hosts[0]"),
    warns("egress[0].hosts", ["ns/*.b"], ["ns/a"], "is a short name", "egress[0].hosts[0]"),
    Rule("egress[0].hosts", ["ns/*"], ["n.s/*"], "is not a namespace", "egress[0].hosts[0]"),
    warns("egress[0].hosts", ["ns/*"], ["ns/*", "ns/a.b"], 'included in "ns/*"', "egress[0].hosts[1]"),
    warns("egress[0].hosts", ["ns/*"], ["ns/*", "ns/*"], "given twice", "egress[0].hosts[1]"),
    Rule(
        "egress",
        [{"port": HTTP, **EGRESS}, EGRESS],
        [EGRESS, {"port": HTTP, **EGRESS}],
        "the last in the list",
        "egress[0]",
    ),
    Rule("egress", [EGRESS], [EGRESS, EGRESS], "the last in the list", "egress[0]"),
    Rule(
        "egress",
        [{"port": HTTP, **EGRESS}, {"port": HTTPS, **EGRESS}],
        [{"port": HTTP, **EGRESS}, {"port": HTTP, **EGRESS}],
        "has 80 already",
        "egress[1]",
    ),
    Rule(
        "egress[0]",
        {"port": HTTP, **EGRESS},
        {"port": {**HTTP, "number": 0}, **EGRESS},
        "not a port",
        "egress[0].port.number",
    ),
    Rule(
        "egress[0]",
        {"port": {**HTTP, "protocol": ""}, **EGRESS},
        {"port": {**HTTP, "protocol": "X"}, **EGRESS},
        "not a protocol",
        "egress[0].port.protocol",
    ),
    Rule(
        "egress[0]",
        {"port": HTTP, "bind": "127.0.0.1", **EGRESS},
        {"port": HTTP, "bind": "a", **EGRESS},
        "not an IP",
        "egress[0].bind",
    ),
    Rule(
        "egress[0]",
        {"port": {"protocol": "HTTP"}, "bind": "unix:///a", **EGRESS},
        {"port": {"protocol": "HTTP"}, "bind": "unix:///a", "captureMode": "IPTABLES", **EGRESS},
        "DEFAULT or NONE",
        "egress[0].captureMode",
    ),
    Rule(
        "egress[0]",
        {"port": {"protocol": "HTTP"}, "bind": "unix:///a", **EGRESS},
        {"port": HTTP, "bind": "unix:///a", **EGRESS},
        "must be 0",
        "egress[0].port.number",
    ),
    Rule(
        "egress[0]",
        {"port": {"protocol": "HTTP"}, "bind": "unix:///a", **EGRESS},
        {"bind": "unix:///a", **EGRESS},
        "is missing",
        "egress[0].port",
    ),
    Rule(
        "egress[0]",
        {"bind": "127.0.0.1", "captureMode": "NONE", **EGRESS},
        {"bind": "127.0.0.1", "captureMode": "IPTABLES", **EGRESS},
        "without a port",
        "egress[0].bind",
    ),
    Rule(
        "outboundTrafficPolicy",
        {"mode": "ALLOW_ANY", "egressProxy": PROXY},
        {"egressProxy": PROXY},
        "needs mode ALLOW_ANY",
        "outboundTrafficPolicy.egressProxy",
    ),
    Rule(
        "outboundTrafficPolicy",
        {"mode": "ALLOW_ANY"},
        {"mode": "ALLOW_ANY", "egressProxy": {"host": "a.b"}},
        "is missing",
        "outboundTrafficPolicy.egressProxy.port",
    ),
    Rule(
        "outboundTrafficPolicy",
        {"mode": "ALLOW_ANY"},
        {"mode": "ALLOW_ANY", "egressProxy": {"host": "*.b", "port": {"number": 1}}},
        "not a DNS label",
        "outboundTrafficPolicy.egressProxy.host",
    ),
    Rule("inboundConnectionPool", {"http": {}}, {}, "needs tcp, http", "inboundConnectionPool"),
]

INGRESSES = [
    Rule("ingress[0].port", HTTP, ABSENT, "is missing"),
    Rule("ingress[0].port.number", 1, 0, "not a port"),
    Rule("ingress[0].port.protocol", "GRPC", "X", "not a protocol"),
    Rule("ingress[0].bind", "10.0.0.1", "unix:///a", "not an IP address"),
    Rule("ingress[0].defaultEndpoint", "unix:///a", "10.0.0.1:80", "not of the form"),
    Rule("ingress[0].defaultEndpoint", ":80", "127.0.0.1", "not of the form"),
    Rule("ingress[0].defaultEndpoint", "unix:///" + "x" * 106, "unix:///" + "x" * 107, "allowed are 107"),
    Rule("ingress[0].defaultEndpoint", "unix://@a", "unix://@a\0", "zero byte"),
    Rule(
        "ingress[0]",
        {"port": HTTP, "bind": "fe80::1"},
        {"port": HTTP, "bind": "fe80::1", "captureMode": "NONE"},
        "can't listen on",
        "ingress[0].bind",
    ),
    Rule("ingress[0].defaultEndpoint", "[::1]:80", "127.0.0.1:0", "not a port"),
    Rule(
        "ingress",
        [{"port": HTTP}, {"port": HTTPS}],
        [{"port": HTTP}, {"port": HTTP}],
        "given twice",
        "ingress[1].port.number",
    ),
    Rule("ingress[0].connectionPool", {"tcp": {}}, {}, "needs tcp, http"),
    Rule(
        "ingress[0]",
        {"port": HTTPS, "tls": {"mode": "SIMPLE", **FILES}},
        {"port": HTTP, "tls": {"mode": "SIMPLE", **FILES}},
        "HTTPS or TLS",
        "ingress[0].tls",
    ),
    Rule(
        "ingress[0]",
        {"port": HTTPS, "tls": {"mode": "SIMPLE", **FILES}},
        {"port": HTTPS, "tls": {"mode": "SIMPLE", "credentialName": "a"}},
        "not supported",
        "ingress[0].tls.credentialName",
    ),
    Rule(
        "ingress[0]",
        {"port": HTTPS, "tls": {"mode": "SIMPLE", **FILES}},
        {"port": HTTPS, "tls": {"mode": "ISTIO_MUTUAL"}},
        "not supported",
        "ingress[0].tls.mode",
    ),
    Rule(
        "ingress[0]",
        {"port": HTTPS, "tls": {"mode": "SIMPLE", **FILES}},
        {"port": HTTPS, "tls": {"mode": "SIMPLE", **FILES, "subjectAltNames": ["a"]}},
        "not supported",
        "ingress[0].tls.subjectAltNames",
    ),
    Rule(
        "ingress[0]",
        {"port": HTTPS, "tls": {"mode": "SIMPLE", **FILES}},
        {"port": HTTPS, "tls": {"mode": "SIMPLE", **FILES, "httpsRedirect": True}},
        "not supported",
        "ingress[0].tls.httpsRedirect",
    ),
]

TABLE = [
    (kind, base, rule)
    for kind, base, rules in (
        ("Gateway", GATEWAY, GATEWAYS),
        ("Gateway", SECURE, CERTIFICATES),
        ("Sidecar", SIDECAR, EGRESSES),
        ("Sidecar", INGRESS, INGRESSES),
    )
    for rule in rules
]


@pytest.mark.parametrize(("kind", "base", "rule"), TABLE, ids=str)
def test_a_rule_of_gateways_and_sidecars_is_kept_or_named(kind: str, base: dict[str, Any], rule: Rule) -> None:
    holds(kind, base, rule)


def test_a_gateway_is_named_like_a_dns_label() -> None:
    assert problems_of("Gateway", GATEWAY, name="edge-1") == []
    (problem,) = problems_of("Gateway", GATEWAY, name="edge.one")
    assert problem.path == "metadata.name"
