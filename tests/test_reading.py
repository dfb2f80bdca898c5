"""JSON of others: whatever it is, reading it gives values of the type that was asked for."""

from hypothesis import given
from hypothesis import strategies as st

from mesh_pilot.base.reading import as_integer, as_list, as_object, as_objects, as_string, as_string_map, as_strings

NAMES = st.sampled_from("ab")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=2),
)


@given(JSON, st.lists(NAMES, max_size=3))
def test_any_json_is_read_as_the_type_that_is_wanted(value: object, path: list[str]) -> None:
    assert isinstance(as_object(value, *path), dict)
    assert isinstance(as_list(value, *path), list)
    assert isinstance(as_string(value, *path), str)
    assert type(as_integer(value, *path)) is int
    assert all(isinstance(each, dict) for each in as_objects(value, *path))
    assert all(isinstance(each, str) for each in as_strings(value, *path))
    assert all(isinstance(each, str) for each in as_string_map(value, *path).values())


def test_values_are_found_below_objects() -> None:
    pod = {"metadata": {"name": "web-1", "labels": {"app": "web", "weight": 3}}, "spec": {"containers": [{"x": 1}, 2]}}
    assert as_string(pod, "metadata", "name") == "web-1"
    assert as_string_map(pod, "metadata", "labels") == {"app": "web"}
    assert as_objects(pod, "spec", "containers") == [{"x": 1}]
    assert as_string(pod, "metadata", "name", "first") == ""
