"""Asks the advisory database of PyPI about every package of the lock files, by pip-audit.

    python scripts/audit.py [--strict] [LOCK_FILE …]

Exits with 1 if a package has a known vulnerability. Where the database cannot be asked, it says so in one line
that starts with "not audited:", and exits with 0, or with 2 under --strict.
"""

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

LOCKS = sorted((Path(__file__).resolve().parent.parent / "requirements").glob("*.txt"))
TIMEOUT_S = 600
OPTIONS = ("--format", "json", "--progress-spinner", "off", "--require-hashes", "--disable-pip")


class NotAudited(Exception):
    """The database could not be asked; the message is the reason."""


def run(what: str, *command: object) -> str:
    try:
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise NotAudited(f"{what}: no end after {TIMEOUT_S} s") from None
    if done.returncode not in (0, 1) or (done.returncode and not done.stdout.strip()):
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise NotAudited(f"{what}: {lines[-1] if lines else f'status {done.returncode}'}")
    return done.stdout


def audit(program: Path, lock: Path) -> bool:
    """Prints what is known about the packages of a lock file. Returns whether there is no known vulnerability.

    Raises NotAudited if none is known, but the database did not answer about some of the packages.
    """
    answer = run(f"pip-audit on {lock.name}", program, *OPTIONS, "--requirement", lock)
    packages, num_found = json.loads(answer)["dependencies"], 0
    for package in packages:
        for advisory in package.get("vulns", ()):
            num_found += 1
            names = ", ".join(sorted({advisory["id"], *advisory["aliases"]}))
            fixed = ", ".join(advisory["fix_versions"]) or "no version"
            print(f"{package['name']} {package['version']}: {names}, fixed in {fixed}")
    skipped = [f"{package['name']} ({package['skip_reason']})" for package in packages if "skip_reason" in package]
    if num_found == 0 and (skipped or not packages):
        raise NotAudited(f"{len(skipped)} of {len(packages)} packages, such as {(skipped or ['-'])[0]}")
    num_audited = len(packages) - len(skipped)
    print(f"audited: {lock.name}: {num_audited} of {len(packages)} packages, {num_found} known vulnerabilities")
    return num_found == 0


def main(arguments: list[str]) -> int:
    locks = [Path(name) for name in arguments if name != "--strict"] or LOCKS
    try:
        with tempfile.TemporaryDirectory() as folder:  # an environment of its own, which is not audited
            venv.create(folder, with_pip=True)
            python = Path(folder, "bin/python")
            run("pip-audit cannot be installed", python, *["-m", "pip", "install", "--quiet", "pip-audit>=2.9"])
            is_good = [audit(python.with_name("pip-audit"), lock) for lock in locks]
    except NotAudited as error:
        print(f"not audited: {error}")
        return 2 if "--strict" in arguments else 0
    return 0 if all(is_good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
