"""Horovod's `horovod.common`, as far as scripts import it."""
