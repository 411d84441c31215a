"""Asks the advisory database of PyPI about every package of the lock files, by pip-audit.

    python scripts/audit.py [--strict] [LOCK_FILE …]

Exits with 1 if a package has a known vulnerability. Where the database cannot be asked, it says so
in one line that starts with "not audited:", and exits with 0, or with 2 under --strict.
"""

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

LOCKS = sorted((Path(__file__).resolve().parent.parent / "requirements").glob("*.txt"))
OPTIONS = ("--format", "json", "--progress-spinner", "off", "--require-hashes", "--disable-pip")


def audit(python: str, lock: Path) -> int:
    """Prints what is known about the packages of a lock file. Returns the number of known
    vulnerabilities. Raises RuntimeError: none is known, but the database did not answer about some
    of the packages."""
    command = [python, "-m", "pip_audit", *OPTIONS, "--requirement", str(lock)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if not done.stdout.strip():
        raise RuntimeError(f"pip-audit on {lock.name}: {done.stderr.strip()[-200:]}")
    packages, num_found = json.loads(done.stdout)["dependencies"], 0
    for package in packages:
        for advisory in package.get("vulns", ()):
            num_found += 1
            names = ", ".join(sorted({advisory["id"], *advisory["aliases"]}))
            fixed = ", ".join(advisory["fix_versions"]) or "no version"
            print(f"{package['name']} {package['version']}: {names}, fixed in {fixed}")
    skipped = [
        f"{package['name']} ({package['skip_reason']})"
        for package in packages
        if "skip_reason" in package
    ]
    if num_found == 0 and (skipped or not packages):
        raise RuntimeError(
            f"{len(skipped)} of {len(packages)} packages, such as {(skipped or ['-'])[0]}"
        )
    num_audited = len(packages) - len(skipped)
    print(
        f"audited: {lock.name}: {num_audited} of {len(packages)} packages, {num_found} known"
        " vulnerabilities"
    )
    return num_found


def main(arguments: list[str]) -> int:
    locks = [Path(name) for name in arguments if name != "--strict"] or LOCKS
    try:
        # an environment of its own, which is not audited
        with tempfile.TemporaryDirectory() as folder:
            venv.create(folder, with_pip=True)
            python = f"{folder}/bin/python"
            subprocess.run(
                [python, "-m", "pip", "install", "--quiet", "pip-audit>=2.9"],
                check=True,
                timeout=600,
            )
            return int(sum(audit(python, lock) for lock in locks) > 0)
    except (RuntimeError, subprocess.SubprocessError) as error:
        print(f"not audited: {' '.join(str(error).split())}")
        return 2 if "--strict" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
