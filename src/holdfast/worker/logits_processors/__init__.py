"""Logits processors: what a request's settings do to its logits before a token is sampled.

pipeline         applies them in order: penalties, logit bias, token masks
penalties        repetition, frequency and presence
token_lists      logit bias, allowed and bad token ids as tensors
token_masks      sets the logits of tokens that are not allowed to -inf
grammar_masks    computes grammar masks in a thread while the device runs the pass
"""
