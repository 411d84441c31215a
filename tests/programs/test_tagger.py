"""bert-tagger: files to rows, entities and scores by conlleval and seqeval, the program, and
`ringbert.Tagger`."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from harness import tagger_files, texts
from harness.classifier_runs import model_flags
from harness.models import save_model
from harness.parsing import main_of
from harness.program_runs import bert, metrics_in, objects_in, refusal, text_of
from sklearn.metrics import accuracy_score, f1_score

import ringbert
from bert.text import tokenizer
from distributed.run import Unwritten
from distributed.world import World
from ringbase.files import read_json
from tasks.runs.report.files import read_evaluation
from tasks.runs.rows.texts import Tokenization
from tasks.tagger.decoder import Tagged, filled
from tasks.tagger.reader import NONE
from tasks.tagger.reading import Sentence, Source, illegal, read
from tasks.tagger.scoring import Comparison, measure, spans
from tasks.tagger.settings import FileSettings, SentenceSettings
from tasks.tagger.task import TagTask

ENTITIES = read_json(Path(__file__).resolve().parents[1] / "goldens/entities.json")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tagger_files.write_data(tmp_path_factory.mktemp("tagger"))


@pytest.fixture
def tagger_refused(capsys, tmp_path):
    """The one line with which a run ends that has these flags."""

    def line_of(flags, *named, output_dir=tmp_path / "out"):
        return refusal(capsys, "bert-tagger", lambda: bert("tagger", output_dir, *flags), *named)

    return line_of


def predicted_in(folder):
    """The words and tags that were predicted, for each sentence."""
    blocks = (folder / "predictions.conll").read_text().split("\n\n")
    return [[tuple(line.split("\t")) for line in block.strip().split("\n")] for block in blocks]


def words_of(sentences):
    return [[word for word, _ in rows] for rows in sentences]


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """The folder of a run that has trained, evaluated and predicted, and its scores."""
    folder = tmp_path_factory.mktemp("run")
    learn = ("--learning_rate=1e-3", "--global_batch_size=32", "--num_train_steps=100")
    return folder, bert(
        "tagger",
        folder,
        *tagger_files.flags(data),
        *learn,
        "--do_train",
        "--do_eval",
        "--do_predict",
    )


def test_entities_are_those_of_conlleval_and_seqeval():
    for tags, found in ENTITIES["seqeval"]:
        assert [*spans(tags.split())] == [tuple(each) for each in found], tags
    true, predicted = zip(
        *([column.split() for column in pair] for pair in ENTITIES["sentences"]), strict=True
    )
    sentences = [Sentence(tags, tags, document=number // 10) for number, tags in enumerate(true)]
    found = [Tagged(tags, [1.0] * len(tags)) for tags in predicted]
    comparison = Comparison(sentences, found)
    for label, (precision, recall, f1, examples) in ENTITIES["figures"].items():
        ours = comparison.by_type[label] if label else comparison.all
        assert ours["examples"] == examples
        figures = [round(100 * ours[name], 2) for name in ("precision", "recall", "f1")]
        assert figures == [precision, recall, f1]
    labels = sorted({tag for tags in (*true, *predicted) for tag in tags})
    scores = measure("eval", labels, True, sentences, found, np.zeros(1))
    assert f"{100 * scores['eval_accuracy']:.2f}" == f"{ENTITIES['accuracy']:.2f}"
    flat = [[tag for tags in part for tag in tags] for part in (true, predicted)]
    assert scores["eval_char_macro_f1"] == f1_score(
        *flat, labels=labels, average="macro", zero_division=1.0
    )
    parts = [
        Comparison(sentences[at : at + 10], found[at : at + 10]).all["f1"]
        for at in range(0, 40, 10)
    ]
    assert scores["eval_document_f1"] == pytest.approx(np.mean(parts))


@pytest.mark.parametrize(
    ("tags", "is_illegal"),
    [
        (["O B-x I-x O B-x B-x"], False),
        (["O I-x"], True),
        (["B-x I-y"], True),
        (["I-x"], True),
        (["S-x B-x I-x E-x"], False),
        (["S-x", "B-x O"], True),
        (["E-x"], True),
        (["S-x B-x B-x E-x"], True),
        (["S-x B-x I-x"], True),
    ],
)
def test_illegal_tags_are_found(tags, is_illegal):
    assert bool(illegal([Sentence(each.split(), each.split()) for each in tags])) == is_illegal


def test_no_word_of_a_long_sentence_is_lost(data, tmp_path):
    """Each word stands in one row, at its first token, with its tag."""
    words = tokenizer.load(f"{data}/vocab.txt")
    sentences = read(Source(FileSettings(dev_file=f"{data}/dev.conll"), "dev"), False)
    labels = ("O", "B-animal", "B-tool", "I-animal", "I-tool")
    settings = SentenceSettings(max_seq_length=16, doc_stride=5)
    task = TagTask(settings, labels)
    rows = task.tables(sentences, Tokenization(World(), Unwritten(), words))["rows"].to_pydict()
    found = {}
    assert len(rows["words"]) > len(sentences)
    for number, ids, at, tags in zip(
        *(rows[n] for n in ("sentence", "input_ids", "words", "tags")), strict=True
    ):
        assert len(ids) == len(at) == len(tags) <= 16
        for id_, word, tag in zip(ids, at, tags, strict=True):
            if word == NONE:
                assert tag == NONE
                continue
            assert (number, word) not in found
            found[number, word] = labels[tag]
            assert sentences[number].words[word].startswith(words.pieces([id_])[0])
    tags = [[found[n, word] for word in range(len(each.words))] for n, each in enumerate(sentences)]
    assert tags == [each.tags for each in sentences]


def test_characters_inside_tokens_go_on():
    tags = ["B-OG", *[""] * 5, "I-OG", *[""] * 8, "I-OG", *[""] * 3, "O", "", "O"]
    assert filled("seoul national univ, a", tags) == ["B-OG", *["I-OG"] * 18, "O", "O", "O"]
    assert filled("a b", ["B-X", "", "B-X"]) == ["B-X", "O", "B-X"]
    # é is one character
    assert filled("e\u0301\ufe0f!", ["B-X", "O", "B-Y", "O"]) == ["B-X", "I-X", "I-X", "O"]


def test_the_program_learns_and_writes_entities(run):
    folder, scores = run
    assert scores["eval_f1"] > 0.95
    predicted = predicted_in(folder)
    dev = tagger_files.sentences(60, 2, longest=28)
    assert words_of(predicted) == words_of(dev)
    right = sum(
        one == other
        for rows in zip(predicted, dev, strict=True)
        for one, other in zip(*rows, strict=True)
    )
    assert right / sum(map(len, dev)) == pytest.approx(scores["eval_accuracy"])
    result = read_json(folder / "result.json")
    assert set(result["eval_types"]) == {"animal", "tool"}
    assert "Confusion" in (folder / "report.html").read_text()


def test_mistakes_are_sentences_with_wrong_entities(data, run, tmp_path):
    """Of a file in which the tags of one sentence are wrong, that sentence."""
    folder, _ = run
    blocks = (data / "dev.conll").read_text().split("\n\n")
    number = next(number for number, block in enumerate(blocks) if "B-animal" in block)
    blocks[number] = blocks[number].replace("-animal", "-tool")
    (tmp_path / "wrong.conll").write_text("\n\n".join(blocks))
    flags = (f"--model={folder}/model", f"--predict_file={tmp_path}/wrong.conll", "--do_predict")
    scores = bert("tagger", tmp_path / "out", *flags)
    assert scores["predict_f1"] < 1
    predictions = objects_in(tmp_path / "out/predictions.jsonl")
    (mistake,) = objects_in(tmp_path / "out/predict_mistakes.jsonl")
    assert mistake == predictions[number]
    found, true = (
        {(each["text"], each["label"]) for each in mistake[kind]}
        for kind in ("entities", "true_entities")
    )
    assert {text for text, _ in found} == {text for text, _ in true}
    assert ("animal" in {label for _, label in found}) > ("animal" in {label for _, label in true})


def test_tagger_finds_the_programs_entities(run):
    folder, _ = run
    lines = objects_in(folder / "predictions.jsonl")
    tagger = ringbert.Tagger(folder)
    assert tagger.labels[0] == "O"
    found = tagger([line["text"] for line in lines])
    for entities, line in zip(found, lines, strict=True):
        expected = [(e["label"], e["start"], e["end"]) for e in line["entities"]]
        assert [(e.label, e.start, e.end) for e in entities] == expected
        assert [e.text for e in entities] == [line["text"][e.start : e.end] for e in entities]
    probabilities = [e.probability for entities in found for e in entities]
    np.testing.assert_allclose(
        probabilities, [e["probability"] for line in lines for e in line["entities"]], 1e-5
    )
    (one,) = tagger("the  bear near")  # two blanks
    assert (one.text, one.label, one.start) == ("bear", "animal", 5)
    assert tagger([]) == []
    single = texts.write_lines(folder.parent / "single.conll", "a")  # is no file of characters
    flags = (f"--predict_file={single}", f"--model={folder}/model", "--do_predict")
    bert("tagger", folder.parent / "single", *flags)
    assert predicted_in(folder.parent / "single") == [[("a", "O")]]


MARKED = [
    "O'Neill saw AT&T in the U.S. with Jean-Luc and @ada_l , for 4.5 % .",
    "Yahoo! and (axe) by 1\u00a0000 ...",
]


def test_words_in_a_text_are_those_of_the_file(tmp_path):
    """A model that gives each word a tag: the words that bert-tagger tags, with its tags; and any
    words at all if they are given."""
    model = save_model(tmp_path, "tagger", labels=("NOUN", "VERB", "X"))
    texts.write_lines(tmp_path / "words.conll", *"\n\n".join(MARKED).replace(" ", "\n").split("\n"))
    flags = (f"--model={model}", f"--predict_file={tmp_path}/words.conll", "--allow_unknown")
    bert("tagger", tmp_path / "out", *flags, "--do_predict")
    expected = predicted_in(tmp_path / "out")
    assert words_of(expected) == [text.split(" ") for text in MARKED]
    cut, given = ringbert.Tagger(model), ringbert.Tagger(model, splits_at_blanks=True)
    with pytest.warns(UserWarning, match="UNK"):
        found = given(MARKED)
    assert [[(e.text, e.label) for e in entities] for entities in found] == expected
    with pytest.warns(UserWarning, match="UNK"):
        of_text = cut(MARKED[0])
    assert [(e.text, e.label) for e in of_text] == expected[0]


def test_the_saved_model_gives_the_same_labels(run, tmp_path):
    with pytest.raises(SystemExit, match="0"):
        main_of("bert-export")([str(run[0]), f"{tmp_path}/exported"])
    words = tokenizer.load(None, run[0] / "model")
    (ids,) = words.encode_ids(["the bear near a red axe"])
    row = tf.constant([[words.cls_id, *ids, words.sep_id]])
    compute = tf.saved_model.load(str(tmp_path / "exported")).signatures["ids"]
    outputs = compute(
        input_ids=row, token_type_ids=tf.zeros_like(row), attention_mask=tf.ones_like(row)
    )
    labels = [label.decode() for label in outputs["label"].numpy()[0, 1:-1]]
    found = {e.text: e.label for e in ringbert.Tagger(run[0])("the bear near a red axe")}
    assert found == {"bear": "animal", "axe": "tool"}
    assert labels == ["O", "B-animal", "O", "O", "O", "B-tool"]


def test_a_file_without_an_entity_is_one_line(data, tmp_path, tagger_refused):
    file = texts.write_lines(tmp_path / "a.conll", "fox O")
    tagger_refused(
        [f"--train_file={file}", *model_flags(data), "--do_train"], file, "every tag is O"
    )


# A word that BERT's normalisation drops, so that it has no token.
NO_TOKEN = "\u200b\u200b"


def test_a_batch_of_words_without_tokens_is_skipped(data, tmp_path, capsys):
    file = texts.write_lines(
        tmp_path / "a.conll", "cat B-animal", "", f"{NO_TOKEN} O", "", "fox B-animal"
    )
    flags = [
        f"--train_file={file}",
        *model_flags(data),
        "--train_batch_size=1",
        "--num_train_epochs=1",
    ]
    bert("tagger", tmp_path / "out", *flags, "--do_train")
    assert sum(np.isnan(line["loss"]) for line in metrics_in(tmp_path / "out")) == 1
    assert "skipped steps: 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "named"), [("--do_train", "no row has a target"), ("--do_eval", "the eval set")]
)
def test_a_file_of_words_without_tokens_is_one_line(
    run, data, tmp_path, tagger_refused, flag, named
):
    file = texts.write_lines(tmp_path / "a.conll", f"{NO_TOKEN} B-animal", "", f"{NO_TOKEN} O")
    model = [f"--model={run[0]}/model"] if flag == "--do_eval" else model_flags(data)
    flags = [f"--train_file={file}", f"--dev_file={file}", *model, "--train_batch_size=1", flag]
    tagger_refused(flags, named)


def test_a_model_and_files_of_another_scheme_say_the_same(run, data, tmp_path, capsys):
    """A model from elsewhere whose labels are BMES's: its I- is M-."""
    shutil.copytree(run[0] / "model", tmp_path / "model")
    for file, source in (
        (tmp_path / "model/config.json", run[0] / "model/config.json"),
        (tmp_path / "dev.conll", data / "dev.conll"),
        (tmp_path / "train.conll", data / "train.conll"),
    ):
        file.write_text(source.read_text().replace("I-", "M-"))
    assert '"M-tool"' in (tmp_path / "model/config.json").read_text()
    flags = f"--model={tmp_path}/model", f"--dev_file={tmp_path}/dev.conll", "--do_eval"
    sizes = "--max_seq_length=32", "--doc_stride=12"
    scores = bert("tagger", tmp_path / "out", *flags, *sizes)
    assert scores == {name: run[1][name] for name in scores}
    assert read_evaluation(tmp_path / "out", "as bert-report reads it").measured == scores
    text = "the bear dog hare near a red axe"
    entities = ringbert.Tagger(tmp_path / "model")(text)
    assert [entity.label for entity in entities] == ["animal", "tool"]
    assert entities == ringbert.Tagger(run[0])(text)
    train = f"--train_file={tmp_path}/train.conll", "--do_train", "--num_train_steps=1"
    capsys.readouterr()
    bert("tagger", tmp_path / "more", flags[0], *train, *sizes)
    assert "new head" not in capsys.readouterr().err


