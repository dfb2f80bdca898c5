"""The types of shares of the proxies and of labels, as flags have them. Each raises ValueError."""

from __future__ import annotations


def share(text: str) -> float:
    """The type of a share: ``5%`` or ``5``."""
    try:
        found = float(text.strip().removesuffix("%"))
    except ValueError:
        found = -1.0
    if not 0 < found <= 100:
        raise ValueError(f"{text!r} is not a share such as 5%")
    return found


def shares(text: str) -> tuple[float, ...]:
    """The type of shares: ``5,25,50,100``."""
    found = tuple(map(share, text.split(",")))
    if list(found) != sorted(set(found)):
        raise ValueError(f"{text!r}: each step must be larger than the one before")
    return found


def condition(text: str) -> str:
    """The type of a condition on traffic: ``not worse``, ``errors < 1%``, ``acks``."""
    from mesh_pilot.safety.rollout.conditions import condition_of

    condition_of(text)
    return text


def labels(text: str) -> dict[str, str]:
    """The type of labels: ``app=web,tier=front``."""
    found = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if not key or not equals:
            raise ValueError(f"{text!r} is not a selector such as app=web,tier=front")
        found[key] = value
    return found
