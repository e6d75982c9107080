"""Train and evaluate models that think while they read: tasks with gold thoughts, the model in its
parallel form, the training loop, evaluation with the serving engine.

`holdfast train` and `holdfast eval` load it by name. It imports `holdfast`, never the reverse.
"""
