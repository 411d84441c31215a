"""Writes a software bill of materials of each lock file, in CycloneDX's format: every package, with
its version, the digests of its files and its licence.

    python scripts/bill.py OUTPUT_DIR

The licences are those of requirements/licences.toml. A package without one, or with one that is not
allowed there, is an error. `python scripts/bill.py --list` writes what the installed packages say
of themselves into that file, and keeps the rest. Bills are made by cyclonedx-bom.
"""

import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

LOCKS = sorted((Path(__file__).resolve().parent.parent / "requirements").glob("*.txt"))
TABLE = LOCKS[0].parent / "licences.toml"
# How packages without an SPDX expression name their licence.
SPDX = {
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: BSD License": "BSD-3-Clause",
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: ISC License (ISCL)": "ISC",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "License :: OSI Approved :: Python Software Foundation License": "PSF-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "3-Clause BSD License": "BSD-3-Clause",
    "BSD 3-Clause": "BSD-3-Clause",
    "LicenseRef-OpenMPI": "BSD-3-Clause-Open-MPI",
}


def packages_of(lock: Path) -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+)==", lock.read_text(), re.MULTILINE))


def licence_of(name: str) -> str | None:
    """The SPDX expression that an installed package states, by its metadata or its classifiers;
    None if it states none, or is not installed."""
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    if expression := metadata.get("License-Expression"):
        return str(expression)
    stated = [*metadata.get_all("Classifier", []), metadata.get("License") or ""]
    for text in stated:
        if text in SPDX:
            return SPDX[text]
    short = str(stated[-1])
    return short if re.fullmatch(r"[A-Za-z0-9.-]+( (AND|OR) [A-Za-z0-9.-]+)*", short) else None


def is_allowed(expression: str, allowed: set[str]) -> bool:
    """Whether all parts of `A AND B` are allowed, and of `A OR B` one."""
    parts = expression.split(" AND ")
    return all(not allowed.isdisjoint(part.split(" OR ")) for part in parts)


def check(licences: dict[str, str], allowed: set[str]) -> list[str]:
    """What is wrong with the table."""
    names = set().union(*map(packages_of, LOCKS))
    faults = [f"{name} has no licence in {TABLE.name}" for name in sorted(names - licences.keys())]
    faults += [f"{name} is in no lock file" for name in sorted(licences.keys() - names)]
    faults += [
        f"{name} has the licence {licence}, which is not allowed in {TABLE.name}"
        for name, licence in licences.items()
        if not is_allowed(licence, allowed)
    ]
    return faults


def rewrite(table: dict) -> None:
    """Writes the table anew, by what is installed."""
    names = sorted(set().union(*map(packages_of, LOCKS)))
    found = {name: licence_of(name) or table["packages"].get(name, "unknown") for name in names}
    head, mark, _ = TABLE.read_text().partition("[packages]\n")
    TABLE.write_text(head + mark + "".join(f'{name} = "{found[name]}"\n' for name in names))


def main(arguments: list[str]) -> int:
    table = tomllib.loads(TABLE.read_text())
    if arguments == ["--list"]:
        rewrite(table)
        return 0
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    licences, folder = table["packages"], Path(arguments[0])
    if faults := check(licences, set(table["allowed"])):
        print("\n".join(faults), file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as builder:
        venv.create(builder, with_pip=True)
        python = f"{builder}/bin/python"
        install = [python, "-m", "pip", "install", "--quiet", "cyclonedx-bom>=7"]
        subprocess.run(install, check=True, timeout=600)
        for lock in LOCKS:
            make = [python, "-m", "cyclonedx_py", "requirements", "--output-reproducible"]
            made = subprocess.run([*make, str(lock)], check=True, capture_output=True, timeout=600)
            bill = json.loads(made.stdout)
            for component in bill["components"]:
                component["licenses"] = [{"expression": licences[component["name"]]}]
            path = folder / f"{lock.stem}.cdx.json"
            path.write_text(json.dumps(bill, indent=1) + "\n")
            print(f"{path}: {len(bill['components'])} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
