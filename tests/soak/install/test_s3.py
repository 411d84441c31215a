"""A training on two ranks whose data and output are on an S3 server, moto's, which is installed for
it."""

import os
import sys

import fsspec
import pytest
from harness.jobs import install, shell
from harness.program_runs import command
from harness.squad_files import make_entries, write_squad
from harness.texts import write_model

KEYS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_DEFAULT_REGION": "us-east-1"}
FLAGS = """--vocab_file=s3://bucket/data/vocab.txt
    --bert_config_file=s3://bucket/data/bert_config.json
    --train_file=s3://bucket/data/train.json --predict_file=s3://bucket/data/train.json
    --output_dir=s3://bucket/out
    --do_train --do_predict --num_train_epochs=1 --max_seq_length=40 --max_query_length=9
    --doc_stride=9
    --device=cpu --global_batch_size=16 --save_checkpoints_steps=2 --keep_checkpoints=2"""


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The server's file system. Environment variables tell programs where the packages and the
    server are."""
    install("moto[server]", f"s3fs=={fsspec.__version__}", into=tmp_path / "packages")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    for name, value in KEYS.items() | {("AWS_ENDPOINT_URL", url), ("FSSPEC_S3_ENDPOINT_URL", url)}:
        monkeypatch.setenv(name, value)
    yield fsspec.filesystem("s3", endpoint_url=url)
    server.stop()


def test_a_run_on_s3_is_continued_by_a_machine_without_its_files(store, tmp_path):
    write_model(tmp_path / "data", num_layers=1)
    write_squad(tmp_path / "data/train.json", make_entries(96, 1))
    store.mkdir("bucket")
    store.put(f"{tmp_path}/data/", "bucket/data", recursive=True)
    for cache in ("one", "two"):
        variables = {
            "RINGBERT_CACHE": f"{tmp_path}/{cache}",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        done = shell(*command("tasks.squad", *FLAGS.split(), ranks=2), **variables)
        assert "uploaded: s3://bucket/out" in done.stderr
    assert "checkpoint" in done.stderr
    store.invalidate_cache()
    names = store.find("bucket/out")
    assert {
        "bucket/out/result.json",
        "bucket/out/report.html",
        "bucket/out/model/model.safetensors",
    } <= set(names)
    assert sum(name.endswith("/manifest.json") for name in names) == 2
