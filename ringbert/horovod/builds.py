"""Horovod's questions about how it was built. RingBERT is not built: it finds what the machine has."""


def mpi_built() -> bool:
    return True


def mpi_enabled() -> bool:
    return True


def mpi_threads_supported() -> bool:
    """Whether the MPI library lets several threads send at the same time."""
    from distributed.joining import library

    mpi = library()
    return mpi is not None and mpi.is_threaded


def nccl_built() -> int:
    """Whether TensorFlow has NCCL; Horovod gives its version."""
    return int(cuda_built())


def cuda_built() -> bool:
    import tensorflow as tf

    return tf.test.is_built_with_cuda()


def gloo_built() -> bool:
    return False


def gloo_enabled() -> bool:
    return False


def ddl_built() -> bool:
    return False


def ccl_built() -> bool:
    return False


def rocm_built() -> bool:
    return False


def sycl_built() -> bool:
    return False
