"""The credentials and the endpoint of AWS, found as every tool of AWS finds them, by botocore.

Credentials come from the environment, a web identity (EKS), shared files with their roles, processes and SSO, a
container's endpoint, or the metadata of the machine (IMDSv2), in this order, and are renewed before they end. botocore
blocks, so this runs in a thread. Requests to the CA are ours (docs/decisions/054).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import trio

from mesh_pilot.identity.signers.aws_pca.settings import SERVICE, CaArn
from mesh_pilot.identity.signers.remote import CaError
from mesh_pilot.identity.signers.wire import one_line

if TYPE_CHECKING:
    from botocore.session import Session

RESOLVE_SECONDS = 12.0
"""The time for finding or renewing credentials: less than a request may take in all."""

MOST_THREADS = 4
"""Threads that may hang at a service that says nothing; then no more are started."""

_SUFFIXES = {"aws-cn": "amazonaws.com.cn"}
"""The domain of endpoints, by partition."""


@attrs.frozen
class AwsKeys:
    """Credentials for a request now."""

    access_key: str
    secret_key: str = attrs.field(repr=False)
    token: str | None = attrs.field(repr=False)


class AwsAccount:
    """The account of this process at AWS. State: botocore's session, whose credentials renew themselves."""

    def __init__(self, place: str, arn: CaArn) -> None:
        """``place`` begins the text of errors."""
        self._place = place
        self._arn = arn
        self._session: Session | None = None
        self._turn = trio.Lock()
        self._threads = trio.CapacityLimiter(MOST_THREADS)

    def __repr__(self) -> str:
        return f"<AwsAccount {'found' if self._session is not None else 'not looked for'}>"

    def endpoint(self) -> str:
        """The URL of the API: that of ``AWS_ENDPOINT_URL_ACM_PCA`` or a profile, else the region's. Raises CaError."""
        from botocore.configprovider import ConfiguredEndpointProvider

        session = self._opened()
        named = ConfiguredEndpointProvider(session.full_config, session.get_scoped_config(), SERVICE, os.environ)
        if session.get_config_variable("ignore_configured_endpoint_urls") is not True and (found := named.provide()):
            return str(found).rstrip("/")
        fips = "-fips" if session.get_config_variable("use_fips_endpoint") else ""
        return f"https://{SERVICE}{fips}.{self._arn.region}.{_SUFFIXES.get(self._arn.partition, 'amazonaws.com')}"

    def trusted(self) -> Path | None:
        """The file of roots of ``AWS_CA_BUNDLE`` or a profile; None: the system's. Raises CaError."""
        found = self._opened().get_config_variable("ca_bundle")
        return Path(found) if found else None

    async def keys(self) -> AwsKeys:
        """The credentials for a request now. Raises CaError."""
        async with self._turn:
            found = None
            with trio.move_on_after(RESOLVE_SECONDS):
                found = await trio.to_thread.run_sync(self._resolved, abandon_on_cancel=True, limiter=self._threads)
        if found is None:
            advice = "is the metadata service, or the token service, within reach?"
            text = f"{self._place}: there are no AWS credentials after {RESOLVE_SECONDS:g} s; {advice}"
            raise CaError("credential_file", text, passes=True)
        return found

    def forget(self) -> None:
        """Look for credentials again before the next request: AWS does not take these."""
        self._session = None

    def _opened(self) -> Session:
        """The session. Raises CaError."""
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session

        if self._session is None:
            try:
                session = Session()
                if session.get_config_variable("region") is None:  # where a token service is asked
                    session.set_config_variable("region", self._arn.region)
            except (BotoCoreError, OSError, ValueError) as error:
                raise self._trouble(error) from None
            self._session = session
        return self._session

    def _resolved(self) -> AwsKeys:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            credentials: Any = self._opened().get_credentials()
            keys = credentials.get_frozen_credentials() if credentials is not None else None
        except (BotoCoreError, ClientError, OSError, ValueError) as error:
            raise self._trouble(error) from None
        if keys is None or not keys.access_key or not keys.secret_key:
            self._session = None  # they may come: a role is given to a machine that runs
            raise CaError(
                "credential_file",
                f"{self._place}: there are no AWS credentials; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or give the machine, the task or the service account a role",
            )
        return AwsKeys(keys.access_key, keys.secret_key, keys.token)

    def _trouble(self, error: Exception) -> CaError:
        self._session = None
        text = f"{self._place}: there are no AWS credentials: {one_line(str(error))}; correct what it names"
        return CaError("credential_file", text, passes=True)
