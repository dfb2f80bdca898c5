"""The faults of ``tests/faults.yaml`` can be planted, and ``tools.faults`` finds each by the tests that it names."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

import pytest

from tools.faults import PACKAGE, ROOT, Copy, Fault, FaultError, is_found, read_faults, try_faults

FAULTS = read_faults()
LEAST = 40
GENERATED = "api"


def is_a_test(node: str) -> bool:
    """True if a file or test is there: ``tests/x/test_y.py``, or that and ``::test_z[row]``."""
    file, _, name = node.partition("::")
    place = ROOT / file
    return place.is_file() and name.partition("[")[0].rpartition("::")[2] in place.read_text(encoding="utf-8")


def test_each_fault_changes_its_file_in_one_place_and_leaves_it_python() -> None:
    wrong = []
    for fault in FAULTS:
        try:
            ast.parse(fault.planted((ROOT / PACKAGE / fault.file).read_text(encoding="utf-8")))
        except (OSError, FaultError, SyntaxError) as error:
            wrong.append(f"{fault.name}: {error}")
    assert not wrong, "\n".join(wrong)


def test_each_fault_names_tests_that_there_are() -> None:
    missing = [f"{fault.name}: {node}" for fault in FAULTS for node in fault.found_by if not is_a_test(node)]
    assert not missing, "\n".join(missing)
    assert all(fault.found_by and fault.what for fault in FAULTS)


def test_every_room_has_a_fault() -> None:
    rooms = {path.name.removesuffix(".py") for path in (ROOT / PACKAGE).iterdir() if path.suffix in ("", ".py")}
    assert {fault.room for fault in FAULTS} == rooms - {"__init__", "__pycache__", GENERATED}
    assert len(FAULTS) >= LEAST
    assert max(Counter(fault.name for fault in FAULTS).values()) == 1


@pytest.mark.process
def test_a_fault_is_planted_in_the_copy_alone_and_is_found_if_the_command_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fault, copy = FAULTS[0], Copy(tmp_path)
    place = PACKAGE / fault.file
    text = (ROOT / place).read_text(encoding="utf-8")
    module = ".".join(place.relative_to("src").with_suffix("").parts)
    reads = f"import pathlib, {module} as m; text = pathlib.Path(m.__file__).read_text(encoding='utf-8')"
    looks = [sys.executable, "-c", f"{reads}; assert {fault.before!r} in text"]
    assert try_faults([fault], copy, looks) == 0
    assert try_faults([fault], copy, [sys.executable, "-c", "pass"]) == 1
    assert (ROOT / place).read_text(encoding="utf-8") == (tmp_path / place).read_text(encoding="utf-8") == text
    assert f"{fault.name}: NOT FOUND" in capsys.readouterr().out
    with pytest.raises(FaultError, match="without any fault"):
        try_faults([fault], copy, [sys.executable, "-c", "raise SystemExit(1)"])


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("faults"))


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_tests_that_a_fault_names_find_it(fault: Fault, copy: Copy) -> None:
    """Without a fault these tests pass: other environments run them."""
    assert is_found(fault, copy)
