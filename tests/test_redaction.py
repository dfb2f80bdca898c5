"""What `redacted` keeps: what holds no secret, the shape of everything, and JSON that is a string already."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import mesh_pilot
from mesh_pilot.model.redaction import REDACTED, redacted

SECRETS = st.sampled_from(
    [
        "https://user:pAss1word@host/path",
        "http://host/?a=1&api_key=pAss1word",
        "Authorization: Bearer pAss1word",
        "Basic dXNlcjpwQXNzMXdvcmQ=",
        "-----BEGIN RSA PRIVATE KEY-----\npAss1word\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\npAss1word",
        "hvs.pAss1wordpAss1wordpAss",
        "mpjt_eyJhbGciOiJFUzI1NiJ9.pAss1word.pAss1word",
    ]
)
PLAIN = st.sampled_from(
    ["", "reviews.shop", "http://host:80/path?x=1", "basic settings apply", "the bearer of certificates", "s.o"]
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), PLAIN, SECRETS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "name"]), inner, max_size=3),
    max_leaves=10,
)


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: shape(member) for name, member in value.items()}
    return [*map(shape, value)] if isinstance(value, list) else type(value)


@given(VALUES)
def test_no_secret_is_left_the_shape_stays_and_once_is_enough(value: Any) -> None:
    shown = redacted(value)
    assert "pAss1word" not in json.dumps(shown)
    assert "dXNlcjpwQXNz" not in json.dumps(shown)
    assert shape(shown) == shape(value)
    assert redacted(shown) == shown
    text = redacted(json.dumps(value))
    assert "pAss1word" not in text
    assert shape(json.loads(text)) == shape(value), "JSON that is encoded already stays JSON"


@given(st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(PLAIN, inner), max_leaves=8))
def test_what_holds_no_secret_is_the_same_object(value: Any) -> None:
    assert redacted(value) is value


def test_pages_keep_what_has_a_secrets_name_and_is_none() -> None:
    page = {"authorization": [{"proxy": "web"}], "token": "abc", "cookie": {"regex": "user=jason"}}
    assert redacted(page) == {**page, "token": REDACTED}
    match = {"name": "cookie", "string_match": {"exact": "user=jason"}}
    assert redacted(match) == match


STATIC = {"ops/page/files.py", "ops/access/sessions.py", "ops/access/gate.py", "ops/web/trust_bundle.py"}
"""Files whose answers hold nothing of the mesh's: files of the page, forms, redirects, public roots."""


def test_answers_are_made_where_they_pass_redaction() -> None:
    """A new page cannot leave it out: it answers by ``ops.web.responses``."""
    root = Path(mesh_pilot.__file__).parent
    found = []
    for path in sorted((root / "ops").rglob("*.py")):
        name = path.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("Response")
            ):
                continue
            body = [*node.args, *(each.value for each in node.keywords if each.arg == "content")]
            if body and "redacted(" not in ast.unparse(body[0]) and name not in STATIC:
                found.append(f"{name}: {ast.unparse(body[0])}")
    assert found == [
        "ops/api/events.py: FULL",
        "ops/web/responses.py: body",
        "ops/workers.py: page.body",
    ], "the first says nothing, the second is redacted before it is encoded, the third is another worker's answer"
