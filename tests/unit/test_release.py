"""What the package says of itself in several files agrees."""

from __future__ import annotations

import re
import runpy
import tomllib
import zipfile
from importlib import resources
from pathlib import Path, PurePosixPath

import pytest

import certimap

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_package_states_the_version_and_the_citation_and_the_changelog_follow():
    assert PROJECT["dynamic"] == ["version"]
    for name, line in (("CITATION.cff", "version: {}"), ("CHANGELOG.md", "## [{}]")):
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        assert any(found.startswith(line.format(certimap.__version__)) for found in lines), name
    for name in ("conda/meta.yaml", "mkdocs.yml"):
        assert certimap.__version__ not in (ROOT / name).read_text(encoding="utf-8"), name
    pattern = re.search(r"regex_pattern='([^']+)'", (ROOT / "conda/meta.yaml").read_text(encoding="utf-8"))
    source = (ROOT / "src/certimap/__init__.py").read_text(encoding="utf-8")
    assert pattern is not None
    assert re.findall(pattern[1], source) == [certimap.__version__]


def test_the_conda_recipe_asks_for_what_the_package_asks_for():
    recipe = (ROOT / "conda/meta.yaml").read_text(encoding="utf-8")
    wanted = {
        line.strip(" -").replace(" ", "") for line in recipe.partition("  run:")[2].split("\n\n")[0].splitlines()
    }
    assert wanted - {""} == {*PROJECT["dependencies"], "python" + PROJECT["requires-python"]}


def test_the_package_is_typed():
    assert resources.files(certimap).joinpath("py.typed").is_file()


def test_every_page_has_a_place_in_the_site():
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    named = set(re.findall(r": (\S+\.md)$", site, re.MULTILINE))
    assert named == {page for page in pages if not re.fullmatch(r"benchmarks/.+/README\.md", page)}


def test_the_wheel_holds_what_the_package_reads(tmp_path):
    builders = pytest.importorskip("hatchling.builders.wheel")
    (built,) = builders.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    held = set(zipfile.ZipFile(built).namelist())
    report = {
        f"certimap/explanations/reports/{n}"
        for n in ("page.css", "page.js", "chart.umd.min.js", "chart.LICENSE.txt")
    }
    assert report | {"certimap/py.typed", "certimap/__init__.pyi"} <= held
    source = ROOT / "src"
    files = {p.relative_to(source).as_posix() for p in (source / "certimap").rglob("*") if p.is_file()}
    assert {name for name in files if "__pycache__" not in name} <= held
    names = {PurePosixPath(name).name for name in held}
    assert {"LICENSE", "METADATA", "entry_points.txt"} <= names
    assert not [name for name in held if name.startswith(("tests/", "certimap_lab/"))]


def test_the_wheel_of_the_lab_holds_what_it_reads_and_has_the_same_version(tmp_path):
    builders = pytest.importorskip("hatchling.builders.wheel")
    (built,) = builders.WheelBuilder(str(ROOT / "lab")).build(directory=str(tmp_path), versions=["standard"])
    held = set(zipfile.ZipFile(built).namelist())
    assert {"certimap_lab/bench/paper.json", "certimap_lab/cli/bench.py"} <= held
    assert all(
        name.startswith(("certimap_lab/", f"certimap_lab-{certimap.__version__}.dist-info/")) for name in held
    )


def test_the_bill_of_materials_says_what_the_wheel_carries_and_needs():
    made = runpy.run_path(str(ROOT / ".ci/sbom"))
    assert (ROOT / "src/certimap/sbom.cdx.json").read_text(encoding="utf-8") == made["text"](), "run .ci/sbom"
    package = ROOT / "src/certimap"
    carried = {path: version for version, path in made["CARRIED"].values()}
    assert {p.relative_to(package).as_posix() for p in package.rglob("*.min.js")} == carried.keys()
    for path, version in carried.items():
        script = package / path
        assert version.encode() in script.read_bytes()
        assert script.with_name(script.name.partition(".")[0] + ".LICENSE.txt").is_file()
