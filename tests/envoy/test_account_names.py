"""Service accounts in policies: Kubernetes allows dots in their names, which match nothing but dots."""

from __future__ import annotations

import pytest
import re2

from mesh_pilot.envoy.filters.rbac.principals import service_account


@pytest.mark.parametrize(
    ("account", "is_meant"), [("build.bot", True), ("build-bot", False), ("buildxbot", False), ("build.bot2", False)]
)
@pytest.mark.parametrize("written", ["build.bot", "shop/build.bot"])
def test_a_policy_for_an_account_lets_in_no_other(written: str, account: str, is_meant: bool) -> None:
    regex = service_account(written, "shop").authenticated.principal_name.safe_regex.regex
    assert bool(re2.fullmatch(regex, f"spiffe://cluster.local/ns/shop/sa/{account}")) is is_meant
