"""The worker: runs step plans on the device. It keeps no request state.

model_runner         runs a plan: input batch, forward, head, sampler, results
input_batch          spans of a pass -> tensors in one buffer; page_table_cache holds page tables
cuda_graphs          passes as CUDA graphs; head_graphs: head and sampler as one
last_layer           skips the last layer for tokens whose logits are not needed
sampler, logprobs    logits -> tokens and logprobs, in batches of logits_slices
logits_processors/   penalties, logit bias, token masks, grammar masks
kv_store             the tensors of the KV cache
extension            what a thinking model adds to a pass
spot_check           compares a certified pass with a reference pass
transfer, device     copies between host and device; which device, and what of it decides bits
"""