def test_a_run_that_goes_on_has_its_own_tags(run, data, tmp_path, tagger_refused):
    """A line of the file that it has now is named, and not a new head."""
    shutil.copytree(run[0], tmp_path / "run")
    (tmp_path / "run/result.json").unlink()
    rows = (data / "train.conll").read_text().replace("B-tool", "B-machine")
    (tmp_path / "train.conll").write_text(rows.replace("I-tool", "I-machine"))
    learn = ("--learning_rate=1e-3", "--global_batch_size=32", "--num_train_steps=100")
    flags = (
        *tagger_files.flags(data),
        *learn,
        "--do_train",
        f"--train_file={tmp_path}/train.conll",
    )
    named = f"{tmp_path}/train.conll", "one of ", "-machine"
    tagger_refused(flags, *named, output_dir=tmp_path / "run")


def test_a_classifiers_unnamed_labels_are_no_tags(data, tmp_path, tagger_refused):
    names = {"labels": ("LABEL_0", "LABEL_1"), "problem_type": "single_label_classification"}
    model = save_model(tmp_path / "model", "classifier", **names)
    flags = f"--model={model}", f"--predict_file={data}/dev.conll", "--do_predict"
    tagger_refused(flags, "the labels are unknown")


# -- plain tags ------------------------------------------------------------------------------------


