"""What is stored encrypted: whatever somebody does to it, it is refused with a reason or it is what was stored."""

from __future__ import annotations

import pytest

from mesh_pilot.base.sealing import KEY_BYTES, NONCE_BYTES, SealingError, seal, unseal

OLD, NEW = b"o" * KEY_BYTES, b"n" * KEY_BYTES
SEALED = seal(b"a private key", (OLD,), "ca/key")


def test_a_former_key_still_opens_and_the_first_one_closes() -> None:
    assert unseal(SEALED, (NEW, OLD), "ca/key") == b"a private key"
    assert unseal(seal(b"x", (NEW, OLD), "ca/key"), (NEW,), "ca/key") == b"x"


@pytest.mark.parametrize("length", [0, 1, NONCE_BYTES - 1, NONCE_BYTES, NONCE_BYTES + 1, len(SEALED) - 1])
def test_an_entry_that_was_cut_off_is_refused(length: int) -> None:
    with pytest.raises(SealingError, match="cannot be decrypted"):
        unseal(SEALED[:length], (OLD, NEW), "ca/key")


def test_an_entry_of_another_place_or_key_is_refused() -> None:
    for keys, place in (((OLD,), "ca/certificate"), ((NEW,), "ca/key")):
        with pytest.raises(SealingError, match="cannot be decrypted"):
            unseal(SEALED, keys, place)
