"""An installed wheel: its modules and programs, and whose packages are imported: Dask has a `distributed`, too."""

import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from harness.jobs import shell
from harness.parsing import PACKAGES, PROJECT, ROOT


def run(*command: object, path: str = "", **more: Any) -> str:
    """What a command prints, with nothing but `path` in PYTHONPATH; the tests may see the checkout by it."""
    done = shell(*command, PYTHONPATH=path, PIP_DISABLE_PIP_VERSION_CHECK="1", **more)
    return done.stderr if done.status else done.stdout


def test_another_distributed_before_ours_stops_with_one_line(tmp_path):
    (tmp_path / "distributed").mkdir()
    (tmp_path / "distributed/__init__.py").write_text("")
    code = "import sys; sys.argv = ['bert-squad']; import tasks"
    (line,) = run(sys.executable, "-c", code, path=f"{tmp_path}:{ROOT}", cwd=tmp_path, status=1).splitlines()
    assert line.startswith(f"bert-squad: error: `import distributed` finds {tmp_path}/distributed")
    assert "environment of its own" in line
    # `python -m` puts the working folder first, where ours is.
    run(sys.executable, "-m", "tasks.squad", "--help", path=f"{tmp_path}:{ROOT}", cwd=ROOT)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_an_installed_wheel_has_all_modules_and_programs_and_they_are_imported_from_it(tmp_path):
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, tmp_path / "source" / name)
    pip, site = (sys.executable, "-m", "pip"), tmp_path / "site"
    build = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, tmp_path / "source")
    run(*pip, *build, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    modules = {path.relative_to(ROOT).as_posix() for name in PACKAGES for path in (ROOT / name).rglob("*.py")}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == modules | {f"{name}/py.typed" for name in PACKAGES} | {"tasks/report/style.css"}

    run(*pip, "install", "--quiet", "--no-deps", "--target", site, wheel, cwd=tmp_path)
    assert {path.name for path in (site / "bin").glob("bert-*")} == set(PROJECT["scripts"])
    for program in PROJECT["scripts"]:
        assert run(site / "bin" / program, "--help", path=str(site), cwd=tmp_path).startswith(f"usage: {program}")
    names = sorted(name.removesuffix(".py").replace("/", ".") for name in modules if "__" not in name)
    code = f"""
import importlib, sys, ringbert
ringbert.Squad(train_file="a", output_dir="b")
heavy = {{"tensorflow", "keras", "mpi4py", "transformers", "datasets", "torch"}}
print(ringbert.__version__, *heavy & sys.modules.keys())
for name in {names}: print(importlib.import_module(name).__file__)"""
    version, *files = run(sys.executable, "-c", code, path=str(site), cwd=tmp_path).splitlines()
    assert version == PROJECT["version"]
    assert len(files) == len(names)
    assert all(Path(file).is_relative_to(site) for file in files)
