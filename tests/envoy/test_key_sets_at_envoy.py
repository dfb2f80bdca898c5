"""Key sets that validation takes, Envoy takes; and the other way round."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from envoy.config.listener.v3 import listener_pb2
from envoy.extensions.filters.http.jwt_authn.v3 import config_pb2 as jwt_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm

from mesh_pilot.istio.rules.key_sets import key_set_reason
from tests.support.envoy_check import complaints

pytestmark = pytest.mark.envoy

Key = dict[str, Any]


def number(value: int) -> str:
    return base64.urlsafe_b64encode(value.to_bytes(value.bit_length() // 8 + 1, "big")).decode().rstrip("=")


RSA: Key = {"kty": "RSA", "n": number(2**2047 + 1), "e": "AQAB"}
EC: Key = {
    "kty": "EC",
    "crv": "P-256",
    "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
    "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
}
OCT: Key = {"kty": "oct", "k": "YWJj"}
OKP: Key = {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}

GOOD = [
    *(RSA, RSA | {"n": number(2**511 + 1)}, RSA | {"n": number(2**16383 + 1)}, RSA | {"e": "Aw"}, RSA | {"alg": 1}),
    *(RSA | {"alg": "PS256"}, RSA | {"n": RSA["n"] + "="}, RSA | {"use": "enc", "kid": 1, "more": 1e300}),
    *(EC, EC | {"alg": "ES256"}, EC | {"crv": ""}, EC | {"x": EC["x"] + "="}),
    *(OCT, OCT | {"alg": "HS384"}, OCT | {"k": "Y Q=="}, OKP, OKP | {"alg": "EdDSA"}),
]
BAD = [
    *(RSA | {"n": number(2**510 + 1)}, RSA | {"n": number(2**2047)}, RSA | {"n": number(2**16384 + 1)}, RSA | {"n": 1}),
    *(RSA | {"e": "AQ"}, RSA | {"e": "BQ"}, RSA | {"e": "AQAD"}, RSA | {"alg": "ES256"}, RSA | {"n": "a+b/"}),
    *(EC | {"y": EC["x"]}, EC | {"crv": "P-384"}, EC | {"crv": "secp256k1"}, EC | {"alg": "ES384"}, EC | {"crv": []}),
    *(OCT | {"k": ""}, OCT | {"k": "YQ="}, OCT | {"alg": "HS"}, OKP | {"crv": "Ed448"}, OKP | {"x": "AAAA"}),
    *({"kty": "rsa"}, {"kty": None}, {}, [], "key", RSA | {"more": float("nan")}, RSA | {"more": 10**310}),
    *(RSA | {"more": "\ud800"},),
]
NO_JSON = [
    *("[]", "{}", '{"keys": {}}', '{"keys": []}', json.dumps(RSA), "\ufeff" + json.dumps({"keys": [RSA]})),
    *(
        json.dumps({"keys": [RSA]})[:-1] + ', "keys": []}',
        '{"keys": [' + "[" * 99 + "]" * 99 + f",{json.dumps(RSA)}]}}",
    ),
]


def listener(key_sets: Iterable[str]) -> bytes:
    """A listener with a provider for each."""
    jwt = jwt_pb2.JwtAuthentication()
    for index, key_set in enumerate(key_sets):
        jwt.providers[str(index)].local_jwks.inline_string = key_set
    manager = hcm.HttpConnectionManager(stat_prefix="x")
    manager.route_config.name = "x"
    manager.http_filters.add(name="jwt").typed_config.Pack(jwt)
    router = manager.http_filters.add(name="router").typed_config
    router.type_url = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
    message = listener_pb2.Listener()
    message.address.socket_address.address = "127.0.0.1"
    message.address.socket_address.port_value = 1
    message.filter_chains.add().filters.add(name="hcm").typed_config.Pack(manager)
    return message.SerializeToString()


def test_envoy_takes_the_key_sets_that_are_let_through(tmp_path: Path) -> None:
    key_sets = [json.dumps({"keys": [key]}) for key in (*GOOD, RSA | {"more": 96 * [[]]})]
    key_sets.append(json.dumps({"keys": [*BAD[:20], EC]}))
    assert [key_set_reason(key_set) for key_set in key_sets] == [""] * len(key_sets)
    assert complaints(tmp_path, [listener(key_sets)]) == ""


@pytest.mark.sweep(1)
@pytest.mark.parametrize("key_set", [*(json.dumps({"keys": [key]}) for key in BAD), *NO_JSON], ids=lambda s: s[-40:])
def test_envoy_refuses_the_key_sets_that_are_refused(key_set: str, tmp_path: Path) -> None:
    assert key_set_reason(key_set)
    assert "invalid local jwks" in complaints(tmp_path, [listener([key_set])])
