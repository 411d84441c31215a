"""Many runs on many ranks: `bert-search`, and `ringbert.search`.

A search starts commands of ours, its trials, by bert-launch, several at the same time, each in a
folder of its own. What a trial has found stands in that folder (`tasks/runs/report/trials.py`), so
the same command continues a search.
"""
