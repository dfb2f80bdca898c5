"""The file of issuers: each mistake is named with its place, and keys come from where a rule says, safely."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio.testing

from mesh_pilot.identity.authenticators.issuer_keys import RETRY_SECONDS
from mesh_pilot.identity.authenticators.jwt import JsonWebToken
from mesh_pilot.identity.authenticators.token_issuers import TokenIssuerError, read_issuers
from mesh_pilot.identity.trust.callers import AuthenticatorUnavailable, TrustDomains
from mesh_pilot.kubernetes.identity.foreign_tokens import ForeignTokenSettings, foreign_token_authenticators
from mesh_pilot.kubernetes.identity.token_review import KubernetesTokenSettings
from tests.identity.test_jwt import BARE_RULE, EC, ISSUER, NOW, RSA, WEB, key_set, showing, token
from tests.support.tokens import key_server


def written(folder: Path, *rules: object) -> Path:
    path = folder / "rules.yaml"
    path.write_text(json.dumps(rules))
    return path


def judge_of(path: Path) -> JsonWebToken:
    return JsonWebToken(read_issuers(path), lambda: TrustDomains("cluster.local"), now=lambda: NOW)


def test_a_rule_is_read_with_all_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("""
- issuer: https://accounts.google.com
  audiences: [mesh-pilot]
  jwksUri: https://www.googleapis.com/oauth2/v3/certs
  algorithms: [RS256]
  caFile: ca.pem
  namespace: "{[google][compute_engine][project_id]}"
  serviceAccount: "vm-{sub}"
  claims:
    "[google][compute_engine][zone]": [europe-west1-b]
    email_verified: [true]
