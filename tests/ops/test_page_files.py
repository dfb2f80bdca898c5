"""The files of the web page: what a browser is told to read ahead, libraries, sizes."""

import gzip
import hashlib
import re

from mesh_pilot.ops.page.files import page_files
from tools.get_page_libraries import FOLDER, LIBRARIES

MOST_FIRST_LOAD = 120_000
"""Bytes of all files together as they are sent: a view reads some 10 kB of the API next to."""

WITHOUT_MODULES = {"theme.js"}

IMPORT = re.compile(r"""^(?:import|export)\b[^;]*?from ?["']\./([^"']+)["']""", re.MULTILINE)


def test_libraries_are_those_whose_checksums_are_known() -> None:
    found = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in FOLDER.glob("*.js")}
    assert found == {each.file: each.sha256 for each in LIBRARIES}
    licences = (FOLDER / "LICENSES.txt").read_text(encoding="utf-8")
    assert [each.package for each in LIBRARIES if f"{each.package} {each.version}" not in licences] == []


def test_the_page_names_all_modules_so_that_none_is_found_late() -> None:
    files = page_files()
    page = files["index.html"].body.decode()
    named = set(re.findall(r'(?:modulepreload" href|module" src)="/page/([^"]+)"', page))
    imported = {"app.js"}
    for name, file in files.items():
        if name.endswith(".js") and name not in WITHOUT_MODULES:
            folder = name.rpartition("/")[0]
            imported |= {f"{folder}/{own}".lstrip("/") for own in IMPORT.findall(file.body.decode())}
    assert named == imported
    assert imported | WITHOUT_MODULES == {name for name in files if name.endswith(".js")}


def test_the_first_load_is_small() -> None:
    files = page_files()
    assert sum(len(gzip.compress(file.body)) for file in files.values()) < MOST_FIRST_LOAD


def test_no_module_makes_html_or_code_of_text() -> None:
    """Whatever a name of the mesh contains, it is text."""
    for name, file in page_files().items():
        if name.endswith(".js") and not name.startswith("vendor/"):
            text = file.body.decode()
            found = re.findall(
                r"dangerouslySetInnerHTML|\.(?:inner|outer)HTML|insertAdjacentHTML|\beval\(|new Function", text
            )
            assert found == [], name


def test_no_file_names_another_origin() -> None:
    """But what names a namespace of XML."""
    for name, file in page_files().items():
        addresses = set(re.findall(r"""["'(](https?://[^"')]+)""", file.body.decode()))
        assert all("www.w3.org/" in each for each in addresses), name
