"""The task of bert-squad: the start and the end of the answer in a window of tokens.

Tensors have their shape as a suffix: B rows, T positions of a row, R of the hidden state, 2 for
start and end.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from bert.batch import Batch, Grouping, batch_of, num_examples
from bert.heads import SPAN
from bert.layers import in_places, split_groups
from distributed.run import Run
from ringbase.ragged import padded
from tasks.runs.cache import Tables
from tasks.runs.details import Details
from tasks.runs.task import DataSet, Record, Scores, Task
from tasks.runs.texts import Preparation
from tasks.runs.trained import saved_settings
from tasks.squad import windows as rows
from tasks.squad.answers import Prediction, SpanDecoder, nbest_file
from tasks.squad.details import details
from tasks.squad.metrics import Score as QuestionScore
from tasks.squad.metrics import Unit, separates_words, squad_v1, squad_v2
from tasks.squad.reading import Examples, Source, read
from tasks.squad.settings import AnswerSettings, WindowSettings

LARGE = 1e30
ANSWERS = ("start_position", "end_position")


Results = Sequence[Prediction]


@dataclass(frozen=True)
class SpanTask(Task[Examples, Results]):
    """Windows with an answer's first and last token."""

    windows: WindowSettings = field(default_factory=WindowSettings)
    answers: AnswerSettings = field(default_factory=AnswerSettings)
    count: str = "auto"  # what is counted: the flag `--metric`
    settings: Mapping[str, object] = field(default_factory=dict)
    name, version, head, table, metric = "squad", rows.VERSION, SPAN, "windows", "f1"

    @property
    def max_seq_length(self) -> int:
        return self.windows.max_seq_length

    @property
    def fixed(self) -> Mapping[str, object]:
        return saved_settings(self.windows)

    def batch(self, fields: dict[str, Any], grouping: Grouping | None = None) -> Batch:
        fields, batch = batch_of(
            fields | {"sentence_a_tokens": fields["question_tokens"]}, grouping
        )
        return batch | {name: padded(fields[name], len(batch["first_tokens"])) for name in ANSWERS}

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(num_examples(batch))}

    def loss(self, scores_R2: tf.Tensor, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The sum over rows of (cross-entropy of the start + cross-entropy of the end) / 2, without
        padding."""
        groups = zip(
            in_places(scores_R2, batch), split_groups(batch["attention_mask"], batch), strict=True
        )
        targets_B2 = tf.stack([batch[name] for name in ANSWERS], 1)
        is_example_B = batch["is_example"]
        sums = []
        for scores_BT2, mask_BT in groups:
            padding_B1T = 1 - tf.cast(mask_BT, scores_BT2.dtype)[:, None]
            log_probs_B2T = tf.nn.log_softmax(
                tf.transpose(scores_BT2, [0, 2, 1]) - LARGE * padding_B1T
            )
            rows, length = tf.unstack(tf.shape(mask_BT))
            here_B2, targets_B2 = targets_B2[:rows], targets_B2[rows:]
            is_here_B, is_example_B = is_example_B[:rows], is_example_B[rows:]
            # GPUs compute shapes for the gradients of tf.gather with batch_dims and of sums without
            # keepdims, and the host waits for them.
            here_B2T = tf.one_hot(here_B2, length, dtype=scores_BT2.dtype)
            log_probs_B21 = tf.reduce_sum(log_probs_B2T * here_B2T, -1, keepdims=True)
            sums.append(tf.reduce_sum(log_probs_B21 * is_here_B[:, None, None]))
        return {"loss": -tf.add_n(sums) / 2}

    def read(self, source: Source) -> Examples:
        return read(source, self.windows.version_2_with_negative)

    def key(self, source: Source, examples: Callable[[], Examples]) -> object:
        return rows.key(self.windows, source, examples)

    def tables(self, examples: Examples, preparation: Preparation) -> Tables:
        return rows.tables(self.windows, examples, preparation)

    def decoder(self, data: DataSet[Examples]) -> SpanDecoder:
        version_2 = self.windows.version_2_with_negative
        return SpanDecoder(self.answers, version_2, data.examples(), data.tables)

    def outputs(self, scores_BT2: tf.Tensor) -> dict[str, tf.Tensor]:
        start_BT, end_BT = tf.unstack(scores_BT2, axis=2)
        return {"start_logits": start_BT, "end_logits": end_BT}

    def scores(self, kind: str, data: DataSet[Examples], results: Results) -> Scores:
        """Those of the official scripts, by their names; `kind` begins none of them."""
        return self._scored(data.examples(), results)[0]

    def _scored(
        self, examples: Examples, results: Results
    ) -> tuple[Scores, Mapping[str, QuestionScore]]:
        """The scores of the script, and those of each question; none without answers."""
        if not has_answers(examples):
            return {}, {}
        ids, unit = list(examples.references), unit_of(self.count, examples)
        texts = dict(zip(ids, (each.text for each in results), strict=True))
        if not self.windows.version_2_with_negative:
            return squad_v1(examples.references, texts, unit)
        odds: Any = dict(zip(ids, (each.null_odds for each in results), strict=True))
        return squad_v2(examples.references, texts, odds, unit)

    def records(self, data: DataSet[Examples], results: Results) -> Iterator[Record]:
        examples = data.examples()
        _, scores = self._scored(examples, results)
        for question, answer in zip(examples.questions, results, strict=True):
            fields: dict[str, object] = {
                "id": question.id,
                "question": question.text,
                "context": examples.paragraphs[question.paragraph],
                "prediction": answer.text,
                "start": answer.start,
                "probability": answer.probability,
            }
            if not scores:
                yield Record(fields)
                continue
            score = scores[question.id]
            fields["answers"] = [*dict.fromkeys(text for text, _ in question.answers)]
            fields["f1"] = score.f1
            yield Record(fields, None if score.exact else answer.probability)

    def write(self, run: Run, data: DataSet[Examples], results: Results) -> None:
        """Writes Google's files."""
        examples = data.examples()
        if not has_answers(examples):
            run.say("the questions have no answers: predictions are written, not scored")
        elif unit_of(self.count, examples) == "word" and not separates_words(examples.paragraphs):
            run.say(
                "the contexts have no blanks between words: F1 hardly differs from EM; see --metric"
                " characters"
            )
        ids = list(examples.references)
        texts = dict(zip(ids, (each.text for each in results), strict=True))
        run.write_json("predictions.json", texts)
        run.write("nbest_predictions.json", nbest_file(ids, [each.entry for each in results]))
        if self.windows.version_2_with_negative:
            odds = dict(zip(ids, (each.null_odds for each in results), strict=True))
            run.write_json("null_odds.json", odds)

    def details(self, data: DataSet[Examples], results: Results) -> Details:
        examples = data.examples()
        _, each = self._scored(examples, results)
        return Details(sections=details(examples, results, each))


def has_answers(examples: Examples) -> bool:
    return any(each.answers or each.is_impossible for each in examples.questions)


def unit_of(metric: str, examples: Examples) -> Unit:
    """What F1 counts by the flag `--metric`."""
    if metric == "characters":
        return "character"
    is_korquad = metric == "auto" and "korquad" in examples.version.lower()
    return "korquad_v1" if is_korquad or metric == "korquad_v1" else "word"
