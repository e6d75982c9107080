"""Logits processors: what a request's settings do to its logits before a token is sampled.

penalties        repetition, frequency and presence
device_history   penalties and bad words if only the device knows the tokens before
token_masks      sets the logits of tokens that are not allowed to -inf; computes grammar masks in a thread
"""
