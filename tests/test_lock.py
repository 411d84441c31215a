"""The lock files in requirements/ fit pyproject.toml; scripts/lock.sh writes them. Without a network."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.markers import Marker, default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
TABLE = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PYTHONS = ("3.11", "3.12", "3.13")
ADVICE = "run scripts/lock.sh"


@dataclass(frozen=True)
class Pin:
    """One entry of a lock file; `parents` are the packages that need it."""

    name: str
    version: str
    marker: Marker | None
    hashes: tuple[str, ...]
    parents: frozenset[str]

    def applies(self, python: str) -> bool:
        environment = default_environment() | {"python_version": python, "python_full_version": f"{python}.0"}
        return self.marker is None or self.marker.evaluate(environment)


def pins(lock: Path) -> Iterator[Pin]:
    """The entries of a lock file and of those that it includes."""
    for entry in re.split(r"\n(?=\S)", lock.read_text()):
        if included := re.match(r"-r (\S+)", entry):
            yield from pins(lock.parent / included[1])
        elif not entry.startswith("#"):
            name, version, marker = re.match(r"([a-z0-9-]+)==([^ ;]+)(?: ; ([^\\]+))? \\", entry).groups()
            parents = set(re.findall(r"^    # +(?:via )?(\S+)", entry, re.MULTILINE)) - {"via"}
            hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})\b", entry))
            yield Pin(name, version, marker and Marker(marker), hashes, frozenset(parents))


def requirements(extras: list[str]) -> list[Requirement]:
    project = TABLE["project"]
    texts = [*project["dependencies"], *TABLE["build-system"]["requires"]]
    return list(map(Requirement, sum((project["optional-dependencies"][extra] for extra in extras), texts)))


def test_the_environments_of_the_scripts_have_lock_files():
    scripts = [(ROOT / "scripts" / name).read_text() for name in ("test.sh", "quickstart.sh")]
    made = {re.search(r"^make_environment (\S+)$", script, re.MULTILINE)[1] for script in scripts}
    assert {lock.stem.replace("-", ",") for lock in LOCKS} == made


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_file_has_what_pyproject_asks_for_and_nothing_that_it_no_longer_does(lock):
    wanted, entries = requirements(lock.stem.split("-")), list(pins(lock))
    for python in PYTHONS:
        present = [pin for pin in entries if pin.applies(python)]
        versions = {pin.name: pin.version for pin in present}
        assert len(versions) == len(present), f"{lock.name}: two versions of a package"
        for requirement in wanted:
            version = versions.get(canonicalize_name(requirement.name))
            assert version is not None, f"{lock.name} lacks {requirement}: {ADVICE}"
            assert requirement.specifier.contains(version), f"{version} does not fit {requirement}: {ADVICE}"
    asked = {pin.name for pin in entries if "ringbert" in pin.parents}
    unwanted = asked - {canonicalize_name(requirement.name) for requirement in wanted}
    assert not unwanted, f"{lock.name} has {unwanted}, which pyproject.toml no longer asks for: {ADVICE}"
    assert all(pin.parents for pin in entries)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_file_has_digests_and_names_no_server(lock):
    text = lock.read_text()
    assert all(pin.hashes for pin in pins(lock))
    assert "://" not in text
    options = set(re.findall(r"^ *(--?[a-z-]+)", text, re.MULTILINE))
    assert options <= {"--hash", "-r"}
