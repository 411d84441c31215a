"""What is read, and the rows that are made of it. Without TensorFlow."""
