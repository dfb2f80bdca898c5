"""Revocation lists of two CAs that have one name, such as a root whose key was replaced: both count."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from mesh_pilot.identity.authority.certificates import make_crl
from mesh_pilot.identity.authority.revocation import Revocations
from tests.support.authorities import make_ca

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize("order", [1, -1])
def test_what_either_of_two_cas_of_one_name_revoked_is_revoked(order: int) -> None:
    roots = [make_ca("mesh", now=NOW) for _ in range(2)]
    leaves = [make_ca("web", root, now=NOW).certificate for root in roots]
    lists = [make_crl(root, [leaf.serial_number], NOW) for root, leaf in zip(roots, leaves, strict=True)]
    known = Revocations(lambda: tuple(each.public_bytes(Encoding.PEM) for each in lists[::order]))
    assert [known.is_revoked(leaf) for leaf in leaves] == [True, True]
    assert not known.is_revoked(make_ca("other", roots[0], now=NOW).certificate)
