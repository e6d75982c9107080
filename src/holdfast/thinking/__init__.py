"""Thinking States: a model that writes a short thought after every chunk and reads on with its state.

config, weights      thinking.json and thinking.safetensors
log, predictor       the thoughts of one request: guessed, verified, committed (a `RequestExtension`)
runner               T, C and their states in a pass (a `PassExtension`), and their part of a spot check
blocks, graphs       T and C on the backbone's backend; T as CUDA graphs
"""
