"""Trained models asked through the serving engine: what they get right, what their thoughts do, what they cost."""
