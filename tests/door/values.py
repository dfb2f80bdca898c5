"""Values of fields: mostly what people write, now and then what nobody should.

Names come from a few, so that objects meet: the hosts, ports, labels and namespaces of `tests.door.mesh`.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

HOSTS = (
    "reviews.shop.svc.cluster.local",
    "ratings.other.svc.cluster.local",
    "web.shop.svc.cluster.local",
    "ext.example.test",
    "evil.test",
)
"""Hosts of services, and of none."""

_DOMAINS = (*HOSTS, "reviews", "EVIL.test", "*.example.test", "*.test", "*", "a.b.example.test", "127.0.1.1", "::1")
_NAMESPACES = ("shop", "other", "*", ".", "~")
_PORTS = (80, 443, 9080, 9443, 9000, 31080, 31443, 31400)
_IPS = (
    "127.0.1.1",
    "127.0.1.2",
    "127.0.0.1",
    "127.0.7.7",
    "0.0.0.0",
    "::",
    "::1",
    "fd00::7",
    "10.2.0.0/16",
    "0.0.0.0/0",
)
_HEADERS = ("x-user", "X-Upper", "authorization", "cookie", ":path", ":authority", "host", "content-length", "x_under")
_REGEXES = (".*", "a+", "[a-z]{1,3}", "(?i)abc", r"\d+\.\d+", "^/x$", "(a|b)*", "(?P<x>y)", "", ".", r"[[:alpha:]]")
_NASTY_REGEXES = (
    "(",
    "(?=a)",
    r"(a)\1",
    "a{1001}",
    "[z-a]",
    "*",
    "a**",
    r"\q",
    "(?<x>y)",
    "x{0,1000}{0,9}",
    r"\C",
    "\\",
)
_PATHS = ("/", "/a", "/a/b", "/a/{*}", "/{**}", "a", "/a?b=c", "/a#b", "//", "/ä", "/a b", "/%41", "*", "/a*", "*/b")
_FORMATS = (
    "%REQ(X-A)%",
    "%PROTOCOL%",
    "100%",
    "%%",
    "%FOO%",
    "%REQ(",
    "%START_TIME(%s)%",
    "%DYNAMIC_METADATA(a:b)%",
    "a%b",
    "%DOWNSTREAM_REMOTE_ADDRESS%",
    "%RESP(x):9%",
    "%HOSTNAME%",
    '%UPSTREAM_METADATA(["a", "b"])%',
    "%REQ(X?Y?Z)%",
    "%CEL(request.path)%",
    "%FILTER_STATE(a:B)%",
    "%ENVIRONMENT(X)%",
    "%REQ()%",
    "%START_TIME(%E%)%",
    "%TRAILER(x):-1%",
)
_TEXTS = ("a", "name-1", "http", "x", "Some text", "v1")
_NASTY = (
    "",
    " ",
    "%",
    "\x00",
    "\r\n",
    "ä",
    "日本語",
    "A.B",
    "a..b",
    "-",
    ".",
    "*",
    "a" * 64,
    "a" * 256,
    "b" * 5000,
    "c" * 70000,
    "/",
    "//",
    "..",
    "a/b",
    "a:b",
    ":",
    "a b",
    "'",
    '"',
    "{",
    "}",
    "{}",
    "%FOO%",
    "\t",
    "|",
    "a|b",
    "__proto__",
    "_",
    "unix:///tmp/" + "s" * 120,
    "unix:///tmp/door",
    "unix://@abstract",
    "300.1.1.1",
    "::ffff:1.2.3.4",
    "1.2.3.4/33",
    "\x7f",
    "ẞ.test",
    "xn--",
    "a.test.",
    "EVIL.TEST",
    "$",
    "\\",
    "#",
    "?",
    "😀",
    "false",
    "0",
    "-1",
    "1e400",
    "~",
)
_DURATIONS = ("1s", "3s", "0.5s", "10s", "1h0m0s", "0s", "100ms")
_NASTY_DURATIONS = (
    "0s",
    "-1s",
    "0.000001s",
    "0.0009s",
    "1us",
    "315576000000s",
    "315576000001s",
    "4294968s",
    "9000000h",
    "-0.5s",
)
_INTEGERS = (1, 2, 3, 10, 100)
_NASTY_INTEGERS = (
    0,
    -1,
    99,
    101,
    200,
    599,
    600,
    1024,
    5000011,
    5000012,
    8388609,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 1,
)
_NASTY_LONGS = (2**32, 2**53, 2**63 - 1, 2**64 - 1)
_NUMBERS = (0.0, 0.1, 1.0, 50.0, 99.9, 100.0)
_NASTY_NUMBERS = (-1.0, 100.1, 1e-9, 1e9, 1e308, "NaN", "Infinity", 0.00001)
_CIPHERS = (
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "AES256-SHA",
    "[ECDHE-ECDSA-AES128-GCM-SHA256|AES128-SHA]",
    "NULL",
    "!aNULL",
    "ALL",
)
_LOCALITIES = ("region/zone/sub", "region/zone/*", "region/*", "*", "r2", "r2/z", "region")
_IDENTITIES = (
    "cluster.local/ns/shop/sa/web",
    "*",
    "cluster.local/*",
    "*/web",
    "spiffe://cluster.local/ns/shop/sa/default",
)
_PROTOCOLS = (
    "HTTP",
    "HTTPS",
    "TCP",
    "TLS",
    "GRPC",
    "HTTP2",
    "MONGO",
    "MYSQL",
    "REDIS",
    "UDP",
    "GRPC-WEB",
    "AUTO",
    "",
    "http",
    "HTTP_PROXY",
)
_CONDITIONS = (
    "request.headers[x-user]",
    "request.headers[:path]",
    "source.ip",
    "remote.ip",
    "source.namespace",
    "source.principal",
    "request.auth.principal",
    "request.auth.audiences",
    "request.auth.presenter",
    "request.auth.claims[iss]",
    "request.auth.claims[a][b]",
    "destination.ip",
    "destination.port",
    "connection.sni",
    "experimental.envoy.filters.a.b[c]",
    "request.headers[]",
    "request.headers[A B]",
)
_EXPRESSIONS = (
    "response.code >= 500",
    "request.path == '/'",
    "true",
    "1",
    "a.b.c",
    "(",
    "has(request.headers['a'])",
    "x('",
    "size([1,2])",
)
_MODULUS = (
    "xAE7eB6qugXyCAG3yhh7pkDkT65pHymX-P7KfIupjf59vsdo91bSP9C8H07pSAGQO1MV_xFj9VswgsCg4R6otmg5PV2He95lZdHt"
    "OcU5DXIg_pbhLdKXbi66GlVeK6ABZOUW3WYtnNHD-91gVuoeJT_DwtGGcp4ignkgXfkiEm4sw-4sfb4qdt5oLbyVpmW6x9cfa7vs"
    "2WTfURiCrBoUqgBo_-4WTiULmmHSGZHOjzwa8WtrtOQGsAFjIbno85jp6MnGGGZPYZbDAa_b3y5u-YpW7ypZrvD8BgtKVjgtQgZh"
    "LAGezMt0ua3DRrWnKqTZ0BJ_EyxOGuHJrLsn00fnMQ"
)
_JWKS = (
    f'{{"keys":[{{"kty":"RSA","e":"AQAB","kid":"a","n":"{_MODULUS}"}}]}}',
    '{"keys":[]}',
    "{}",
    '{"keys":[{"kty":"EC"}]}',
    "[]",
    '{"keys":[{"kty":"oct","k":"YQ"}]}',
    '{"keys":[{"kty":"RSA","e":"AQAB","n":"!"}]}',
)
_HASHES = ("0" * 64, "ab:" * 31 + "ab", "A" * 43 + "=", "z" * 64, "ab" * 31)
_CODES = (200, 301, 302, 303, 307, 308, 404, 500, 503)

FIELDS: Mapping[str, Sequence[Any]] = {
    "hosts": _DOMAINS,
    "IstioEgressListener.hosts": (
        "*/*",
        "./*",
        "shop/*",
        "other/ratings.other.svc.cluster.local",
        "~/*",
        "*/*.test",
        "shop/EVIL.test",
    ),
    "Operation.hosts": (*_DOMAINS, "evil.test:80", "evil.*"),
    "Operation.notHosts": _DOMAINS,
    "Server.hosts": (*_DOMAINS, "shop/evil.test", "*/*.test", "./reviews.shop.svc.cluster.local", "other/*"),
    "host": HOSTS,
    "DestinationRule.host": (*HOSTS, "*.test", "*.shop.svc.cluster.local", "reviews", "*"),
    "TcpHealthCheckConfig.host": HOSTS,
    "sniHosts": _DOMAINS,
    "sni": HOSTS,
    "targetHost": HOSTS,
    "subset": ("v1", "v2", "v3"),
    "Subset.name": ("v1", "v2", "v3"),
    "gateways": ("mesh", "shop/edge", "edge", "shop/g1", "other/g2"),
    "exportTo": _NAMESPACES,
    "sourceNamespace": ("shop", "other"),
    "namespaces": ("shop", "other", "*", "sh*"),
    "notNamespaces": ("shop", "other"),
    "serviceAccounts": ("web", "shop/web", "other/default", "*"),
    "number": _PORTS,
    "port": _PORTS,
    "targetPort": _PORTS,
    "portNumber": _PORTS,
    "destinationPort": _PORTS,
    "ports": ("80", "443", "9080", "65535", "0"),
    "notPorts": ("80", "65536"),
    "protocol": _PROTOCOLS,
    "TrafficPolicyTunnelSettings.protocol": ("CONNECT", "POST"),
    "scheme": ("http", "https"),
    "Port.name": ("http", "https", "tcp", "tls", "grpc"),
    "ServicePort.name": ("http", "https", "tcp", "tls", "grpc"),
    "SidecarPort.name": ("http", "https", "tcp", "tls", "grpc"),
    "address": (
        "127.0.7.1",
        "127.0.7.2",
        "fd00::1",
        "ext.example.test",
        "127.0.1.1",
        "unix:///tmp/door.sock",
        "reviews.shop.svc.cluster.local:9080",
    ),
    "WorkloadEntry.address": (
        "127.0.7.1",
        "127.0.7.2",
        "127.0.1.1",
        "127.0.1.2",
        "fd00::1",
        "ext.example.test",
        "unix:///tmp/door.sock",
    ),
    "addresses": ("10.9.0.1", "10.9.0.2", "240.0.0.1", "fd00::9", "10.9.0.0/24", "10.9.0.1/32", "0.0.0.0"),
    "destinationSubnets": _IPS,
    "sourceSubnet": _IPS,
    "ipBlocks": _IPS,
    "notIpBlocks": _IPS,
    "remoteIpBlocks": _IPS,
    "notRemoteIpBlocks": _IPS,
    "fromCidr": _IPS,
    "bind": ("127.0.7.9", "0.0.0.0", "127.0.0.1", "::1", "::", "10.9.0.1"),
    "defaultEndpoint": (
        "127.0.0.1:8080",
        "0.0.0.0:80",
        "unix:///tmp/door.sock",
        "[::1]:80",
        "127.0.0.1",
        "127.0.1.1:70000",
    ),
    "regex": _REGEXES,
    "RegexRewrite.match": _REGEXES,
    "inclusionRegexps": _REGEXES,
    "rewrite": (r"\1", "/x", r"\0", r"\2\\", "", r"\x", r"\9"),
    "uri": _PATHS,
    "prefixRewrite": _PATHS,
    "path": ("/", "/a", "a"),
    "MeshConfigExtensionProviderEnvoyFileAccessLogProvider.path": ("/dev/stdout", "/dev/stderr", "/dev/null"),
    "accessLogFile": ("/dev/stdout", "/dev/null", ""),
    "pathPrefix": _PATHS,
    "paths": _PATHS,
    "notPaths": _PATHS,
    "methods": ("GET", "POST", "*", "get", "P*"),
    "notMethods": ("GET",),
    "authority": (*HOSTS, "a:80"),
    "allowOrigin": (*HOSTS, "*", "http://evil.test"),
    "allowMethods": ("GET", "POST", "*"),
    "allowHeaders": _HEADERS,
    "exposeHeaders": _HEADERS,
    "remove": _HEADERS,
    "header": _HEADERS,
    "httpHeaderName": _HEADERS,
    "httpQueryParameterName": ("q", "a b", "ä"),
    "HttpHeader.name": _HEADERS,
    "JwtHeader.name": _HEADERS,
    "TracingRequestHeader.name": _HEADERS,
    "MeshConfigExtensionProviderHttpHeader.name": _HEADERS,
    "outputPayloadToHeader": _HEADERS,
    "claim": ("sub", "a.b", "iss"),
    "fromParams": ("token", "a b"),
    "fromCookies": ("token", "a=b"),
    "LoadBalancerSettingsConsistentHashLbHttpCookie.name": ("user", "a b", "a;b"),
    "retryOn": (
        "5xx",
        "gateway-error,connect-failure",
        "503",
        "retriable-status-codes,503",
        "5xx,,reset",
        "unknown",
        "unavailable,cancelled",
    ),
    "grpcStatus": ("UNAVAILABLE", "14", "ABORTED", "unavailable"),
    "http2Error": ("PROTOCOL_ERROR",),
    "httpStatus": _CODES,
    "status": _CODES,
    "redirectCode": _CODES,
    "HttpBody.string": ("", "hello", "x" * 4096, "x" * 4097, "{}"),
    "weight": (0, 1, 10, 50, 100),
    "percent": (0, 1, 50, 100),
    "mirrorPercent": (0, 1, 50, 100),
    "key": _CONDITIONS,
    "Condition.values": ("a", "a*", "*b", "*", "10.0.0.0/8", "80", "evil.test", "a@b"),
    "Condition.notValues": ("a", "a*", "*b", "10.0.0.0/8", "443"),
    "principals": _IDENTITIES,
    "notPrincipals": _IDENTITIES,
    "requestPrincipals": ("iss/sub", "*", "iss/*", "*/sub"),
    "notRequestPrincipals": ("iss/sub", "*"),
    "subjectAltNames": (*_IDENTITIES, *HOSTS),
    "issuer": ("iss", "https://issuer.test"),
    "jwksUri": ("https://issuer.test/keys", "http://ext.example.test/keys"),
    "jwks": _JWKS,
    "credentialName": ("shop-cert", "absent", "kubernetes://shop-cert"),
    "credentialNames": ("shop-cert", "absent"),
    "caCertCredentialName": ("shop-cert",),
    "serverCertificate": ("/etc/certs/tls.crt",),
    "clientCertificate": ("/etc/certs/tls.crt",),
    "privateKey": ("/etc/certs/tls.key",),
    "caCertificates": ("/etc/certs/ca.crt", "system"),
    "caCrl": ("/etc/certs/crl.pem",),
    "cipherSuites": _CIPHERS,
    "ecdhCurves": ("P-256", "X25519", "P-521", "bogus", "X25519:P-256"),
    "verifyCertificateSpki": _HASHES,
    "verifyCertificateHash": _HASHES,
    "locality": _LOCALITIES,
    "from": _LOCALITIES,
    "to": _LOCALITIES,
    "failoverPriority": ("region", "zone", "topology.kubernetes.io/region", "version=v1", "version"),
    "registryServiceName": HOSTS,
    "fromRegistry": ("Kubernetes", "a"),
    "network": ("", "net1", "net2"),
    "serviceAccount": ("web", "default", ""),
    "expression": _EXPRESSIONS,
    "ProviderRef.name": ("p1", "p2", "envoy", "prometheus"),
    "MeshConfigExtensionProvider.name": ("p1", "p2", "envoy"),
    "AuthorizationPolicyExtensionProvider.name": ("p1", "p2"),
    "tracing": ("p1", "p2"),
    "metrics": ("p1", "prometheus"),
    "accessLogging": ("p1", "p2", "envoy"),
    "service": (*HOSTS, "shop/reviews.shop.svc.cluster.local"),
    "accessLogFormat": _FORMATS,
    "text": _FORMATS,
    "TracingFormatter.value": _FORMATS,
    "logName": ("log", "a b"),
    "Delegate.name": ("d1", "d2"),
    "Delegate.namespace": ("shop", "other"),
    "PolicyTargetReference.group": ("gateway.networking.k8s.io", "", "networking.istio.io"),
    "PolicyTargetReference.kind": ("Gateway", "ServiceEntry", "Service"),
    "PolicyTargetReference.name": ("edge", "reviews"),
    "PolicyTargetReference.namespace": ("",),
    "outlierDetectionHttpErrorCodes": (500, 503, 404),
    "proxyVersion": (*_REGEXES, r"^1\.2.*"),
    "rootNamespace": ("istio-system", "shop"),
    "trustDomain": ("cluster.local",),
    "proxyListenPort": (15001,),
    "proxyInboundListenPort": (15006,),
    "configSources": (),
    "statusOnError": ("403", "503", "x"),
    "envName": ("PATH", "NOT SET"),
}
"""What people write, by field, or by message and field. An empty list: the field stays unset."""

MAPS: Mapping[str, tuple[Sequence[str], Sequence[Any]]] = {
    "headers": (_HEADERS, ()),
    "withoutHeaders": (_HEADERS, ()),
    "queryParams": (("q", "a b"), ()),
    "set": (_HEADERS, ("a", *_FORMATS)),
    "add": (_HEADERS, ("a", *_FORMATS)),
    "includeAdditionalHeadersInCheck": (_HEADERS, ("a", *_FORMATS)),
    "labels": (("app", "version", "istio"), ("web", "v1", "v2", "edge", "reviews")),
    "matchLabels": (("app", "version", "istio"), ("web", "v1", "edge")),
    "sourceLabels": (("app", "version"), ("web", "v1")),
    "selector": (("istio",), ("edge",)),
    "ports": (("http", "https", "tcp", "grpc"), _PORTS),
    "portLevelMtls": (tuple(map(str, _PORTS)), ()),
    "to": (_LOCALITIES, (1, 50, 100)),
    "tagOverrides": (("a", "request_protocol", "x.y"), ()),
    "customTags": (("a", "", "x.y", "%"), ()),
    "networks": (("net1", "net2"), ()),
    "proxyMetadata": (("A", "ISTIO_META_X"), ("a", "true")),
}
"""Keys and values of maps, by field."""

_SCALARS: Mapping[str, tuple[Sequence[Any], Sequence[Any]]] = {
    "string": (_TEXTS, _NASTY),
    "bytes": (("aGVsbG8=",), ("", "eA==", "eA" * 4000)),
    "bool": ((True, False), ()),
    "int32": (_INTEGERS, (*_NASTY_INTEGERS, -(2**31))),
    "uint32": (_INTEGERS, _NASTY_INTEGERS),
    "int64": (_INTEGERS, (*_NASTY_INTEGERS, *_NASTY_LONGS)),
    "uint64": (_INTEGERS, (*_NASTY_INTEGERS, *_NASTY_LONGS)),
    "double": (_NUMBERS, _NASTY_NUMBERS),
    "float": (_NUMBERS, _NASTY_NUMBERS),
    "duration": (_DURATIONS, _NASTY_DURATIONS),
}


class Values:
    """A source of values. `nasty` is the share of those that nobody should write."""

    def __init__(self, pick: random.Random, nasty: float = 0.0) -> None:
        self.pick = pick
        self.nasty = nasty

    def chance(self, share: float) -> bool:
        return self.pick.random() < share

    def scalar(self, kind: str, message: str, field: str) -> Any:
        """A value of a field: `kind` is its type as descriptors name it, or `duration`."""
        common, nasty = _SCALARS.get(kind, _SCALARS["int64"])
        common = self.known(message, field) or common
        if not self.chance(self.nasty):
            return self.pick.choice(common)
        if kind == "string":
            return self._nasty_text(field, str(self.pick.choice(common)))
        return self.pick.choice(nasty or common)

    def known(self, message: str, field: str) -> Sequence[Any]:
        """What people write into a field; empty where that is anything of its type."""
        return FIELDS.get(f"{message}.{field}", FIELDS.get(field, ()))

    def _nasty_text(self, field: str, text: str) -> str:
        if field in ("path", "accessLogFile"):
            return self.pick.choice(("", "/nonexistent/door", "\x00"))  # Envoy creates the files that it is told
        if field in ("regex", "match", "proxyVersion", "inclusionRegexps") and self.chance(0.7):
            return self.pick.choice(_NASTY_REGEXES)
        change: Callable[[str], str] = self.pick.choice(_CHANGES)
        return self.pick.choice(_NASTY) if self.chance(0.5) else change(text)

    def nasty_key(self, key: str) -> str:
        """A key of a map, now and then one that nobody should write."""
        return self._nasty_text("", key) if self.chance(self.nasty) else key


_CHANGES: tuple[Callable[[str], str], ...] = (
    str.upper,
    str.swapcase,
    lambda text: text + ".",
    lambda text: text + " ",
    lambda text: " " + text,
    lambda text: "*" + text,
    lambda text: text + "*",
    lambda text: text + "%",
    lambda text: f"%{text}%",
    lambda text: text + "\n",
    lambda text: text + "\x00",
    lambda text: text + ":80",
    lambda text: (text + ".") * 40,
    lambda text: text[:1],
    lambda text: text[::-1],
    lambda text: text.replace(".", ".."),
    lambda text: text + "\\",
    lambda text: text + "ä",
    lambda text: text.join(string.punctuation[:6]),
)
