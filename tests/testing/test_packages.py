"""The wheel and the sdist: built twice, in two places, they are the same bytes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

import dibs

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NOT_COPIED = shutil.ignore_patterns(".git", ".venv*", "__pycache__", "_build", ".*_cache", ".hypothesis", "dist")
WHEEL, SDIST = f"dibs-{dibs.__version__}-py3-none-any.whl", f"dibs-{dibs.__version__}.tar.gz"


def build(where: Path, umask: int) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", "built"],
        cwd=where, umask=umask, capture_output=True, text=True, check=False,
        env={name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return where / "built"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("one")
    shutil.copytree(ROOT, place / "dibs", ignore=NOT_COPIED)
    return build(place / "dibs", umask=0o022)


@pytest.fixture(scope="module")
def metadata(built: Path) -> Message:
    with zipfile.ZipFile(built / WHEEL) as wheel:
        return message_from_bytes(wheel.read(f"dibs-{dibs.__version__}.dist-info/METADATA"))


def test_a_second_build_elsewhere_is_the_same(built: Path, tmp_path: Path) -> None:
    place = tmp_path / "another" / "place"
    shutil.copytree(ROOT, place, ignore=NOT_COPIED)
    for path in [place, *place.rglob("*")]:
        os.utime(path, (1_000_000_000, 1_000_000_000))
        path.chmod(0o700 if path.is_dir() or path.stat().st_mode & 0o100 else 0o600)
    again = build(place, umask=0o077)
    for name in (WHEEL, SDIST):
        assert (again / name).read_bytes() == (built / name).read_bytes(), name


def test_the_wheel_from_the_sdist_is_the_same(built: Path, tmp_path: Path) -> None:
    with tarfile.open(built / SDIST) as sdist:
        sdist.extractall(tmp_path, filter="data")
    again = build(tmp_path / SDIST.removesuffix(".tar.gz"), umask=0o022)
    assert (again / WHEEL).read_bytes() == (built / WHEEL).read_bytes()


def test_the_wheel_and_the_sdist_have_what_they_should(built: Path) -> None:
    with zipfile.ZipFile(built / WHEEL) as wheel:
        names = set(wheel.namelist())
    assert {"dibs/py.typed", "dibs/__init__.py", "dibs/testing/plugin.py"} <= names
    assert {name.partition("/")[0] for name in names} == {"dibs", f"dibs-{dibs.__version__}.dist-info"}
    package = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/dibs").rglob("*") if path.is_file()}
    assert {name for name in package if "__pycache__" not in name} <= names
    with tarfile.open(built / SDIST) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "LICENSE", "CITATION.cff", "conftest.py", "docs/conf.py", "scripts/test"} <= names
    assert {page.name for page in ROOT.glob("*.md")} <= names
    assert not [name for name in names if name.startswith(("docs/_build", ".")) and name != ".gitignore"]


def test_the_metadata_and_the_readme_of_pypi(metadata: Message) -> None:
    urls = dict(line.split(", ", 1) for line in metadata.get_all("Project-URL", []))
    assert urls == PROJECT["urls"]
    assert urls.keys() >= {"Changelog", "Documentation", "Issues", "Source"}
    assert metadata["License-Expression"] == "MIT"
    assert {"redis", "fencing", "election"} <= set(metadata["Keywords"].split(","))
    assert set(metadata.get_all("Classifier", [])) == set(PROJECT["classifiers"])
    text = str(metadata.get_payload())
    assert "](https://github.com/dibs-lock/dibs/blob/main/docs/tutorial.md)" in text
    assert [link for link in re.findall(r"(?:\]\(|src=\"|srcset=\")([^)\"]+)", text) if "://" not in link] == []
