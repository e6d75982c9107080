"""Evaluation of trained models with the serving engine: accuracy, effect of thoughts, cost."""
