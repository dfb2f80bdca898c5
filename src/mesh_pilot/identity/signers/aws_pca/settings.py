"""The settings of a private CA of AWS that signs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec

import attrs

from mesh_pilot.identity.signers.settings import SignerSettings, setting
from mesh_pilot.model.config import Problem

SERVICE = "acm-pca"

DEFAULT_TEMPLATE = "BlankEndEntityCertificate_APIPassthrough/V1"
"""Names and usages are those of the request. RAM shares this template with other accounts, too."""

EXAMPLE_ARN = "arn:aws:acm-pca:eu-west-1:111122223333:certificate-authority/12345678-1234-1234-1234-123456789012"

_ARN = re.compile(r"arn:(aws[a-z-]*):acm-pca:([a-z0-9-]+):[0-9]{12}:certificate-authority/[0-9a-f-]+")
_TEMPLATE = re.compile(r"(?:Blank)?EndEntityCertificate(?:_(API|CSR|APICSR)Passthrough)?/V[0-9]+")


@attrs.frozen
class CaArn:
    """The parts of a CA's ARN that say where it is."""

    partition: str
    region: str


@attrs.frozen(kw_only=True)
class AwsPcaSettings(SignerSettings):
    """A CA. Who we are to AWS, and where its API is, is found where all tools of AWS look for it."""

    arn: str = setting("certificateAuthorityArn")
    template: str = setting("template", DEFAULT_TEMPLATE)
    """A name, such as ``EndEntityCertificate_APIPassthrough/V1``."""

    @property
    def ca(self) -> CaArn:
        """Where the CA is."""
        found = _ARN.fullmatch(self.arn)
        assert found is not None, "a problem was not heeded"
        return CaArn(found[1], found[2])

    @property
    def template_arn(self) -> str:
        """The template, as the API names it."""
        return f"arn:{self.ca.partition}:{SERVICE}:::template/{self.template}"

    @property
    def passes_api(self) -> bool:
        """True if certificates have the names that are sent next to the CSR; False: those in it."""
        found = _TEMPLATE.fullmatch(self.template)
        return found is not None and "API" in (found[1] or "")

    def problems(self) -> Iterator[Problem]:
        """See ``SignerSettings``."""
        yield from super().problems()
        if find_spec("botocore") is None:
            yield Problem("kind", "awsPrivateCA needs botocore: pip install 'mesh-pilot[aws]'")
        if _ARN.fullmatch(self.arn) is None:
            reason = f"{self.arn!r} is not the ARN of a private CA, such as {EXAMPLE_ARN}"
            yield Problem("certificateAuthorityArn", reason)
        if _TEMPLATE.fullmatch(self.template) is None:
            reason = f"{self.template!r} is not a template of certificates for end entities, such as {DEFAULT_TEMPLATE}"
            yield Problem("template", reason)
        elif self.template.startswith("Blank") and not self.passes_api:
            # The extended key usages would have to be in the CSR, and no agent puts them there.
            reason = f"{self.template} takes usages from CSRs, which have none: use {DEFAULT_TEMPLATE}"
            yield Problem("template", reason)
