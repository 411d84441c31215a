"""Labels of texts and of pairs of texts, by the same code as bert-classifier, and entities in
texts, by that of bert-tagger."""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, overload

from bert.configuration import BertConfig
from bert.heads import CLASSIFIER, TAGGER
from bert.text.characters import word_spans
from ringbase.errors import InputError
from ringbase.results import Result
from ringbert.predictors.base import Items, LoadSettings, TrainedPredictor, checked_texts
from tasks.classifier.named_tasks import is_on_pairs
from tasks.classifier.reading import Texts
from tasks.classifier.settings import ExampleSettings
from tasks.classifier.targets import NamedLabels
from tasks.classifier.task import LabelTask
from tasks.runs.resolve.labels import CLASSIFICATION, labels_of
from tasks.runs.rows.sets import DataSet
from tasks.tagger.reading import Sentence
from tasks.tagger.scoring import Entity, entities
from tasks.tagger.settings import SentenceSettings
from tasks.tagger.task import TagTask

if TYPE_CHECKING:
    import pandas

GIVEN_WORD = re.compile(r"[^ \t\n\r]+")
TextOrPair = str | tuple[str, str]
Item = TypeVar("Item")
Found = TypeVar("Found")


class LabelSettings(LoadSettings, ExampleSettings):
    """How texts become rows and batches."""


class TextPredictor(TrainedPredictor, Generic[Item, Found]):
    """What `Classifier`, `Features` and `Tagger` share."""

    takes_pairs = True

    def columns(self) -> Sequence[str]:
        """Those of a frame without rows."""
        return ("text",)

    @overload
    def __call__(self, texts: Item) -> Found: ...
    @overload
    def __call__(self, texts: Iterable[Item]) -> list[Found]: ...
    def __call__(self, texts: Item | Iterable[Item]) -> Found | list[Found]:
        """The result for a text, for a pair of texts, which is a tuple, or for each item in a list
        of these."""
        items, is_single = checked_texts(texts, "texts", self.takes_pairs, takes_empty=True)
        results = self.results_of(items, self.rows_of(items)) if items else []
        return results[0] if is_single else results

    def frame(self, texts) -> "pandas.DataFrame":
        """The results as a data frame of pandas: `text`, of pairs also `text_pair`, and what a
        result has, with a column `probabilities_LABEL` for each label. A row is a text, or of
        `Tagger` an entity.

        The index says to which text a row belongs: it is that of `texts` if they are a series of
        pandas, else the number of the text. Raises InputError also if pandas is not installed."""
        try:
            import pandas
        except ImportError:
            raise InputError("a frame needs pandas: pip install pandas") from None
        items, _ = checked_texts(texts, "texts", self.takes_pairs, takes_empty=True)
        results: list = self.results_of(items, self.rows_of(items)) if items else []
        rows = []
        numbers = []
        for number, of_text in enumerate(results):
            text = dict(zip(("text", "text_pair"), items[number], strict=False))
            for result in of_text if isinstance(of_text, list) else [of_text]:
                rows.append(text | asdict(result))
                numbers.append(number)
        frame = pandas.json_normalize(rows, sep="_").dropna(axis=1, how="all")
        if not rows:
            frame = pandas.DataFrame(columns=self.columns())
        index = texts.index.take(numbers) if hasattr(texts, "iloc") else numbers
        return frame.set_axis(index)

    def results_of(self, items: Items, data: DataSet) -> list[Found]:
        """What the predictor says of texts and their rows."""
        raise NotImplementedError

    def rows_of(self, items: Items) -> DataSet:
        """The rows of texts. Warns when some are cut to `max_seq_length` tokens."""
        first = []
        second = []
        for text, *pair in items:
            first.append(text)
            second.append(pair[0] if pair else None)
        ids = [""] * len(items)
        data = self.set_of(Texts(first, second, None, ids))
        cut = data.made.facts["tokens_cut"]
        if cut:
            most = self.settings.max_seq_length
            warnings.warn(f"{cut:,} tokens beyond max_seq_length {most} are cut off", stacklevel=3)
        return data


@dataclass(frozen=True, slots=True)
class Prediction(Result):
    """The most probable label of a text or a pair of texts, its probability (the softmax over the
    scores of all labels, which is not calibrated), and the probability of each label, in the
    model's order.

    `labels` are all that the text has: that one, or of a model for several labels those above their
    thresholds, perhaps none; the probabilities are then each label's own.

    >>> Prediction("good", 0.9, {"good": 0.9, "bad": 0.1}, labels=("good",)).label
    'good'

    Of a regression model `value` is the predicted number, `label` the number as text, `probability`
    None and `probabilities` empty.
    """

    label: str
    probability: float | None
    probabilities: Mapping[str, float]
    value: float | None = None
    labels: tuple[str, ...] = ()


