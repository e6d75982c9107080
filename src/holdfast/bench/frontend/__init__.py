"""`holdfast bench frontend`: what one server's frontend carries, with engines that need no model."""
