"""The programs that train: this list is the only one. Launching, plans, export, import rules and
tests read it."""

from tasks.classifier.settings import COMMAND as CLASSIFIER
from tasks.embedder.settings import COMMAND as EMBEDDER
from tasks.pretraining.settings import COMMAND as PRETRAINING
from tasks.squad.settings import COMMAND as SQUAD
from tasks.tagger.settings import COMMAND as TAGGER

COMMANDS = (SQUAD, CLASSIFIER, TAGGER, EMBEDDER, PRETRAINING)
