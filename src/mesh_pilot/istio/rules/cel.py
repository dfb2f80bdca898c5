"""Rules for expressions in CEL, as Envoy accepts them in filters of access logs and in `%CEL(...)%`.

The grammar is that of the CEL specification. Envoy builds neither macros that loop (`exists`, `map`, ...) nor the
functions of CEL's extensions, and limits how deep an expression is. Types are not checked.

Our own parser, because what Envoy refuses is the question: a library for CEL accepts macros and functions that
Envoy does not build, and brings an evaluator that nothing here needs. A proxy that is sent an expression which it
refuses keeps its old listener with everything in it, so a wrong "good" is expensive: `test_envoy_takes_formats` asks
real Envoys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from mesh_pilot.istio.rules.regex import regex_reason

MAX_DEPTH = 32
"""Envoy's limit of an expression's depth, as a tree and in brackets."""

MAX_EXPRESSION = 16 * 1024
"""Maximum characters of an expression: every proxy evaluates it for every request. Envoy's own limit is 100,000."""

_ESCAPE = r"\\(?:[abfnrtv\"'\\?`]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2})"
_TOKEN = re.compile(
    rf"""
    (?P<space>[ \t\r\n\f]++|//[^\n]*+)
    |(?P<string>[bB]?(?:
        [rR](?:'''(?s:.)*?'''|\"\"\"(?s:.)*?\"\"\"|'[^'\r\n]*+'|"[^"\r\n]*+")
        |'''(?:{_ESCAPE}|[^\\])*?'''|\"\"\"(?:{_ESCAPE}|[^\\])*?\"\"\"
        |'(?:{_ESCAPE}|[^'\\\r\n])*+'|"(?:{_ESCAPE}|[^"\\\r\n])*+"))
    |(?P<float>[0-9]++\.[0-9]++(?:[eE][-+]?[0-9]++)?|[0-9]++[eE][-+]?[0-9]++|\.[0-9]++(?:[eE][-+]?[0-9]++)?)
    |(?P<integer>(?:0x[0-9a-fA-F]++|[0-9]++)[uU]?)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*+)
    |(?P<quoted>`[-A-Za-z0-9_./ ]++`)
    |(?P<sign>&&|\|\||[=!<>]=|[-+*/%!<>?:.,()\[\]{{}}])
    """,
    re.VERBOSE,
)

_BINARY = {"||": 1, "&&": 2, "+": 4, "-": 4, "*": 5, "/": 5, "%": 5}
_BINARY.update(dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "in"), 3))
"""Binary operators and how tightly they bind."""

_BALANCED = ("||", "&&")
"""Operators whose chains count as balanced trees."""

_WORDS = "as break const continue else for function if import in let loop package namespace return var void while"
_RESERVED = frozenset(_WORDS.split())
_LITERALS = ("true", "false", "null")

_PARTS_OF_TIME = "FullYear Month DayOfYear DayOfMonth Date DayOfWeek Hours Minutes Seconds Milliseconds"

_FUNCTIONS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("bool", "bytes", "double", "duration", "dyn", "int", "timestamp", "type", "uint", "size"), (1,)),
    **dict.fromkeys(("contains", "endsWith", "matches", "startsWith", "re.capture", "re.captureN"), (2,)),
    "re.extract": (3,),
}
"""Envoy's functions, with the numbers of their arguments."""

_METHODS: dict[str, tuple[int, ...]] = {
    "size": (0,),
    **dict.fromkeys(("contains", "endsWith", "matches", "startsWith"), (1,)),
    **{f"get{part}": (0, 1) for part in _PARTS_OF_TIME.split()},
}
"""The same for functions that are called on a value."""


def cel_reason(expression: str) -> str:
    """The reason why Envoy refuses an expression, or an empty string."""
    if len(expression) > MAX_EXPRESSION:
        return f"the expression has {len(expression)} characters, allowed are {MAX_EXPRESSION}"
    try:
        parser = _Parser(_tokens(expression))
        parser.whole()
    except _CelError as error:
        return f"{_shown(expression)} is not an expression: {error}"
    return ""


class _CelError(ValueError):
    """An expression is wrong; the text says why."""


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


