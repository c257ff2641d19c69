"""Modules that several experiments share: draws, estimators, language models and their training, plotting."""
