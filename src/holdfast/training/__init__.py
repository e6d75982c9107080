"""Training Thinking States: tasks with gold thoughts, the model in its parallel form, the loop, the
curves.
"""
