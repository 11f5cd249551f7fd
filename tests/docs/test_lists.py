"""Lists of stores, extras and options in documents and messages agree with the code: with the table of stores in
`dibs.backends`, with what each store accepts, and with pyproject.toml."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import dibs
import dibs.aio
from dibs import backends
from dibs.backends.mysql import address as mysql
from dibs.backends.postgresql import address as postgresql
from dibs.backends.redis import address as redis
from dibs.backends.zookeeper import address as zookeeper
from dibs.core.kinds.options import Options

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
READMES = sorted(ROOT.glob("README*.md"))
PAGES = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
QUORUM = {"quorum+redis", "quorum+rediss"}
STORE_OF = {scheme: target.split(".")[2].partition(":")[0] for scheme, target in backends._STORES.items()} | (
    dict.fromkeys(QUORUM, "quorum")
)
"""The package of each scheme: that is also the name of its page, and of its extra."""
EXTRA_OF = {store: store if EXTRAS.get(store) else None for store in STORE_OF.values()} | {"quorum": "redis"}
OPTIONS = {
    "memory": set(),
    "sqlite": set(),
    "redis": set().union(*redis._KNOWN.values()),
    "quorum": {"guard"},
    "postgresql": set(postgresql._own_options()),
    "mysql": set(mysql._KNOWN),
    "zookeeper": {*zookeeper._OPTIONS, "ssl_context"},
}
PORTS = {
    "redis": redis.PORT,
    "redis+sentinel": redis.SENTINEL_PORT,
    "redis+cluster": redis.PORT,
    "quorum+redis": redis.PORT,
    "postgresql": 5432,
    "mysql": mysql.PORT,
    "zookeeper": zookeeper.PORT,
}
_SCHEME = re.compile(r"(?<![\w+])([a-z][a-z+]*)://")


def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    found = re.search(rf"(?ms)^#+ {re.escape(heading)}$(.*?)(?=^#|\Z)", text(page))
    assert found, f"{page} has no heading {heading}"
    return found[1]


def rows(part: str, first: str) -> list[list[str]]:
    """The body rows of all tables whose first heading is `first`."""
    found = []
    for table in re.findall(r"(?m)(?:^\|.*\n)+", part + "\n"):
        head, _, *body = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        found += body if head[0] == first else []
    return found


def words(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def test_the_schemes_of_the_reference_are_those_of_the_table() -> None:
    listed = [scheme for row in rows(section("reference/urls.md", "Schemes"), "scheme") for scheme in words(row[0])]
    assert sorted(listed) == sorted(f"{scheme}://" for scheme in STORE_OF)


def test_the_reference_names_extra_port_and_page_of_each_scheme() -> None:
    for schemes, store, extra, port in rows(section("reference/urls.md", "Schemes"), "scheme"):
        named = {scheme.removesuffix("://") for scheme in words(schemes)}
        (package,) = {STORE_OF[scheme] for scheme in named}
        assert extra.strip("`") == (f"dibs[{EXTRA_OF[package]}]" if EXTRA_OF[package] else "none"), schemes
        assert {PORTS.get(scheme.replace("rediss", "redis"), 0) for scheme in named} >= {int(port or 0)}, schemes
        assert "](" not in store or f"(../stores/{package}.md)" in store


@pytest.mark.parametrize("store", OPTIONS)
def test_the_options_of_a_url_are_those_that_its_store_accepts(store: str) -> None:
    heading = "`quorum+redis://`" if store == "quorum" else f"`{store}://`"
    listed = {option for row in rows(section("reference/urls.md", heading), "option") for option in words(row[0])}
    assert listed == OPTIONS[store]


def test_the_options_of_a_lock_are_all_in_the_reference() -> None:
    listed = rows(section("reference/options.md", "Options of a lock"), "option")
    assert [option for row in listed for option in words(row[0])] == list(Options._fields)


@pytest.mark.parametrize("connect", [dibs.connect, dibs.aio.connect])
def test_the_options_of_a_client_are_all_in_the_reference(connect: object) -> None:
    assert callable(connect)
    parameters = inspect.signature(connect).parameters
    listed = rows(section("reference/options.md", "Options of a client"), "option")
    assert [row[0].strip("`") for row in listed] == [name for name in parameters if name != "store_options"]
    for name, default, _ in listed:
        assert default.strip("` s") == str(parameters[name.strip("`")].default).replace("dibs", '"dibs"'), name


def test_every_store_has_a_page_that_names_all_its_schemes() -> None:
    pages = {page.stem: page.read_text(encoding="utf-8") for page in (DOCS / "stores").glob("*.md")}
    assert set(pages) - {"README", "redisson"} == set(STORE_OF.values()), "and a layout of Redis"
    missing = [scheme for scheme, store in STORE_OF.items() if f"{scheme}://" not in pages[store]]
    assert not missing


@pytest.mark.parametrize("page", READMES, ids=lambda page: page.name)
def test_a_readme_names_every_store_and_its_extra(page: Path) -> None:
    said = page.read_text(encoding="utf-8")
    for scheme in ("memory", "sqlite", "redis", "postgresql", "mysql", "zookeeper", "quorum+redis"):
        assert f"{scheme}://" in said
    for extra in {extra for extra in EXTRA_OF.values() if extra}:
        assert f"dibs[{extra}]" in said


def test_every_extra_in_a_document_exists_and_fits_its_store() -> None:
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").splitlines():
            for named in re.findall(r"dibs\[([a-z,]+)\]", line):
                assert set(named.split(",")) <= EXTRAS.keys(), f"{page.relative_to(ROOT)}: {line[:160]}"
            if line.startswith("|"):
                stores = {STORE_OF[scheme] for scheme in _SCHEME.findall(line) if scheme in STORE_OF}
                extras = set(re.findall(r"dibs\[([a-z]+)\]", line)) - {"cli", "all"}
                fitting = stores | {EXTRA_OF[store] for store in stores}
                assert len(extras) != 1 or not stores or extras <= fitting, f"{page.relative_to(ROOT)}: {line[:160]}"


def test_the_page_of_dependencies_names_every_extra_and_package() -> None:
    page = text("dependencies.md")
    said = section("dependencies.md", "Extras") + section("dependencies.md", "To work on it")
    assert {extra for extra in EXTRAS if f"`{extra}`" not in said} <= {"dev"}
    packages = {re.split(r"[\[<>=, ]", wanted)[0] for wanted in (one for extra in EXTRAS.values() for one in extra)}
    assert {package for package in packages if package.removesuffix("-binary").lower() not in page.lower()} <= {"dibs"}


def test_an_extra_holds_every_store() -> None:
    more = {"cli", "dashboard", "otel", "prometheus"}
    wanted = {*STORE_OF.values(), *more} - {"memory", "sqlite", "quorum"}
    assert set(re.split(r"[\[\],]", EXTRAS["all"][0])[1:-1]) == wanted


def test_messages_name_the_stores_of_the_table() -> None:
    for url, kind in (("etcd://h1", dibs.Unsupported), ("nothing://h1", ValueError)):
        with pytest.raises(kind) as raised:
            dibs.connect(url)
        listed = set(_SCHEME.findall(re.split(r"it has|Next:", str(raised.value))[1]))
        known = backends._STORES.keys() | backends._QUORUMS
        assert listed >= known
        assert listed <= known | {"acme"}  # tests/testing may have installed a store


def test_a_missing_driver_names_an_extra_that_exists() -> None:
    for scheme, target in backends._STORES.items():
        error = backends._missing(f"{scheme}://", None, target, ModuleNotFoundError("no module"))
        assert set(re.findall(r"\[([a-z]+)\]", str(error.step))) <= {STORE_OF[scheme]}
        assert STORE_OF[scheme] in EXTRAS or STORE_OF[scheme] in {"memory", "sqlite"}


def test_every_address_of_the_project_is_the_one_of_pyproject() -> None:
    source, site = PROJECT["urls"]["Source"], PROJECT["urls"]["Documentation"]
    address = r"https://(?:github\.com/[\w.-]+/dibs\b|[\w.-]+\.readthedocs\.io/)"
    assert all(url.startswith((source, site)) for url in PROJECT["urls"].values())
    files = [*PAGES, ROOT / "CITATION.cff", *(ROOT / ".github").rglob("*.*"), ROOT / ".readthedocs.yaml"]
    for file in files:
        for url in re.findall(address, file.read_text("utf-8")):
            assert url in {source, site} or "dibs" not in url, f"{file.relative_to(ROOT)}: {url}"


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == dibs.__version__
    assert citation["license"] == PROJECT["license"]
    urls = PROJECT["urls"]
    assert (citation["repository-code"], citation["url"]) == (urls["Source"], urls["Documentation"])
    assert citation.keys() >= {"message", "title", "authors", "type"}


@pytest.mark.parametrize(
    "form", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda form: form.stem
)
def test_an_issue_form_is_one_that_github_shows(form: Path) -> None:
    """A form with a wrong key is not offered; a form that asks for the store knows all of them."""
    found = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert found.keys() == {"name", "description", "labels", "body"}
    ids = [part["id"] for part in found["body"] if part["type"] != "markdown"]
    assert len(set(ids)) == len(ids)
    for part in found["body"]:
        assert part["type"] in {"checkboxes", "dropdown", "input", "markdown", "textarea"}
        assert part.keys() <= {"type", "id", "attributes", "validations"}
        assert "value" in part["attributes"] if part["type"] == "markdown" else part["attributes"]["label"]
        if part.get("id") == "store":
            offered = " ".join(part["attributes"]["options"]).lower()
            assert [store for store in STORE_OF.values() if store not in offered] == []
