"""Tasks with gold thoughts: prompts, answers, and the thoughts of every chunk."""
