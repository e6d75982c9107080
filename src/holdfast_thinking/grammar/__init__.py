"""Words and shapes of sentences, as data, for tasks in free wording."""
