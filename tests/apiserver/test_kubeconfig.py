"""Kubeconfigs, read as kubectl reads them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from mesh_pilot.kubernetes.apiserver import Access, KubernetesError, access_of_kubeconfig, load_access
from mesh_pilot.kubernetes.apiserver import kubeconfig as kubeconfig_module

EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": "bin/login"}


def kubeconfig(
    user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None, name: str = "here", **more: Any
) -> str:
    return yaml.safe_dump(
        {
            "current-context": name,
            "contexts": [{"name": name, "context": {"cluster": f"{name}-c", "user": f"{name}-u"}}],
            "clusters": [{"name": f"{name}-c", "cluster": {"server": "https://k:6443", **(cluster or {})}}],
            "users": [{"name": f"{name}-u", "user": user or {}}],
            **more,
        }
    )


def loaded(folder: Path, text: str, context: str = "") -> Access:
    (folder / "config").write_text(text)
    return load_access(folder / "config", context)


def test_files_are_beside_it_and_data_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    user = {
        "client-certificate": "admin.pem",
        "client-key-data": base64.encodebytes(b"KEY").decode(),
        "tokenFile": "token",
        "token": "old",
    }
    access = loaded(tmp_path, kubeconfig(user, {"certificate-authority": "ca.pem", "tls-server-name": "api"}))
    assert (access.server, access.server_name, access.verify) == ("https://k:6443", "api", True)
    assert (access.certificate.path, access.key.read()) == (tmp_path / "admin.pem", b"KEY")
    assert access.authority.path == tmp_path / "ca.pem"
    assert access.token.read() == b"secret\n", "the file has precedence"
    (tmp_path / "token").unlink()
    assert access.token.read() == b"old"
    assert "old" not in repr(access)
    assert "KEY" not in repr(access)


def test_the_rest_of_a_cluster_and_of_a_user(tmp_path: Path) -> None:
    user = {
        "as": "jane",
        "as-uid": "7",
        "as-groups": ["dev", "ops"],
        "as-user-extra": {"acme.com/Scope": ["a", "b"]},
        "username": "u",
        "password": "p",
    }
    cluster = {"proxy-url": "http://proxy:3128", "insecure-skip-tls-verify": True, "disable-compression": True}
    access = loaded(tmp_path, kubeconfig(user, cluster))
    assert (access.proxy, access.verify, access.password) == ("http://proxy:3128", False, "u:p")
    assert access.headers == (
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "dev"),
        ("Impersonate-Group", "ops"),
        ("Impersonate-Extra-acme.com%2FScope", "a"),
        ("Impersonate-Extra-acme.com%2FScope", "b"),
        ("accept-encoding", "identity"),
    )


def test_a_plugin_is_told_of_its_cluster_if_it_wants(tmp_path: Path) -> None:
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    plugin = {**EXEC, "args": ["--a", 1], "env": [{"name": "A", "value": "b"}], "provideClusterInfo": True}
    cluster = {"certificate-authority-data": base64.b64encode(b"CA").decode(), "extensions": [extension]}
    found = loaded(tmp_path, kubeconfig({"exec": plugin}, cluster)).plugin
    assert found is not None
    assert (found.command, found.arguments, found.environment) == (
        str(tmp_path / "bin/login"),
        ("--a", "1"),
        (("A", "b"),),
    )
    assert json.loads(found.request()) == {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "spec": {
            "interactive": False,
            "cluster": {"server": "https://k:6443", "certificate-authority-data": "Q0E=", "config": {"audience": "x"}},
        },
    }
    found = loaded(tmp_path, kubeconfig({"exec": {**EXEC, "command": "login"}})).plugin
    assert found is not None
    assert (found.command, json.loads(found.request())["spec"]) == ("login", {"interactive": False}), "by PATH"


def test_a_context_can_be_named(tmp_path: Path) -> None:
    one, other = yaml.safe_load(kubeconfig(name="one")), yaml.safe_load(kubeconfig({"token": "t"}, name="other"))
    both = {part: one[part] + other[part] for part in ("contexts", "clusters", "users")} | {"current-context": "one"}
    assert not loaded(tmp_path, yaml.safe_dump(both)).token
    assert loaded(tmp_path, yaml.safe_dump(both), "other").token.text == b"t"
    with pytest.raises(KubernetesError, match=r"has no context third; it has one, other$"):
        loaded(tmp_path, yaml.safe_dump(both), "third")


def test_of_several_files_the_first_that_says_something_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    here = {"contexts": [{"name": "here", "context": {"cluster": "here-c", "user": "here-u"}}]}
    user = {"users": [{"name": "here-u", "user": {"tokenFile": "token"}}]}
    (tmp_path / "a" / "config").write_text(yaml.safe_dump({**here, **user, "current-context": "here"}))
    (tmp_path / "b" / "config").write_text(kubeconfig({"token": "no"}, {"certificate-authority": "ca"}))
    paths = [tmp_path / "none", tmp_path / "a" / "config", tmp_path / "b" / "config"]
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, paths)))
    access = load_access(None)
    assert access.token.path == tmp_path / "a" / "token", "paths are of the file that has them"
    assert access.authority.path == tmp_path / "b" / "ca"
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(KubernetesError, match=r"cannot read the kubeconfig .*none"):
        load_access(None)


def test_a_pod_has_its_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfig_module, "POD", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    (tmp_path / "token").write_text("t")
    access = load_access(None)
    assert (access.server, access.token.path) == ("https://[fd00::1]:443", tmp_path / "token")
    assert access.authority.path == tmp_path / "ca.crt"


USERLESS = "{current-context: x, contexts: [{name: x, context: {cluster: c}}], clusters: [{name: c, cluster: {}}]}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty$"),
        ("[1]", "is not a kubeconfig"),
        ("{", "is not YAML: "),
        ("contexts: [{name: a, context: {}}, 7]", "has no current-context; name a context: a$"),
        ("current-context: x", "has no context x; it has none$"),
        (USERLESS, "names no server for the cluster c$"),
        (kubeconfig({"auth-provider": {"name": "gcp"}}), "auth-provider gcp, .*; use an exec plugin"),
        (kubeconfig({"exec": {}}), "exec has apiVersion None; known are client.authentication.k8s.io/v1 and "),
        (kubeconfig({"exec": {**EXEC, "command": ""}}), "exec names no command$"),
        (
            kubeconfig({"exec": {**EXEC, "interactiveMode": "Always"}}),
            "Always, and there is no terminal",
        ),
        (kubeconfig({"exec": {**EXEC, "args": 7}}), "args and env are lists"),
        (kubeconfig({"as-groups": ["a"]}), "without as: name the user"),
        (kubeconfig({"as": "a", "as-groups": "b"}), "as-groups is a list"),
        (kubeconfig({"client-key-data": "!"}), "client-key-data is not base64$"),
        (kubeconfig(cluster={"proxy-url": "ftp://x"}), "proxy-url is not valid; its scheme is one of http, "),
        (kubeconfig(cluster={"proxy-url": "http://me:secret@[::1"}), "proxy-url is not valid; its scheme"),
        (kubeconfig(cluster={"server": "https://k:port"}), "names no server for the cluster here-c$"),
        (kubeconfig(cluster={"server": "https://\1k"}), "names no server for the cluster here-c$"),
        (kubeconfig(cluster={"server": "https://me:secret@k"}), "has a user; put username and password into users$"),
        (kubeconfig(cluster={"tls-server-name": "a\0b"}), "tls-server-name is not a name$"),
        (kubeconfig({"client-key-data": "secret\u00e9"}), "client-key-data is not base64$"),
        (kubeconfig({"token": ["secret"]}), "token is not a string$"),
        ("users:\n  token: secret: x", "is not YAML: line 2, column 16$"),
        ("users: [{user: {token: secret, a: 2020-13-45}}]", "is not YAML: ValueError$"),
    ],
)
def test_one_that_can_not_be_used_is_one_clear_line(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(KubernetesError, match=reason) as error:
        loaded(tmp_path, text)
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)
    assert str(tmp_path / "config") in str(error.value)
    with pytest.raises(KubernetesError, match="No such file"):
        load_access(tmp_path / "nowhere")


def test_one_that_is_no_file_has_absolute_paths() -> None:
    where = "the secret istio-system/west"
    assert access_of_kubeconfig(kubeconfig({"tokenFile": "/t"}), where).token.path == Path("/t")
    with pytest.raises(KubernetesError, match=f"^{where}: tokenFile t is not absolute"):
        access_of_kubeconfig(kubeconfig({"tokenFile": "t"}), where)
    with pytest.raises(KubernetesError, match=f"^{where} is not YAML: "):
        access_of_kubeconfig("{", where)


def test_one_of_somebody_else_may_not_name_commands_or_files() -> None:
    where = "the secret istio-system/west"
    assert access_of_kubeconfig(kubeconfig({"token": "t"}), where, allowed=()).token.text == b"t"
    files = kubeconfig({"tokenFile": "/t", "exec": EXEC}, {"certificate-authority": "/ca"})
    with pytest.raises(KubernetesError, match=f"^{where} has exec, tokenFile, certificateAuthority, which would run"):
        access_of_kubeconfig(files, where, allowed=())
    with pytest.raises(KubernetesError, match=f"^{where} has tokenFile, which"):
        access_of_kubeconfig(files, where, allowed=("exec", "certificateAuthority"))
    assert access_of_kubeconfig(files, where, allowed=("exec", "tokenFile", "certificateAuthority")).plugin
