"""AWS Private CA as the signer: signatures, templates, IAM, quotas, and what every kind of CA does."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import rsa
from trio.testing import MockClock

from mesh_pilot.app.settings import StartError
from mesh_pilot.app.signers import named_ca
from mesh_pilot.identity.signers.aws_pca.ca import BEGINS_EARLY, AwsPca
from mesh_pilot.identity.signers.aws_pca.settings import AwsPcaSettings
from mesh_pilot.identity.signers.remote import MOST_AT_ONCE, REREAD_SECONDS, RETRY_SECONDS, CaError
from mesh_pilot.identity.signers.requests import new_request
from mesh_pilot.identity.signers.signing import SigningError, SigningRequest
from mesh_pilot.model.spiffe import Identity
from tests.identity.signers.conformance import DAY, WEB, AskedCa, SignerConformance, Story
from tests.identity.signers.fake_authority import NOW, Root
from tests.support.aws_accounts import STS_ROLE, MetadataDouble, TokenServiceDouble
from tests.support.aws_pca_double import ARN, KEY_ID, SECRET_KEY, AwsPcaDouble, serving
from tests.support.aws_signature import Secret

SETTINGS = AwsPcaSettings(arn=ARN)
ISSUE = "IssueCertificate"
CA = f"certificateAuthorityArn: {ARN}"


@pytest.fixture(autouse=True)
def environment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment of an operator who has set two variables, and nothing of this machine's."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    if "autojump_clock" in request.fixturenames:  # that clock does not wait for threads
        monkeypatch.setattr("trio.to_thread.run_sync", _at_once)


async def _at_once(function: Callable[[], Any], **_: object) -> Any:
    await trio.lowlevel.checkpoint()
    return function()


def story(settings: AwsPcaSettings = SETTINGS) -> tuple[Story, AwsPcaDouble]:
    double = AwsPcaDouble()
    ca = AwsPca(settings, transport=double.transport(), now=lambda: NOW)
    return Story(AskedCa(ca, double, ISSUE, SECRET_KEY)), double


class TestAwsPca(SignerConformance):
    @pytest.fixture
    def asked(self) -> AskedCa:
        return story()[0].asked

    async def test_a_root_that_the_ca_has_since_is_read_when_it_signs(
        self, asked: AskedCa, autojump_clock: MockClock
    ) -> None:
        """A CA has one certificate: what it had before stays trusted, as certificates under it are in force."""
        it = Story(asked)
        await it.sign()
        await trio.sleep(RETRY_SECONDS + 1)
        asked.authority.issuers = [asked.authority.issuers[0], Root("next root")]
        await it.sign()
        assert set(it.trust.own().roots) == {root.pem for root in asked.authority.issuers}

    async def test_a_csr_without_its_names_is_refused_if_the_ca_takes_them_from_there(
        self, asked: AskedCa, autojump_clock: MockClock
    ) -> None:
        """The names come with the request, and still AWS wants one in the CSR."""
        it = Story(asked)
        await it.sign(csr=new_request(it.key, dns_names=["anything.example.com"]))
        with pytest.raises(CaError, match="without a name: name exactly URI spiffe") as raised:
            await it.sign(csr=new_request(it.key))
        assert raised.value.reason == "refused"
        assert asked.count == 1

    async def test_roots_that_change_at_the_ca_are_pushed(self, asked: AskedCa, autojump_clock: MockClock) -> None:
        it = Story(asked)
        pushed: list[int] = []
        it.trust.on_change(lambda: pushed.append(len(it.trust.own().roots)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.signer.run)
            await trio.sleep(1)
            asked.authority.issuers = [Root("next root")]
            await trio.sleep(2 * REREAD_SECONDS + 1)
            nursery.cancel_scope.cancel()
        assert pushed == [1, 2]


# -- what is asked for


async def test_names_usages_and_times_are_those_of_the_request(autojump_clock: MockClock) -> None:
    it, double = story()
    signed = await it.sign(lifetime=timedelta(hours=2))
    assert (signed.not_before, signed.not_after) == (NOW - BEGINS_EARLY, NOW + timedelta(hours=2))
    (body,) = [body for body in double.bodies if "Csr" in body]
    assert body["TemplateArn"] == "arn:aws:acm-pca:::template/BlankEndEntityCertificate_APIPassthrough/V1"
    assert body["SigningAlgorithm"] == "SHA256WITHECDSA"
    assert len(body["IdempotencyToken"]) <= 36


@pytest.mark.parametrize(
    "template",
    ["EndEntityCertificate_APIPassthrough/V1", "EndEntityCertificate_CSRPassthrough/V1", "EndEntityCertificate/V1"],
)
async def test_other_templates_for_end_entities_do_as_well(template: str, autojump_clock: MockClock) -> None:
    it, _ = story(AwsPcaSettings(arn=ARN, template=template))
    assert it.asked.ca.names_from_csr is ("API" not in template)
    await it.sign()


async def test_without_the_names_of_the_api_a_csr_has_to_name_its_identity(autojump_clock: MockClock) -> None:
    it, double = story(AwsPcaSettings(arn=ARN, template="EndEntityCertificate_CSRPassthrough/V1"))
    other = Identity("cluster.local", "shop", "other")
    with pytest.raises(SigningError, match=r"name exactly URI spiffe://cluster\.local/ns/shop/sa/web in it"):
        await it.sign(csr=new_request(it.key, other))
    assert double.asked == []


async def test_a_ca_with_an_rsa_key_signs_by_it(autojump_clock: MockClock) -> None:
    it, double = story()
    double.issuers = [RsaRoot("rsa root")]
    await it.sign()
    (algorithm,) = [body["SigningAlgorithm"] for body in double.bodies if "Csr" in body]
    assert algorithm == "SHA256WITHRSA"


async def test_a_lifetime_is_cut_to_what_the_ca_can_give(autojump_clock: MockClock) -> None:
    it, double = story()
    double.usage_mode = "SHORT_LIVED_CERTIFICATE"
    signed = await it.sign(lifetime=timedelta(days=30))
    assert timedelta(days=6) < signed.not_after - NOW < timedelta(days=7)
    double.usage_mode, double.issuers = "GENERAL_PURPOSE", [Root("mesh root")]
    other, second = story()
    second.ends = other.authority.issuers[0].certificate.not_valid_after_utc
    signed = await other.sign(lifetime=timedelta(days=9000))
    assert signed.not_after == second.ends


async def test_a_spiffe_id_that_is_too_long_for_the_api_is_refused_here(autojump_clock: MockClock) -> None:
    it, double = story()
    long = Identity("cluster.local", "shop", "w" * 250)
    with pytest.raises(CaError, match="names of 253 characters at most"):
        await it.sign(identity=long, csr=new_request(it.key, long))
    assert ISSUE not in double.asked


# -- waiting, and what fails


async def test_a_certificate_is_fetched_as_soon_as_it_is_issued(autojump_clock: MockClock) -> None:
    it, double = story()
    double.polls = 3
    await it.sign()
    assert double.asked.count("GetCertificate") == 4
    double.polls = 10_000
    it.key = type(it)(it.asked).key
    with pytest.raises(CaError, match="not there 20 s after it was asked for"):
        await it.sign()
    assert double.asked.count(ISSUE) == 3, "what is tried again is the same request"
    assert len(double.issued) == 2


async def test_what_is_tried_again_is_signed_once(autojump_clock: MockClock) -> None:
    it, double = story()
    csr = new_request(it.key, WEB)
    await it.sign(csr=csr)
    await it.sign(csr=csr)
    assert double.asked.count(ISSUE) == 2
    assert len(double.issued) == 1
    await it.sign(csr=csr, lifetime=2 * DAY)
    assert len(double.issued) == 2, "another request"


async def test_a_failure_of_aws_passes(autojump_clock: MockClock) -> None:
    it, double = story()
    await it.sign()
    double.broken = 1
    await it.sign()
    double.broken = 50
    with pytest.raises(CaError, match="InternalFailure") as raised:
        await it.sign()
    assert raised.value.reason == "busy"


async def test_a_failure_to_issue_is_told(autojump_clock: MockClock) -> None:
    it, double = story()
    double.fails_to_issue = True
    with pytest.raises(CaError, match=r"GetCertificate: RequestFailedException: .* is in a failed state"):
        await it.sign()


@pytest.mark.parametrize("operation", [ISSUE, "GetCertificate", "GetCertificateAuthorityCertificate"])
async def test_access_denied_names_the_action(operation: str, autojump_clock: MockClock) -> None:
    it, double = story()
    double.allowed.discard(f"acm-pca:{operation}")
    with pytest.raises(CaError, match=rf"; allow acm-pca:{operation} on {ARN} in the IAM policy") as raised:
        await it.sign()
    assert raised.value.reason == "forbidden"
    assert "user/mesh-pilot is not authorized" in str(raised.value)


async def test_a_template_that_the_policy_does_not_allow_is_named(autojump_clock: MockClock) -> None:
    it, double = story()
    double.templates_allowed = {"EndEntityCertificate/V1"}
    with pytest.raises(
        CaError, match=r"a condition on acm-pca:TemplateArn has to allow arn:aws:acm-pca:::template/Blank"
    ):
        await it.sign()


@pytest.mark.parametrize("status", ["DISABLED", "PENDING_CERTIFICATE", "EXPIRED"])
async def test_a_ca_that_is_not_active_is_told_and_its_roots_stay(status: str, autojump_clock: MockClock) -> None:
    it, double = story()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(it.signer.run)
        await trio.sleep(1)
        roots = it.trust.own().roots
        double.status = status
        await trio.sleep(2 * REREAD_SECONDS)
        assert f"is {status}, and signs only if ACTIVE" in it.signer.statistics().trouble
        assert it.trust.own().roots == roots
        with pytest.raises(CaError, match="InvalidStateException") as raised:
            await it.sign()
        assert "enable or renew the CA" in str(raised.value)
        nursery.cancel_scope.cancel()


async def test_another_ca_is_not_found(autojump_clock: MockClock) -> None:
    it, _ = story(AwsPcaSettings(arn=ARN.replace("1234-12345", "1234-99999")))
    with pytest.raises(CaError, match="ResourceNotFoundException") as raised:
        await it.sign()
    assert raised.value.reason == "not_found"


async def test_a_herd_of_agents_is_served_at_the_pace_of_the_quota(autojump_clock: MockClock) -> None:
    """Who waits too long is told, and asks again: in the end all have one, and nothing was paid for twice."""
    agents = 12 * MOST_AT_ONCE
    it, double = story()
    double.issues_per_second = 25
    refusals = 0

    async def agent() -> None:
        nonlocal refusals
        key = type(it)(it.asked).key
        while True:
            try:
                await it.signer.sign(attrs.evolve(template, csr=new_request(key, template.identity)))
                return
            except CaError as error:
                assert error.reason == "busy", error
                refusals += 1
                await trio.sleep(10)

    template = SigningRequest(new_request(it.key, WEB), DAY, WEB)
    async with trio.open_nursery() as nursery:
        for _ in range(agents):
            nursery.start_soon(agent)
    assert len(double.issued) == agents
    assert trio.current_time() < 60
    assert it.signer.statistics().signed == agents


# -- who we are


async def test_signatures_that_aws_does_not_take_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    it, double = story()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.raises(CaError, match="InvalidSignatureException: The request signature we calculated") as raised:
        await it.sign()
    assert raised.value.reason == "forbidden"
    assert str(raised.value).endswith("; renew the AWS credentials")
    it, double = story()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOTHER")
    with pytest.raises(CaError, match="UnrecognizedClientException"):
        await it.sign()
    assert double.asked == ["DescribeCertificateAuthority"], "the same credentials are not tried again"


async def test_credentials_that_were_replaced_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    it, double = story()
    with pytest.raises(CaError, match="there are no AWS credentials; set AWS_PROFILE, or") as raised:
        await it.sign()
    assert raised.value.reason == "credential_file"
    file = tmp_path / ".aws" / "credentials"
    file.parent.mkdir()
    file.write_text(f"[mesh]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET_KEY}\n")
    monkeypatch.setenv("AWS_PROFILE", "mesh")
    await it.sign()
    double.secrets = {"AKIANEXT": Secret("next")}
    file.write_text("[mesh]\naws_access_key_id = AKIANEXT\naws_secret_access_key = next\n")
    await it.sign()
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    double.secrets = {}
    with pytest.raises(CaError, match=r"The config profile \(nobody\) could not be found"):
        await it.sign()


@pytest.mark.process
async def test_a_profile_may_name_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "credentials.sh"
    program.write_text(
        f'#!/bin/sh\necho \'{{"Version": 1, "AccessKeyId": "ASIAPROCESS", "SecretAccessKey": "{SECRET_KEY}", '
        '"SessionToken": "told", "Expiration": "2199-01-01T00:00:00Z"}\'\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    config = tmp_path / ".aws" / "config"
    config.parent.mkdir()
    config.write_text(f"[profile mesh]\ncredential_process = {program}\n")
    monkeypatch.setenv("AWS_PROFILE", "mesh")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    it, double = story()
    double.secrets = {"ASIAPROCESS": Secret(SECRET_KEY, "told")}
    await it.sign()


async def test_a_machine_has_the_role_that_its_metadata_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    metadata = MetadataDouble("ASIAMACHINE", SECRET_KEY, "machine")
    async with serving(metadata) as port:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{port}")
        it, double = story()
        double.secrets = {"ASIAMACHINE": Secret(SECRET_KEY, "machine")}
        await it.sign()
        assert metadata.refused == 0, "IMDSv2, with a token"
        assert metadata.asked[0] == "PUT /latest/api/token"
        count = len(metadata.asked)
        await it.sign()
        assert len(metadata.asked) == count, "credentials are kept until they are about to end"


async def test_a_pod_has_the_role_of_its_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    file = tmp_path / "token"
    file.write_text("a-token-of-kubernetes")
    tokens = TokenServiceDouble({"a-token-of-kubernetes": ("ASIAPOD", SECRET_KEY, "pod")})
    async with serving(tokens) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(file))
        monkeypatch.setenv("AWS_ROLE_ARN", STS_ROLE)
        it, double = story()
        double.secrets = {"ASIAPOD": Secret(SECRET_KEY, "pod")}
        await it.sign()
        file.write_text("a-token-that-nobody-knows")
        other, _ = story()
        with pytest.raises(CaError, match="InvalidIdentityToken") as raised:
            await other.sign()
        assert raised.value.reason == "credential_file"
        assert "nobody-knows" not in str(raised.value)


async def test_a_token_that_has_ended_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "ended")
    it, double = story()
    double.secrets = {KEY_ID: Secret(SECRET_KEY, "ended", is_over=True)}
    with pytest.raises(CaError, match="ExpiredTokenException") as raised:
        await it.sign()
    assert str(raised.value).endswith("; renew the AWS credentials")


async def test_the_endpoint_is_that_of_the_region_unless_the_environment_names_one(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async def asked_at(**variables: str) -> str:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            it, double = story()
            double.is_away = True
            with pytest.raises(CaError) as raised:
                await it.asked.ca.roots()
            return str(raised.value).partition("POST ")[2].partition("/:")[0]

    assert await asked_at() == "https://acm-pca.eu-west-1.amazonaws.com"
    assert await asked_at(AWS_USE_FIPS_ENDPOINT="true") == "https://acm-pca-fips.eu-west-1.amazonaws.com"
    assert await asked_at(AWS_ENDPOINT_URL_ACM_PCA="https://vpce-1.example.com/") == "https://vpce-1.example.com"
    assert await asked_at(AWS_ENDPOINT_URL="https://all.example.com") == "https://all.example.com"
    china = AwsPca(AwsPcaSettings(arn=ARN.replace("aws:", "aws-cn:").replace("eu-west-1", "cn-north-1")))
    assert china._api._account.endpoint() == "https://acm-pca.cn-north-1.amazonaws.com.cn"


# -- settings


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["certificateAuthorityArn: arn:aws:iam::1:user/x"], "is not the ARN of a private CA"),
        ([], "certificateAuthorityArn: is missing"),
        (
            [f"certificateAuthorityArn: {ARN}", "template: RootCACertificate/V1"],
            "is not a template of certificates for end",
        ),
        (
            [f"certificateAuthorityArn: {ARN}", "template: BlankEndEntityCertificate_CSRPassthrough/V1"],
            "takes usages from",
        ),
        ([f"certificateAuthorityArn: {ARN}", "tempalte: x"], "template"),
    ],
)
def test_what_cannot_work_is_refused_with_its_line(lines: list[str], reason: str, tmp_path: Path) -> None:
    file = tmp_path / "signer.yaml"
    file.write_text("\n".join(["kind: awsPrivateCA", *lines]))
    with pytest.raises(StartError, match=reason):
        named_ca(file)


def test_without_botocore_the_settings_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mesh_pilot.identity.signers.aws_pca.settings.find_spec", lambda _: None)
    file = tmp_path / "signer.yaml"
    file.write_text(f"kind: awsPrivateCA\n{CA}\n")
    with pytest.raises(StartError, match=r"needs botocore: pip install 'mesh-pilot\[aws\]'"):
        named_ca(file)


class RsaRoot(Root):
    """A CA with a key of RSA."""

    def __init__(self, name: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "tests.identity.signers.fake_authority.ec.generate_private_key",
                lambda _: rsa.generate_private_key(65537, 2048),
            )
            super().__init__(name)