""")
    [issuer] = read_issuers(path)
    assert issuer.algorithms == {"RS256"} and issuer.ca_file == tmp_path / "ca.pem"
    assert issuer.namespace is not None and issuer.namespace.path == ("google", "compute_engine", "project_id")
    assert issuer.service_account is not None and issuer.service_account.of({"sub": "1"}) == "vm-1"
    assert issuer.claims == {
        ("google", "compute_engine", "zone"): ("europe-west1-b",),
        ("email_verified",): (True,),
    }


@pytest.mark.parametrize(("rule", "says"), [
    ({}, ".issuer is missing"),
    ({"issuer": ISSUER}, ".audiences is missing"),
    ({**BARE_RULE, "audiences": []}, ".audiences is not a list of strings"),
    ({**BARE_RULE, "fromHeaders": []}, ".fromHeaders is not known; there are issuer, audiences"),
    ({**BARE_RULE, "issuer": 1}, ".issuer is not a string"),
    ({**BARE_RULE, "issuer": "kubernetes/serviceaccount"}, "give jwksUri, jwks or jwksFile"),
    ({**BARE_RULE, "issuer": "http://login.example.com"}, "is not https"),
    ({**BARE_RULE, "jwksUri": "http://login.example.com/keys"}, "is not https"),
    ({**BARE_RULE, "jwks": "{}", "jwksFile": "keys.json"}, "give one of jwksUri, jwks and jwksFile"),
    ({**BARE_RULE, "algorithms": ["HS256"]}, ".algorithms has 'HS256'; permitted are ES256"),
    ({**BARE_RULE, "algorithms": ["none"]}, ".algorithms has 'none'"),
    ({**BARE_RULE, "namespace": "shop"}, "namespace and serviceAccount go together"),
    ({**BARE_RULE, "namespace": "{a}-{b}", "serviceAccount": "web"}, ".namespace is not a name with at most one"),
    ({**BARE_RULE, "namespace": "{[a]b}", "serviceAccount": "web"}, ".namespace has '[a]b'"),
    ({**BARE_RULE, "claims": {"a": "b"}}, ".claims has 'a' without a list"),
    ({**BARE_RULE, "claims": [1]}, ".claims is not an object"),
    ({**BARE_RULE, "allowHttp": "yes"}, ".allowHttp is neither true nor false"),
    ("text", "is not an object"),
])  # fmt: skip
def test_a_mistake_is_named_with_its_place(rule: object, says: str, tmp_path: Path) -> None:
    path = written(tmp_path, {**BARE_RULE, "issuer": "https://other.example"}, rule)
    with pytest.raises(TokenIssuerError) as raised:
        read_issuers(path)
    assert f"{path}: [1]" in str(raised.value) and says in str(raised.value)


@pytest.mark.parametrize(("text", "says"), [
    ("{}", "not a list of issuers"), ("[", "is not YAML"), ("\xff", "is not a list"),
])  # fmt: skip
def test_a_file_without_rules_is_refused(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TokenIssuerError, match=says):
        read_issuers(path)
    with pytest.raises(TokenIssuerError, match="cannot read"):
        read_issuers(tmp_path / "absent.yaml")
    with pytest.raises(TokenIssuerError, match="is there twice"):
        read_issuers(written(tmp_path, BARE_RULE, BARE_RULE))
    with pytest.raises(TokenIssuerError, match="no key that verifies"):
        judge_of(written(tmp_path, {**BARE_RULE, "jwks": '{"keys": []}'}))


async def test_keys_of_a_file_are_read_again_when_one_is_missing(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(key_set(EC))
    judge = judge_of(written(tmp_path, {**BARE_RULE, "jwksFile": "keys.json"}))
    assert await judge.authenticate(showing(token(EC))) == WEB
    keys.write_text(key_set(RSA))
    mock_clock.jump(RETRY_SECONDS)
    assert await judge.authenticate(showing(token(RSA))) == WEB


async def test_keys_are_found_by_the_issuers_own_configuration(tmp_path: Path) -> None:
    async with key_server() as server:
        server.documents["/.well-known/openid-configuration"] = json.dumps({"jwks_uri": f"{server.address}/keys"})
        server.documents["/keys"] = key_set(EC)
        rule = {"issuer": server.address, "audiences": ["mesh"], "allowHttp": True}
        judge = judge_of(written(tmp_path, rule))
        assert await judge.authenticate(showing(token(iss=server.address))) == WEB


async def test_plain_http_is_refused_also_where_a_server_leads_there(tmp_path: Path) -> None:
    """A rule with https is checked when it is read; here it is what the hook of the client sees."""
    async with key_server() as server:
        server.documents["/keys"] = key_set(EC)
        [issuer] = read_issuers(
            written(tmp_path, {**BARE_RULE, "jwksUri": f"{server.address}/keys", "allowHttp": True})
        )
        strict = type(issuer)(issuer=ISSUER, audiences=issuer.audiences, jwks_uri=issuer.jwks_uri)
        judge = JsonWebToken([strict], lambda: TrustDomains("cluster.local"), now=lambda: NOW)
        with pytest.raises(AuthenticatorUnavailable):
            await judge.authenticate(showing(token()))
        lax = JsonWebToken([issuer], lambda: TrustDomains("cluster.local"), now=lambda: NOW)
        assert await lax.authenticate(showing(token())) == WEB


def test_authenticators_are_asked_in_the_order_of_the_chain(tmp_path: Path) -> None:
    def names(settings: ForeignTokenSettings) -> list[str]:
        return [a.name for a in foreign_token_authenticators(settings, lambda: TrustDomains("cluster.local"))]

    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "current-context: a\n"
        "contexts: [{name: a, context: {cluster: c}}]\n"
        "clusters: [{name: c, cluster: {server: 'https://api.example'}}]\n"
    )
    kubernetes = KubernetesTokenSettings(kubeconfig=kubeconfig)
    assert names(ForeignTokenSettings()) == ["jwt", "consul"]
    assert names(ForeignTokenSettings(kubernetes=kubernetes)) == ["jwt", "kubernetes", "consul"]
