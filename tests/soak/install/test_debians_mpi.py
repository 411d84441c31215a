"""Debian's Open MPI 4 and MPICH beside mpi4py's wheel: two ranks train, or one line says what is
missing. Their packages are unpacked, not installed."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv

import pytest
from harness.classifier_runs import model_flags, own_files, write_data
from harness.jobs import run, shell
from harness.mpi import ROOT
from harness.program_runs import metrics_in

LIBRARIES = """hwloc-nox libhwloc15 libucx0 libfabric1 libpsm2-2 libpsm-infinipath1 librdmacm1
libibverbs1 libnl-3-200 libnl-route-3-200 libnuma1 libslurm38 libmunge2
libevent-core-2.1-7 libevent-pthreads-2.1-7 libevent-2.1-7 libpmix2"""
PACKAGES = {
    "mpich": ["mpich", "libmpich12", "libmpich-dev"],
    "openmpi": ["openmpi-bin", "openmpi-common", "libopenmpi3"],
}


@pytest.fixture(scope="module", params=PACKAGES)
def debians(request, tmp_path_factory):
    """The name of a family, the folder of its libraries, and variables with which it is the only
    MPI."""
    if shutil.which("apt-get") is None:
        pytest.skip("needs apt-get")
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    for package in [*PACKAGES[name], *LIBRARIES.split()]:
        subprocess.run(["apt-get", "download", package], cwd=folder, capture_output=True)
    packages = [*folder.glob("*.deb")]
    if not all(any(path.name.startswith(f"{p}_") for path in packages) for p in PACKAGES[name]):
        pytest.skip(f"Debian's {PACKAGES[name]} cannot be downloaded")
    root = folder / "root"
    for package in packages:
        subprocess.run(["dpkg", "-x", package, root], check=True)
    programs = folder / "bin"
    programs.mkdir()
    for program in ("mpirun", "hydra_pmi_proxy", "orted"):
        for path in (root / "usr/bin" / f"{program}.{name}", root / "usr/bin" / program):
            if path.exists():
                (programs / program).symlink_to(path)
                break
    venv.create(folder / "venv")
    (site,) = (folder / "venv/lib").glob("python*/site-packages")
    (site / "ours.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n")
    folders = {str(path.parent) for path in (root / "usr/lib").rglob("*.so*")}
    variables = {
        "PATH": f"{programs}:{folder}/venv/bin:/usr/bin:/bin",
        "LD_LIBRARY_PATH": ":".join(sorted(folders)),
        "VIRTUAL_ENV": "",
    }
    if name == "openmpi":
        prefix = f"{root}{DEBIAN_LIB}/openmpi"
        variables |= {"OPAL_PREFIX": prefix, "OPAL_LIBDIR": f"{prefix}/lib"}
        variables |= {"OPAL_DATADIR": f"{root}/usr/share"}
    return name, folder, variables


DEBIAN_LIB = f"/usr/lib/{os.uname().machine}-linux-gnu"


@pytest.mark.timeout(2400)
def test_two_ranks_train(debians, tmp_path):
    name, folder, variables = debians
    data, out = write_data(tmp_path / "data"), tmp_path / "out"
    flags = [*model_flags(data), *own_files(data), "--do_train", "--num_train_steps=4"]
    python = folder / "venv/bin/python"
    train = [python, "-m", "tasks.classifier", *flags, f"--output_dir={out}"]
    job = [python, "-m", "distributed.launch", "-np", "2", "--", *train]
    if name == "mpich":  # the wheel looks for the library under another name
        refused = run(job, **variables)
        assert refused.status == 1, refused
        assert "pip install --no-binary mpi4py" in refused.stderr, refused
        doctor = run([python, "-m", "tasks.doctor", "--quick"], **variables)
        assert doctor.status == 1, doctor
        assert "there is libmpich.so.12" in " ".join(doctor.stdout.split()), doctor
        for way in linked, built:
            remedied = way(folder, variables)
            trains(job, out, variables | remedied)
            shutil.rmtree(out)
    else:
        trains(job, out, variables)


def trains(job, out, variables):
    done = run(job, **variables)
    assert done.status == 0, done
    assert "2 ranks on 1 machine" in done.stderr, done
    losses = [line["loss"] for line in metrics_in(out) if "learning_rate" in line]
    assert len(losses) == 2  # 4 steps of one rank


def linked(folder, variables):
    """MPICH's library under the name that mpi4py's wheel looks for."""
    (folder / "link").mkdir()
    library = folder / "root" / DEBIAN_LIB.lstrip("/") / "libmpich.so.12"
    (folder / "link/libmpi.so.12").symlink_to(library)
    return {"LD_LIBRARY_PATH": f"{folder}/link:{variables['LD_LIBRARY_PATH']}"}


def built(folder, variables):
    """mpi4py, built for this MPICH as the message advises; in a folder of its own."""
    root = folder / "root"
    compiler = folder / "bin/mpicc"  # Debian's has the folders of an installed package in it
    compiler.write_text(
        f'#!/bin/sh\nexec gcc -I{root}/usr/include/{DEBIAN_LIB.split("/")[-1]}/mpich "$@"'
        f" -L{root}{DEBIAN_LIB} -lmpich -Wl,--allow-shlib-undefined\n"
    )
    compiler.chmod(0o755)
    shell(
        *(sys.executable, "-m", "pip", "install", "-q", "--no-binary", "mpi4py", "--no-deps"),
        *("--target", folder / "built", "mpi4py"),
        MPICC=str(compiler),
        wait_s=1200,
    )
    return {"PYTHONPATH": str(folder / "built")}
