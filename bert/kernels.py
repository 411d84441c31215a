"""The operations of a layer between its products with weights, in four kinds: TensorFlow's own,
hand-made ones that are faster on CPUs and on GPUs, and the latter with cuDNN's attention."""

from typing import Protocol

from tensorflow import Tensor

from bert import ops, ops_cpu, ops_cudnn, ops_gpu
from bert.ops import Activation, Dropout, Heads, Norm, Product, Words


class Kernels(Protocol):
    """What a module of them has; bert/ops.py says what each function computes."""

    @property
    def random_words(self) -> Words | None:
        """None where random numbers are computed as in bert/ops_gpu.py."""

    @property
    def keeps_matrices(self) -> bool:
        """Whether attention has matrices [T, K] in memory."""

    def biased(self, x: Tensor, bias: Tensor) -> Tensor: ...

    def activated(self, x: Tensor, bias: Tensor, activation: Activation) -> Tensor: ...

    def gated(self, x: Tensor, activation: Activation) -> Tensor: ...

    def rotated(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor: ...

    def residual(self, hidden: Tensor, branch: Product, norm: Norm, dropout: Dropout) -> Tensor: ...

    def prenormed(
        self, hidden: Tensor, branch: Tensor | None, gamma: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor]: ...

    def attention(
        self,
        heads: Heads,
        mask: Tensor,
        draws: Tensor | None,
        dropout: Dropout,
        longest: int | None,
    ) -> Tensor: ...


PLAIN: Kernels = ops
ON_CPU: Kernels = ops_cpu
ON_GPU: Kernels = ops_gpu
ON_CUDNN: Kernels = ops_cudnn