class _Part(NamedTuple):
    """A part of an expression."""

    depth: int
    name: str = ""
    """If it is a name, or names with dots between them."""
    selects: bool = False
    """True if it is a field of a value."""
    text: str | None = None
    """If it is a string without escapes."""


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _CelError(f"{_shown(text[position:])} at character {position + 1} begins no part of an expression")
        kind = match.lastgroup or ""
        if kind != "space":
            yield _Token(kind, match[0], position)
        position = match.end()
    yield _Token("end", "", len(text))


class _Parser:
    """A recursive descent, as deep as ``MAX_DEPTH`` allows."""

    def __init__(self, tokens: Iterator[_Token]) -> None:
        self._tokens = tokens
        self._next = next(tokens)
        self._nested = 0

    def whole(self) -> None:
        self._expression()
        if self._next.kind != "end":
            self._unexpected()

    def _advance(self) -> None:
        self._next = next(self._tokens)

    def _take(self, *signs: str) -> str:
        """The next token if it is one of these signs or words, else empty."""
        text = self._next.text
        if self._next.kind not in ("sign", "name") or text not in signs:
            return ""
        self._advance()
        return text

    def _demand(self, sign: str) -> None:
        if not self._take(sign):
            self._unexpected(f', where "{sign}" is expected')

    def _unexpected(self, more: str = "") -> NoReturn:
        token = self._next
        found = (
            f'"{token.text[:40]}" at character {token.position + 1} is unexpected' if token.text else "it ends early"
        )
        raise _CelError(found + more)

    def _expression(self) -> _Part:
        self._nested += 1
        if self._nested > MAX_DEPTH + 1:
            raise _CelError(f"the brackets are nested more than {MAX_DEPTH} deep")
        depths: list[int] = []
        node = self._binary(1)
        while self._take("?"):
            then = self._binary(1)
            self._demand(":")
            depths.append(max(node.depth, then.depth))
            node = self._binary(1)
        for depth in reversed(depths):
            node = _over(depth, node.depth)
        self._nested -= 1
        return node

    def _binary(self, least: int) -> _Part:
        node = self._unary()
        chained, deepest, operator = 1, node.depth, ""
        while (binds := self._binding()) >= least:
            sign = self._take(*_BINARY)
            right = self._binary(binds + 1)
            if sign not in _BALANCED:
                node = _over(node.depth, right.depth)
                continue
            if sign != operator:
                chained, deepest, operator = 1, node.depth, sign
            chained, deepest = chained + 1, max(deepest, right.depth)
            node = _over(deepest + (chained - 1).bit_length() - 1)
        return node

    def _binding(self) -> int:
        return _BINARY.get(self._next.text, 0) if self._next.kind in ("sign", "name") else 0

    def _unary(self) -> _Part:
        count = 0
        sign = self._take("!", "-")
        while sign and (count := count + 1) and self._take(sign):
            pass
        if sign == "!" and self._take("-"):
            if not self._at_number():
                self._unexpected()
            return _over(self._member(negative=True).depth)
        if sign == "-" and count == 1 and self._at_number():
            return self._member(negative=True)
        member = self._member(negative=False)
        return _over(member.depth) if count % 2 else member

    def _at_number(self) -> bool:
        return self._next.kind in ("integer", "float")

    def _member(self, *, negative: bool) -> _Part:
        node = self._primary(negative=negative)
        while True:
            if self._take("."):
                node = self._selected(node)
            elif self._take("["):
                index = self._expression()
                self._demand("]")
                node = _over(node.depth, index.depth)
            elif node.name and self._next.text == "{":
                node = self._message(node)
            else:
                return node

    def _selected(self, target: _Part) -> _Part:
        kind, name, _ = self._next
        if kind not in ("name", "quoted") or name in (*_LITERALS, "in"):
            self._unexpected()
        self._advance()
        if kind == "name" and self._take("("):
            qualified = f"{target.name}.{name}" if target.name else ""
            arguments = self._list(")", trailing=False)
            if len(arguments) not in _FUNCTIONS.get(qualified, ()):
                _check_call(name, _METHODS, arguments)
            return _over(target.depth, *(argument.depth for argument in arguments))
        return _Part(_over(target.depth).depth, f"{target.name}.{name}" if target.name else "", selects=True)

    def _primary(self, *, negative: bool) -> _Part:
        token = self._next
        if self._take("("):
            node = self._expression()
            self._demand(")")
            return _Part(node.depth, selects=node.selects)
        if self._take("["):
            return _over(*(element.depth for element in self._list("]", trailing=True)))
        if self._take("{"):
            return _over(*self._entries())
        # The order of CEL's grammar: brackets, then a name that may start with a dot. A leading dot before a literal is
        # wrong.
        self._take(".")
        kind, text, _ = self._next
        if kind in ("string", "integer", "float") and token.text != ".":
            self._advance()
            _check_literal(kind, text, negative=negative)
            return _Part(1, text=_plain(text))
        if kind != "name" or text in _RESERVED or (token.text == "." and text in _LITERALS):
            self._unexpected(", a reserved word" if text in _RESERVED else "")
        self._advance()
        if text in _LITERALS:
            return _Part(1)
        if self._take("("):
            return self._call(text)
        return _Part(1, text)

    def _call(self, name: str) -> _Part:
        arguments = self._list(")", trailing=False)
        if name == "has" and len(arguments) == 1:
            if not arguments[0].selects:
                raise _CelError("has() takes a field, as in has(request.useragent)")
            return _over(arguments[0].depth)
        _check_call(name, _FUNCTIONS, arguments)
        return _over(*(argument.depth for argument in arguments))

    def _list(self, end: str, *, trailing: bool) -> list[_Part]:
        """Expressions up to the bracket ``end``; ``trailing``: a comma may be last."""
        found: list[_Part] = []
        if trailing and self._take(","):
            self._demand(end)
            return found
        while not self._take(end):
            if found:
                self._demand(",")
                if trailing and self._take(end):
                    break
            found.append(self._expression())
        return found

    def _entries(self) -> Iterator[int]:
        """The depths of a map's keys and values, up to its end."""
        if self._take(","):
            self._demand("}")
            return
        first = True
        while not self._take("}"):
            if not first:
                self._demand(",")
                if self._take("}"):
                    return
            first = False
            yield self._expression().depth
            self._demand(":")
            yield self._expression().depth

    def _message(self, target: _Part) -> _Part:
        """A message of a named type."""
        if "." not in target.name:
            raise _CelError(f'"{target.name[:40]}" is not the name of a message')
        self._demand("{")
        depths: list[int] = []
        while not self._take("}"):
            if depths:
                self._demand(",")
                if self._take("}"):
                    break
            if self._next.kind not in ("name", "quoted"):
                self._unexpected()
            self._advance()
            self._demand(":")
            depths.append(self._expression().depth)
        return _over(*depths)