@dataclass(kw_only=True, eq=False)
class Classifier(TextPredictor[TextOrPair, Prediction]):
    """Labels texts: `Classifier(folder)(texts)`. The probabilities are those of bert-classifier.

    Args:
      folder, precision, model_revision: as those of `QuestionAnswering`; bert-classifier trains the
        model.
      batch_size: texts of `max_seq_length` tokens in a batch; more if they are shorter.
      max_seq_length: the most tokens of a text or pair; longer ones are cut, with a warning. None:
        as in the run
        that wrote the folder, else as many as the model has positions.
    A call warns of single texts if the run that wrote the folder was trained on pairs. The
    attribute `labels` has their names in the model's order; it is empty for a regression model.
    Raises ringbert.InputError, one line that names the argument.

    >>> classifier = Classifier("reviews")
    >>> found = classifier(["a fine film", "two dull hours"])
    >>> [each.label in classifier.labels for each in found]
    [True, True]
    >>> list(classifier.frame(["a fine film"]))
    ['text', 'label', 'probability', 'labels', 'probabilities_good', 'probabilities_bad']
    """

    head = CLASSIFIER
    settings_class = LabelSettings

    def columns(self) -> Sequence[str]:
        if not self.labels:
            return "text", "label", "value"
        of_labels = (f"probabilities_{label}" for label in self.labels)
        return "text", "label", "probability", "labels", *of_labels

    def make_task(self, bert_config: BertConfig) -> LabelTask:
        has_several = bert_config.problem_type == CLASSIFICATION[1]
        task = LabelTask(self.settings.max_seq_length, labels_of(bert_config), has_several)
        return task.taught(self.options)

    def results_of(self, items: Items, data: DataSet) -> list[Prediction]:
        if is_on_pairs(self.options) and any(len(item) == 1 for item in items):
            warnings.warn(
                "the model was trained on pairs of texts: give tuples (text, second text)",
                stacklevel=3,
            )
        scores_BL = self.results(data)
        if not isinstance(self.task.target, NamedLabels):
            values = scores_BL[:, 0].tolist()
            return [Prediction(str(value), None, {}, value) for value in values]
        shares_BL, chosen = self.task.target.labelled(scores_BL)
        best_B = scores_BL.argmax(1)
        results = []
        for best, shares, labels in zip(best_B, shares_BL.tolist(), chosen, strict=True):
            name = self.labels[best]
            probabilities = dict(zip(self.labels, shares, strict=True))
            results.append(Prediction(name, probabilities[name], probabilities, labels=labels))
        return results


class TaggingSettings(LoadSettings, SentenceSettings):
    """How texts become rows and batches."""


@dataclass(kw_only=True, eq=False)
class Tagger(TextPredictor[str, list[Entity]]):
    """Finds entities, or the tags of all words where the model has plain tags, such as parts of
    speech: `Tagger(folder)(texts)`. The tags are those of bert-tagger for the same words. These are
    cut as tagged corpora have them: U.S., O'Neill, AT&T, Jean-Luc, @ada_l and 4.5 are one word,
    other marks are words of their own.

    Args:
      folder, precision, model_revision: as those of `QuestionAnswering`; bert-tagger trains the
        model.
      batch_size: rows of `max_seq_length` tokens in a batch; more if they are shorter.
      max_seq_length: the most tokens of a row; a longer text becomes several.
      doc_stride: tokens between the starts of such rows.
      characters: the model tags characters and not words.
        The default of these three is as in the run that wrote the folder, else that of bert-tagger.
      splits_at_blanks: the words are given, with blanks between them, as bert-tagger reads them
        from a file: `" ".join(words)`. No other place is then the edge of a word.
    The attribute `labels` has the tags in the model's order. Raises ringbert.InputError, one line
    that names the argument.

    >>> text = "Ada wrote it in London."
    >>> entities = Tagger("names")(text)
    >>> all(entity.text == text[entity.start : entity.end] for entity in entities)
    True
    >>> list(Tagger("names").frame([text]))
    ['text', 'label', 'start', 'end', 'probability']
    """

    doc_stride: int | None = None
    characters: bool | None = None
    splits_at_blanks: bool = False

    takes_pairs = False
    head = TAGGER
    settings_class = TaggingSettings
    longest = 128

    def columns(self) -> Sequence[str]:
        return Entity.__slots__

    def make_task(self, bert_config: BertConfig) -> TagTask:
        return TagTask(self.settings, bert_config.labels)

    def _spans(self, text):
        """Where the words, or the characters, of a text are."""
        if self.settings.characters:
            return [(place, place + 1) for place in range(len(text))]
        if self.splits_at_blanks:
            return [match.span() for match in GIVEN_WORD.finditer(text)]
        return word_spans(text)

    def rows_of(self, items: Items) -> DataSet:
        sentences = []
        for (text,) in items:
            words = [text[start:end] for start, end in self._spans(text)]
            sentences.append(Sentence(words))
        return self.set_of(sentences)

    def results_of(self, items: Items, data: DataSet) -> list[list[Entity]]:
        tagged, _ = self.results(data)
        results = []
        for (text,), sentence, tags in zip(items, data.examples(), tagged, strict=True):
            starts = [start for start, _ in self._spans(text)]
            results.append(entities(text, sentence.words, starts, tags))
        return results
