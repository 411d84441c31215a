"""Builds the sdist and the wheel of a release from the tracked files of this checkout, and has
twine check them.

    python scripts/release.py OUTPUT_DIR --repository ADDRESS [--rehearse]

In the copy from which they are built, the links and pictures of README.md lead to the repository at
the tag of the version, since a package index shows README.md alone. ADDRESS is that of a repository
whose files are at ADDRESS/blob/TAG/PATH and ADDRESS/raw/TAG/PATH.

A release needs a clean checkout with the tag `vVERSION`, and a date in CHANGELOG.md. `--rehearse`
builds without them, with the changes that are not committed. OUTPUT_DIR must be new or empty.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Code comes first, since brackets mean other things in it; then a link or a picture.
CODE_OR_LINK = re.compile(
    r"^    .*$|``.*?``|`[^`]*`|(?P<text>!?\[[^\]]*\])\((?P<target>[^)\s]+)\)", re.MULTILINE
)


def absolute(text: str, repository: str, tag: str) -> str:
    """The text of a Markdown page in the repository's root, whose links to files of the repository
    lead there, wherever the page is shown."""

    def replaced(match: re.Match[str]) -> str:
        target = match["target"]
        if target is None or "://" in target:
            return match[0]
        # Package indexes give headings other anchors.
        path = f"README.md{target}" if target.startswith("#") else target
        kind = "raw" if match["text"].startswith("!") else "blob"
        return f"{match['text']}({repository}/{kind}/{tag}/{path})"

    return CODE_OR_LINK.sub(replaced, text)


def urls(repository: str, tag: str) -> str:
    """The table of pyproject.toml from which a package index takes the project's addresses."""
    return (
        "\n[project.urls]\n"
        f'Source = "{repository}"\n'
        f'Documentation = "{repository}/tree/{tag}/docs"\n'
        f'Changelog = "{repository}/blob/{tag}/CHANGELOG.md"\n'
    )


def git(*words: str) -> list[str]:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()


def what_is_missing(version: str) -> list[str]:
    """What a release of this checkout still needs."""
    missing = []
    if git("status", "--porcelain"):
        missing.append("commit or remove what `git status` lists")
    if f"v{version}" not in git("tag", "--points-at", "HEAD"):
        missing.append(f"tag the commit: git tag v{version}")
    dated = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    if not re.search(dated, (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        missing.append(f"CHANGELOG.md has no line `## [{version}] - YYYY-MM-DD`")
    return missing


def copy_sources(folder: Path, repository: str, tag: str) -> None:
    for name in git("ls-files", "--cached", "--others", "--exclude-standard"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    readme, project = folder / "README.md", folder / "pyproject.toml"
    readme.write_text(absolute(readme.read_text(), repository, tag))
    project.write_text(project.read_text() + urls(repository, tag))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output_dir", type=Path, help="a new folder for the sdist and the wheel")
    parser.add_argument("--repository", required=True, help="https://HOST/OWNER/NAME")
    parser.add_argument("--rehearse", action="store_true", help="build what is no release yet")
    options = parser.parse_args(arguments)
    repository = options.repository.rstrip("/")
    if not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", repository):
        parser.error(f"--repository must be https://HOST/OWNER/NAME, got {options.repository}")
    if options.output_dir.exists() and any(options.output_dir.iterdir()):
        parser.error(f"{options.output_dir} must be new or empty")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    missing = [] if options.rehearse else what_is_missing(version)
    if missing:
        parser.error(f"no release of {version} yet: {'; '.join(missing)}")

    options.output_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_sources(folder / "source", repository, f"v{version}")
        # an environment of its own, so that what builds is not what happens to be installed
        venv.create(folder / "builder", with_pip=True)
        python = str(folder / "builder/bin/python")
        tools = [python, "-m", "pip", "install", "--quiet", "build>=1.2", "twine>=6.1"]
        subprocess.run(tools, check=True)
        build = [python, "-m", "build", "--outdir", str(options.output_dir)]
        subprocess.run([*build, str(folder / "source")], check=True, stdout=subprocess.DEVNULL)
        # not all that is there: setuptools' temporary folder was once still listed
        files = [str(path) for path in sorted(options.output_dir.glob("ringbert-*"))]
        subprocess.run([python, "-m", "twine", "check", "--strict", *files], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
