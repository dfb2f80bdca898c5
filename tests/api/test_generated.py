"""The generated code: it is what the compiler generates, and it speaks protobuf as others do."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import betterproto2
import pytest

from mesh_pilot.api.istio.mcp.v1alpha1 import ResourceSinkBase, ResourceSinkStub, ResourceSourceBase, ResourceSourceStub
from mesh_pilot.api.istio.networking.v1alpha3 import (
    ConnectionPoolSettings,
    HttpMatchRequest,
    HttpRetry,
    HttpRoute,
    LoadBalancerSettings,
    LoadBalancerSettingsSimpleLb,
    OutlierDetection,
    StringMatch,
    TrafficPolicy,
)
from mesh_pilot.api.istio.v1.auth import IstioCertificateServiceBase, IstioCertificateServiceStub
from tests.support.protos import compiled, message_classes, our_class, variants

GENERATOR = Path(__file__).parents[2] / "tools" / "gen_api.py"


@pytest.mark.process
def test_what_is_committed_is_what_the_compiler_generates() -> None:
    if not os.environ.get("CI"):
        for module in ("grpc_tools", "betterproto2_compiler"):
            pytest.importorskip(module, reason="the proto extra is not installed")
    done = subprocess.run([sys.executable, GENERATOR, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_message_reads_and_writes_the_bytes_that_protobuf_does(tmp_path_factory: pytest.TempPathFactory) -> None:
    classes = message_classes(compiled(tmp_path_factory.getbasetemp()))
    assert len(classes) > 270
    for name, theirs in classes.items():
        ours = our_class(name)
        for message in variants(theirs):
            read = ours.parse(message.SerializeToString())
            assert theirs.FromString(bytes(read)) == message, name
            assert ours.parse(bytes(read)) == read, name


@pytest.mark.parametrize(
    ("message", "encoded"),
    [
        (HttpRoute(timeout=timedelta(0)), b"\x32\x00"),
        (HttpRoute(), b""),
        (HttpRetry(retry_remote_localities=False), b"\x22\x00"),
        (HttpMatchRequest(uri=StringMatch(prefix="")), b"\x0a\x02\x12\x00"),
        (HttpMatchRequest(headers={"a": StringMatch()}), b"\x2a\x05\x0a\x01a\x12\x00"),
        (TrafficPolicy(outlier_detection=OutlierDetection()), b"\x1a\x00"),
        (OutlierDetection(consecutive_5xx_errors=0), b"\x3a\x00"),
        (LoadBalancerSettings(simple=LoadBalancerSettingsSimpleLb.UNSPECIFIED), b"\x08\x00"),
        (ConnectionPoolSettings(), b""),
    ],
    ids=repr,
)
def test_a_zero_that_is_written_is_not_absent(message: HttpRoute, encoded: bytes) -> None:
    assert bytes(message) == encoded
    assert type(message).parse(encoded) == message


def test_an_empty_message_differs_from_none() -> None:
    assert TrafficPolicy(outlier_detection=OutlierDetection()) != TrafficPolicy()
    assert HttpRoute(timeout=timedelta(0)) != HttpRoute()


def test_services_have_server_bases_and_client_stubs() -> None:
    for base, stub, path in (
        (IstioCertificateServiceBase, IstioCertificateServiceStub, "istio.v1.auth.IstioCertificateService"),
        (ResourceSourceBase, ResourceSourceStub, "istio.mcp.v1alpha1.ResourceSource"),
        (ResourceSinkBase, ResourceSinkStub, "istio.mcp.v1alpha1.ResourceSink"),
    ):
        (route,) = base().__mapping__()
        assert route.startswith(f"/{path}/")
        assert any(callable(getattr(stub, name)) for name in vars(stub) if not name.startswith("_"))


def test_the_hints_of_a_class_are_read_once_for_all_of_its_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[type] = []
    read = betterproto2.get_type_hints
    monkeypatch.setattr(betterproto2, "get_type_hints", lambda cls, *rest: asked.append(cls) or read(cls, *rest))
    monkeypatch.delattr(HttpRoute, "_betterproto_meta", raising=False)  # a copy has that of its base, once it is there
    message = type("Copy", (HttpRoute,), {"__module__": HttpRoute.__module__})
    assert message._betterproto.cls_by_field["retries"] is HttpRetry
    assert asked == [message]
