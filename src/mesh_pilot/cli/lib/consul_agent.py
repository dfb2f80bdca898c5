"""The flags about agents of Consul, and about the CA that replicas share there: ``mesh-pilot ca`` has them, too."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from mesh_pilot.model.flags import flag

if TYPE_CHECKING:
    from mesh_pilot.consul.client.settings import Agent
    from mesh_pilot.consul.identity.ca_store import ConsulStoreSettings

_flag = partial(flag, section="Consul")
_certificates = partial(flag, section="Certificates")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ConsulAgentFlags:
    """The agents that are asked. Consul's own variables count where a flag, or its variable, does not say otherwise."""

    consul_server_url: tuple[str, ...] = _flag(
        "--consul-server-url",
        default=(),
        repeats=True,
        common=True,
        help="A Consul agent: http(s)://host:port, unix:///path; repeatable.",
        doc="A [Consul](consul.md) agent: `http://host:8500`, `https://host:8501` or `unix:///path`; repeatable, one"
        " for each datacenter.",
    )
    consul_datacenter: tuple[str, ...] = _flag(
        "--consul-datacenter",
        default=(),
        repeats=True,
        help="Datacenter to read.  [default: the agent's own]",
        doc="Datacenter to read; repeatable, the first is the mesh's own.",
    )
    consul_token: str = _flag(
        "--consul-token",
        default="",
        secret="--consul-token-file",
        help="ACL token; better in a file or the environment.",
    )
    consul_token_file: Path | None = _flag(
        "--consul-token-file", common=True, help="File with the ACL token, read again when it changes."
    )
    consul_ca_file: Path | None = _flag("--consul-ca-file", help="PEM file of the CA of the agent's certificate.")
    consul_client_cert: Path | None = _flag(
        "--consul-client-cert", help="PEM file of our certificate towards the agent."
    )
    consul_client_key: Path | None = _flag("--consul-client-key", help="PEM file of its key.")
    consul_tls_server_name: str = _flag(
        "--consul-tls-server-name", default="", help="Name in the agent's certificate, if not that of the URL."
    )

    def agent(self, url: str, environment: Mapping[str, str]) -> Agent:
        """The agent at a URL. Raises UsageError."""
        from mesh_pilot.consul.client.settings import ConsulAddressError, Tls
        from mesh_pilot.consul.source import Agent

        def path(given: Path | None, variable: str) -> Path | None:
            named = given or environment.get(variable)
            return Path(named) if named else None

        token, token_file = self.consul_token, self.consul_token_file
        if not token and not token_file:
            token = environment.get("CONSUL_HTTP_TOKEN", "")
            token_file = path(None, "CONSUL_HTTP_TOKEN_FILE")
        tls = Tls(
            ca_file=path(self.consul_ca_file, "CONSUL_CACERT"),
            ca_path=path(None, "CONSUL_CAPATH"),
            certificate=path(self.consul_client_cert, "CONSUL_CLIENT_CERT"),
            key=path(self.consul_client_key, "CONSUL_CLIENT_KEY"),
            server_name=self.consul_tls_server_name or environment.get("CONSUL_TLS_SERVER_NAME", ""),
            verify=environment.get("CONSUL_HTTP_SSL_VERIFY", "true").lower() not in ("false", "0"),
        )
        agent = Agent(
            address=url,
            token=token,
            token_file=token_file,
            basic_auth=environment.get("CONSUL_HTTP_AUTH", ""),
            tls=tls,
            use_tls=environment.get("CONSUL_HTTP_SSL", "").lower() in ("true", "1"),
        )
        try:
            agent.base_url  # noqa: B018  it checks the address
        except ConsulAddressError as error:
            raise click.UsageError(f"--consul-server-url: {error}") from None
        return agent

    def agents(self, environment: Mapping[str, str]) -> list[tuple[str, str]]:
        """URLs and datacenters, the mesh's own first; empty if no agent is named. Raises UsageError."""
        urls = list(self.consul_server_url) or list(filter(None, [environment.get("CONSUL_HTTP_ADDR", "")]))
        datacenters = self.consul_datacenter
        if not urls and datacenters:
            raise click.UsageError("--consul-datacenter needs an agent to ask: --consul-server-url")
        if len(urls) == len(datacenters):
            return list(zip(urls, datacenters, strict=True))
        if len(urls) > 1 and datacenters:
            raise click.UsageError(
                f"{len(urls)} --consul-server-url with {len(datacenters)} --consul-datacenter: give one datacenter for "
                "each agent, or none, or one agent for all datacenters"
            )
        return [(url, datacenter) for url in urls for datacenter in datacenters or ("",)]

    def first(self, environment: Mapping[str, str], needed_by: str) -> tuple[Agent, str]:
        """The agent and the datacenter of the mesh's own. Raises UsageError."""
        for url, datacenter in self.agents(environment):
            return self.agent(url, environment), datacenter
        raise click.UsageError(f"{needed_by} needs an agent to ask: --consul-server-url")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CaStoreFlags:
    """A CA that replicas share in Consul's KV store."""

    ca_consul_key: str = _certificates(
        "--ca-consul-key",
        default="",
        help="Key of Consul's KV store, at the first agent, that replicas share the CA in.",
        doc="Key of Consul's KV store, at the first agent, that"
        " [replicas share the CA in](certificates.md#a-ca-that-replicas-share-in-consul).",
    )
    ca_consul_token_file: Path | None = _certificates(
        "--ca-consul-token-file", help="File with the ACL token for it.  [default: the agent's]"
    )
    ca_key_encryption_file: Path | None = _certificates(
        "--ca-key-encryption-file", help="File with the key that encrypts the CA there."
    )
    ca_key_plaintext: bool = _certificates(
        "--ca-key-plaintext", default=False, help="Put the CA's PRIVATE KEY there without encryption."
    )

    def settings(self, agent: Agent, datacenter: str) -> ConsulStoreSettings:
        """The store at an agent. Raises UsageError."""
        from mesh_pilot.consul.identity.ca_store import ConsulStoreSettings

        if self.ca_consul_token_file is not None:
            agent = attrs.evolve(agent, token="", token_file=self.ca_consul_token_file)
        settings = ConsulStoreSettings(
            key=self.ca_consul_key,
            agent=agent,
            datacenter=datacenter,
            encryption_file=self.ca_key_encryption_file,
            allow_plaintext=self.ca_key_plaintext,
        )
        if problem := settings.problem():
            raise click.UsageError(f"--ca-consul-key: {problem} (--ca-key-encryption-file)")
        return settings
