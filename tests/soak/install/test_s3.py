"""A training on two ranks whose data and output are on an S3 server, moto's, which is installed for it."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time

import fsspec
import pytest
from harness.program_runs import command
from harness.squad_files import make_entries, write_squad
from harness.texts import write_model

KEYS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_DEFAULT_REGION": "us-east-1"}
LIST = "import fsspec, json, sys; print(json.dumps(fsspec.filesystem('s3').find(sys.argv[1])))"
PUT = """
import fsspec, sys
store = fsspec.filesystem("s3")
store.mkdir("bucket")
store.put(sys.argv[1], "bucket/data", recursive=True)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Variables with which programs find the packages and the server."""
    folder = tmp_path_factory.mktemp("s3")
    packages = ["moto[server]", f"s3fs=={fsspec.__version__}"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--target", folder / "packages", *packages], check=True
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    paths = os.pathsep.join(map(str, [folder / "packages", *sys.path]))
    variables = {**os.environ, **KEYS, "PYTHONPATH": paths, "AWS_ENDPOINT_URL": url, "FSSPEC_S3_ENDPOINT_URL": url}
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], env=variables)
    for _ in range(300):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            break
        time.sleep(0.1)
    yield variables
    server.kill()
    server.wait()


def test_a_run_on_s3_is_continued_by_a_machine_without_its_files(environment, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    write_model(data, num_layers=1)
    write_squad(data / "train.json", make_entries(96, 1))

    def run(*words, **more):
        variables = {**environment, **more}
        return subprocess.run(words, env=variables, check=True, capture_output=True, text=True)

    run(sys.executable, "-c", PUT, f"{data}/")
    files = [
        f"--{flag}=s3://bucket/data/{name}"
        for flag, name in {
            "vocab_file": "vocab.txt",
            "bert_config_file": "bert_config.json",
            "train_file": "train.json",
            "predict_file": "train.json",
        }.items()
    ]
    flags = [
        "--do_train",
        "--do_predict",
        "--max_seq_length=40",
        "--max_query_length=9",
        "--doc_stride=9",
        "--device=cpu",
        "--global_batch_size=16",
        "--save_checkpoints_steps=2",
        "--keep_checkpoints=2",
        "--output_dir=s3://bucket/out",
    ]
    for cache in ("one", "two"):
        done = run(
            *command("tasks.squad", *files, *flags, "--num_train_epochs=1", ranks=2),
            RINGBERT_CACHE=str(tmp_path / cache),
        )
        assert "uploaded: s3://bucket/out" in done.stderr
    assert "checkpoint" in done.stderr
    names = json.loads(run(sys.executable, "-c", LIST, "bucket/out").stdout)
    assert {"bucket/out/result.json", "bucket/out/report.html", "bucket/out/model/model.safetensors"} <= set(names)
    assert sum(name.endswith("/manifest.json") for name in names) == 2