def _over(*depths: int) -> _Part:
    """A node over others."""
    depth = 1 + max(depths, default=0)
    if depth > MAX_DEPTH:
        raise _CelError(f"it is more than {MAX_DEPTH} levels deep")
    return _Part(depth)


def _check_call(name: str, known: dict[str, tuple[int, ...]], arguments: list[_Part]) -> None:
    if len(arguments) not in known.get(name, ()):
        what = "does not take so many arguments" if name in known else "is not a function that Envoy has"
        raise _CelError(f'"{name[:40]}" {what}')
    pattern = arguments[-1].text if name == "matches" else None
    if pattern and (reason := regex_reason(pattern)):
        raise _CelError(reason)


def _plain(literal: str) -> str | None:
    """The text of a literal; None unless it is a string without escapes."""
    quoted = _QUOTED.fullmatch(literal)
    return quoted[3] if quoted and (quoted[1] or "\\" not in quoted[3]) else None


def _check_literal(kind: str, text: str, *, negative: bool) -> None:
    if kind == "string" and any(_is_no_character(escape) for escape in _CODE_POINT.findall(text)):
        raise _CelError("a string has an escape of what is not a character")
    if kind == "integer":
        unsigned = text[-1] in "uU"
        digits = text.rstrip("uU")
        base = 16 if digits.startswith("0x") else 10
        bare = digits.removeprefix("0x").lstrip("0") or "0"
        limit = 2**64 - 1 if unsigned else 2**63 - (not negative)
        if len(bare) > 20 or int(bare, base) > limit:
            raise _CelError(f'"{text[:40]}" is out of range')


_QUOTED = re.compile(r"""([rR]?)('''|\"\"\"|['"])(.*)\2""", re.DOTALL)
_CODE_POINT = re.compile(r"(?:\\[^uU])*+\\[uU]([0-9a-fA-F]{8}|[0-9a-fA-F]{4})")


def _is_no_character(code: str) -> bool:
    number = int(code, 16)
    return 0xD800 <= number <= 0xDFFF or number > 0x10FFFF


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}...")
