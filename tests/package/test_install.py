"""An installed wheel: its modules and programs, and whose packages are imported: Dask has a
`distributed`, too."""

import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from harness.jobs import install, isolated
from harness.parsing import PACKAGES, PROJECT, ROOT


def test_another_distributed_before_ours_stops_with_one_line(tmp_path):
    (tmp_path / "distributed").mkdir()
    (tmp_path / "distributed/__init__.py").write_text("")
    code = "import sys; sys.argv = ['bert-squad']; import tasks"
    done = isolated(sys.executable, "-c", code, path=f"{tmp_path}:{ROOT}", cwd=tmp_path, status=1)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"bert-squad: error: `import distributed` finds {tmp_path}/distributed")
    assert "environment of its own" in line
    # `python -m` puts the working folder first, where ours is.
    isolated(sys.executable, "-m", "tasks.squad", "--help", path=f"{tmp_path}:{ROOT}")


@pytest.mark.slow
def test_an_installed_wheel_has_all_modules_and_programs_and_they_are_imported_from_it(tmp_path):
    for name in PACKAGES:
        shutil.copytree(
            ROOT / name, tmp_path / "source" / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, tmp_path / "source" / name)
    build = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path)
    build = (*build, tmp_path / "source")
    isolated(sys.executable, "-m", "pip", *build, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    modules = {
        path.relative_to(ROOT).as_posix()
        for name in PACKAGES
        for path in (ROOT / name).rglob("*.py")
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    names = {name for name in names if ".data/" not in name}  # recipes, examples, the quickstart
    assert names == modules | {f"{name}/py.typed" for name in PACKAGES} | {
        "tasks/runs/report/style.css",
        "ringbert/jobs.pyi",
        "distributed/slurm.sh",
    }

    site = tmp_path / "site"
    install("--no-deps", wheel, into=site)
    assert {path.name for path in (site / "bin").glob("bert-*")} == set(PROJECT["scripts"])
    for program in PROJECT["scripts"]:
        done = isolated(site / "bin" / program, "--help", path=site, cwd=tmp_path)
        assert done.stdout.startswith(f"usage: {program}")
    names = sorted(
        name.removesuffix(".py").replace("/", ".") for name in modules if "__" not in name
    )
    code = f"""
import importlib, sys, ringbert
ringbert.Squad(train_file="a", output_dir="b")
heavy = {{"tensorflow", "keras", "mpi4py", "transformers", "datasets", "torch"}}
print(ringbert.__version__, *heavy & sys.modules.keys())
for name in {names}: print(importlib.import_module(name).__file__)"""
    done = isolated(sys.executable, "-c", code, path=site, cwd=tmp_path)
    version, *files = done.stdout.splitlines()
    assert version == PROJECT["version"]
    assert len(files) == len(names)
    assert all(Path(file).is_relative_to(site) for file in files)
