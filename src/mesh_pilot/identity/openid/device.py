"""A login without a browser at hand (RFC 8628): a code that somebody confirms elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import trio

from mesh_pilot.identity.openid.provider import DeviceCode, Provider, ProviderError, ProviderRefusal, Tokens

SLOWER_SECONDS = 5.0
"""The time by which ``slow_down`` makes the interval longer."""


async def log_in(provider: Provider, show: Callable[[DeviceCode], None]) -> Tokens:
    """The tokens of whoever confirms the code that is shown. Raises ProviderError. If cancelled, nothing is left."""
    code = await provider.device_code()
    show(code)
    interval = code.interval
    with trio.move_on_after(code.seconds):
        while True:
            await trio.sleep(interval)
            try:
                return await provider.tokens_of_device(code)
            except ProviderRefusal as refusal:
                if refusal.code == "slow_down":
                    interval += SLOWER_SECONDS
                elif refusal.code == "access_denied":
                    raise ProviderError("the login was refused in the browser") from None
                elif refusal.code == "expired_token":
                    break
                elif refusal.code != "authorization_pending":
                    raise
            except ProviderError:
                interval = min(interval * 2, 60.0)  # as RFC 8628 says for an issuer that does not answer
    raise ProviderError("the code was not confirmed in time; log in again")
