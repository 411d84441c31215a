"""What `import horovod` finds where `bert-launch --horovod` or `python -m ringbert.horovod` has put
this folder first: `ringbert.horovod`, by Horovod's names."""

from ringbert.horovod import names

names.take_horovods(__file__)
