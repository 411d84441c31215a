"""The shape of Horovod's tensorflow_word2vec.py in TensorFlow 2: plain tf.Variables with sparse gradients."""

import numpy as np
import tensorflow as tf
from synthetic import fingerprint, report

import horovod.tensorflow as hvd

hvd.init()
vocabulary_size, embedding_size, num_sampled = 40, 8, 5
random = np.random.default_rng(1)
embeddings = tf.Variable(random.uniform(-1, 1, (vocabulary_size, embedding_size)).astype(np.float32))
nce_weights = tf.Variable(random.standard_normal((vocabulary_size, embedding_size)).astype(np.float32))
nce_biases = tf.Variable(tf.zeros([vocabulary_size]))
variables = [embeddings, nce_weights, nce_biases]
opt = tf.optimizers.SGD(0.1 * hvd.size())
hvd.broadcast_variables(variables, root_rank=0)


@tf.function(reduce_retracing=True)
def step(words, contexts, sampled):
    with tf.GradientTape() as tape:
        embedded = tf.nn.embedding_lookup(embeddings, words)
        expected = tf.ones([num_sampled])
        loss = tf.reduce_mean(
            tf.nn.nce_loss(
                nce_weights, nce_biases, contexts, embedded, num_sampled, vocabulary_size,
                sampled_values=(sampled, tf.ones_like(tf.cast(contexts, tf.float32)), expected),
            )
        )  # fmt: skip
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, variables)
    opt.apply_gradients(zip(gradients, variables))
    return loss, [isinstance(gradient, tf.IndexedSlices) for gradient in gradients]


corpus = np.random.default_rng(100 + hvd.rank())
average_loss = []
for _ in range(10):
    count = int(corpus.integers(16, 32))  # other sizes on each rank
    words = corpus.integers(0, vocabulary_size, count)
    contexts = (words[:, None] + 1) % vocabulary_size
    loss, kinds = step(words, contexts, corpus.integers(0, vocabulary_size, num_sampled))
    average_loss.append(float(loss))
for gathered in hvd.allgather(embeddings[tf.newaxis]):
    np.testing.assert_allclose(gathered, embeddings.numpy(), rtol=1e-6)
report(hvd.rank(), "word2vec", weights=fingerprint([v.numpy() for v in variables]), loss=average_loss)
