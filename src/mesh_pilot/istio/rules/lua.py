"""Rules for Lua scripts, as Envoy's LuaJIT reads them."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

_PLACE = re.compile(r'^\[string "[^"]*"\]:(\d+): ')


def lua_reason(script: str) -> str:
    """For a script: why LuaJIT does not compile it. It is compiled only, never run."""
    if script.startswith("\x1b"):
        return "is compiled Lua; Envoy is given the source"
    if "\0" in script:
        return "has a NUL character, at which Envoy would take it to end"
    runtime = _runtime()
    try:
        runtime.compile(script, name="script", mode="t")
    except (_syntax_error(), UnicodeEncodeError) as caught:
        return f"is not Lua: {_PLACE.sub(lambda found: f'line {found[1]}: ', str(caught), count=1)}"
    return ""


@cache
def _runtime() -> Any:
    return _lupa().LuaRuntime(register_eval=False, register_builtins=False)


def _syntax_error() -> type[Exception]:
    found: type[Exception] = _lupa().LuaSyntaxError
    return found


@cache
def _lupa() -> Any:
    """LuaJIT, or Lua 5.1, whose language it is, on machines for which there is no LuaJIT."""
    try:
        from lupa import luajit21

        return luajit21
    except ImportError:
        from lupa import lua51

        return lua51
