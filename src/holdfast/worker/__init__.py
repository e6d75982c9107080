"""The worker: runs step plans on the device. It keeps no request state.

model_runner         runs a plan: input batch, forward, head, sampler, results
input_batch          spans of a pass -> tensors in one buffer
cuda_graphs          passes as CUDA graphs
head                 the last layer, where few tokens need it; head and sampler as CUDA graphs
sampler, logits      logits in batches -> tokens and logprobs
logits_processors/   penalties, token masks, grammar masks
pooling              hidden states -> embeddings
kv_store             the tensors of the KV cache
extension            what a model may add to a pass
spot_check           compares a certified pass with a reference pass
transfer             copies between host and device
device               which device, and what of it decides bits
"""
