"""The jobs of RingBERT's programs. Editors know their arguments by jobs.pyi, which
`scripts/make_stubs.py` writes."""

from ringbert.job import CommandJob
from tasks.programs import CLASSIFIER, EMBEDDER, PRETRAINING, SQUAD, TAGGER


class Squad(CommandJob, of=SQUAD):
    """Fine-tunes BERT on SQuAD, answers questions and scores the answers.

    >>> Squad(output_dir="run", model="minilm", train_file="train.json", num_train_epochs=2)
    Squad: bert-squad --output_dir=run --model=minilm --train_file=train.json \
--num_train_epochs=2 --do_train
    """


class Classification(CommandJob, of=CLASSIFIER):
    """Fine-tunes BERT to label texts or pairs of texts.

    >>> Classification(output_dir="run", model="minilm", task_name="MRPC", data_dir="glue_data")
    Classification: bert-classifier --output_dir=run --model=minilm --task_name=MRPC \
--data_dir=glue_data --do_train --do_eval

    The files may be data in memory: a data frame of pandas, a list of dicts, a `datasets.Dataset`.

    >>> reviews = [{"text": "fine", "label": "good"}, {"text": "dull", "label": "bad"}]
    >>> Classification(output_dir="run", model="minilm", train_file=reviews, seeds=[1, 2])
    Classification: bert-classifier --output_dir=run --model=minilm --train_file=...parquet \
--seeds=1,2 --do_train
    """


class Tagging(CommandJob, of=TAGGER):
    """Fine-tunes BERT to tag words or characters, such as named entities.

    >>> Tagging(output_dir="run", model="minilm", train_file="a.conll", dev_file="b.conll")
    Tagging: bert-tagger --output_dir=run --model=minilm --train_file=a.conll \
--dev_file=b.conll --do_train --do_eval

    The files may be data in memory, with lists of words and tags as `tokens` and `ner_tags`; see
    `Classification`.
    """


class Embedding(CommandJob, of=EMBEDDER):
    """Trains BERT to embed texts as vectors.

    >>> Embedding(output_dir="run", model="minilm", train_file="pairs.csv")
    Embedding: bert-embedder --output_dir=run --model=minilm --train_file=pairs.csv --do_train

    The files may be data in memory, with columns `anchor` and `positive`; see `Classification`.
    """


class Pretraining(CommandJob, of=PRETRAINING):
    """Pretrains BERT on the shards of a corpus.

    >>> Pretraining(output_dir="run", bert_config_file="bert.json", input_file="corpus/*")
    Pretraining: bert-pretraining --output_dir=run --bert_config_file=bert.json \
'--input_file=corpus/*' --do_train
    """