def plain(rows):
    """Words with the kinds of the entities' words as tags; FILLING for the others."""
    return [(word, "FILLING" if tag == "O" else f"{tag[2:]}s") for word, tag in rows]


@pytest.fixture(scope="module")
def plain_data(tmp_path_factory):
    """As `data`, with plain tags."""
    folder = tagger_files.write_data(tmp_path_factory.mktemp("plain"))
    for name, number, seed, longest in (("train", 240, 1, 14), ("dev", 60, 2, 28)):
        sentences = map(plain, tagger_files.sentences(number, seed, longest))
        blocks = ["".join(f"{word} {tag}\n" for word, tag in rows) for rows in sentences]
        (folder / f"{name}.conll").write_text("\n".join(blocks))
    return folder


PLAIN = ("--learning_rate=1e-3", "--global_batch_size=32", "--num_train_epochs=2", "--do_train")


@pytest.fixture(scope="module")
def plain_run(plain_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain_run")
    flags = (
        *tagger_files.flags(plain_data),
        *PLAIN,
        "--do_eval",
        "--do_predict",
        "--load_best_model_at_end",
    )
    return folder, bert("tagger", folder, *flags)


def test_plain_tags_are_learned_and_scored_as_sklearn_does(plain_run):
    folder, scores = plain_run
    assert set(scores) == {"eval_accuracy", "eval_macro_f1", "eval_loss"}
    assert 0.7 < scores["eval_accuracy"] < 1  # the test needs mistakes
    dev = [plain(rows) for rows in tagger_files.sentences(60, 2, longest=28)]
    found = predicted_in(folder)
    assert words_of(found) == words_of(dev)
    tags = [[tag for rows in part for _, tag in rows] for part in (dev, found)]
    assert scores["eval_accuracy"] == pytest.approx(accuracy_score(*tags))
    assert scores["eval_macro_f1"] == pytest.approx(f1_score(*tags, average="macro"))
    result = read_json(folder / "result.json")
    f1_of_tags = f1_score(*tags, average=None, labels=[*result["eval_tags"]])
    assert [each["f1"] for each in result["eval_tags"].values()] == pytest.approx(f1_of_tags)
    sections = {each["title"]: each for each in result["report"]}
    assert sections["Confusion"]["labels"] == ["FILLING", "animals", "tools"]
    counts = np.array(sections["Confusion"]["counts"])
    assert counts.trace() / counts.sum() == pytest.approx(scores["eval_accuracy"])
    cells = [text_of(row[1]).split(", ") for row in sections["Mistakes"]["rows"]]
    assert sum(map(len, cells)) <= counts.sum() - counts.trace()  # the wrong words alone
    assert "best eval_accuracy" in (folder / "report.html").read_text()


def test_predicted_plain_tags_can_be_read_again(plain_run, plain_data, tmp_path):
    folder, _ = plain_run
    labels = read_json(folder / "model/config.json")["id2label"]
    assert [*labels.values()] == ["FILLING", "animals", "tools"]
    again = ["--do_eval", f"--model={folder}/model"]
    for name in ("predictions.jsonl", "predictions.conll"):
        scores = bert("tagger", tmp_path / name, f"--dev_file={folder}/{name}", *again)
        assert scores["eval_accuracy"] == scores["eval_macro_f1"] == 1


def test_tagger_gives_each_word_its_plain_tag(plain_run):
    folder, _ = plain_run
    lines = objects_in(folder / "predictions.jsonl")
    tagger = ringbert.Tagger(folder)
    assert tagger.labels == ("FILLING", "animals", "tools")
    found = tagger([" ".join(line["tokens"]) for line in lines])
    for line, entities in zip(lines, found, strict=True):
        assert [(entity.text, entity.label) for entity in entities] == [
            *zip(line["tokens"], line["tags"], strict=True)
        ]


def test_each_file_must_have_the_tags_of_the_model(
    plain_run, run, plain_data, data, tagger_refused
):
    for (folder, _), files, tag in ((plain_run, data, "'O'"), (run, plain_data, "'FILLING'")):
        file = f"{files}/dev.conll"
        flags = [f"--dev_file={file}", f"--model={folder}/model", "--do_eval"]
        tagger_refused(flags, file, "line 1", "one of ", tag)


def test_a_finished_run_made_longer_is_refused_with_the_way(plain_run, plain_data, tagger_refused):
    longer = (*tagger_files.flags(plain_data), *PLAIN, "--num_train_epochs=3")
    line = tagger_refused(
        longer,
        "--num_train_epochs = 2.0, this command has 3.0",
        "--output_dir and this checkpoint as --init_checkpoint",
        output_dir=plain_run[0],
    )
    assert "moments" not in line  # no flag of bert-tagger


def test_plain_tags_of_characters_go_on_inside_tokens(plain_data, tmp_path):
    """The other characters of a token have its first one's tag; a blank has that of both its
    neighbours, else O."""
    tags = ["B", "", "", "", "E", "", "E"]
    assert filled("cat ox!", tags) == ["B", "B", "B", "O", "E", "E", "E"]
    assert filled("a b", ["M", "", "M"]) == ["M", "M", "M"]
    letters = [
        (letter, "a" if word[0] < "f" else "z") for word in texts.WORDS["tool"] for letter in word
    ]
    file = texts.write_lines(tmp_path / "a.tsv", *(f"{letter}\t{tag}" for letter, tag in letters))
    flags = [f"--{kind}_file={file}" for kind in ("train", "dev")]
    steps = "--num_train_steps=1", "--global_batch_size=1", "--do_train", "--do_eval"
    scores = bert(
        "tagger", tmp_path / "out", *model_flags(plain_data), *flags, *steps, "--characters"
    )
    assert set(scores) == {"eval_accuracy", "eval_macro_f1", "eval_loss"}
