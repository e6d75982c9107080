"""From logits to tokens and logprobs, and the tokens that only the device knows."""
