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

ROOT = Path(__file__).resolve().parent.parent
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
TIMEOUT_S = 600
# Advisories that do not concern RingBERT, each with the reason.
ACCEPTED: dict[str, str] = {}


class NotAudited(Exception):
    """The database could not be asked; the message is the reason."""


def pip_audit(folder: Path) -> Path:
    """pip-audit in an environment of its own, so that what it needs does not change what is audited."""
    venv.create(folder, with_pip=True)
    run(
        [folder / "bin/python", "-m", "pip", "install", "--quiet", "pip-audit>=2.9"],
        "pip-audit cannot be installed",
    )
    return folder / "bin/pip-audit"


def run(command: list[object], what: str) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise NotAudited(f"{what}: no end after {TIMEOUT_S} s") from None
    if done.returncode not in (0, 1) or (done.returncode and not done.stdout.strip()):
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise NotAudited(f"{what}: {lines[-1] if lines else f'status {done.returncode}'}")
    return done


def audit(program: Path, lock: Path) -> bool:
    """Prints what is known about the packages of a lock file. Returns whether there is no known vulnerability.

    Raises NotAudited if none is known, but the database did not answer about some of the packages.
    """
    options = ["--format", "json", "--progress-spinner", "off", "--require-hashes", "--disable-pip"]
    done = run([program, *options, "--requirement", lock], f"pip-audit on {lock.name}")
    packages = json.loads(done.stdout)["dependencies"]
    found = 0
    for package in packages:
        for advisory in package.get("vulns", ()):
            names = {advisory["id"], *advisory["aliases"]}
            reason = next((ACCEPTED[name] for name in names if name in ACCEPTED), None)
            found += reason is None
            fixed = ", ".join(advisory["fix_versions"]) or "no version"
            print(
                f"{package['name']} {package['version']}: {', '.join(sorted(names))}, fixed in {fixed}"
                + (f"; accepted: {reason}" if reason else "")
            )
    skipped = [f"{package['name']} ({package['skip_reason']})" for package in packages if "skip_reason" in package]
    known = f"{found} known vulnerabilities"
    if found == 0 and (skipped or not packages):
        raise NotAudited(f"{len(skipped)} of {len(packages)} packages, such as {(skipped or ['-'])[0]}; {known}")
    print(f"audited: {lock.name}: {len(packages) - len(skipped)} of {len(packages)} packages, {known}")
    return not found


def main(arguments: list[str]) -> int:
    strict = "--strict" in arguments
    named = [Path(name) for name in arguments if name != "--strict"]
    try:
        with tempfile.TemporaryDirectory() as folder:
            program = pip_audit(Path(folder))
            is_good = [audit(program, lock) for lock in named or LOCKS]
    except NotAudited as error:
        print(f"not audited: {error}")
        return 2 if strict else 0
    return 0 if all(is_good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
