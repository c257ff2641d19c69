"""Softmax distributions of a language model."""
