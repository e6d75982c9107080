"""The scheduler: admission, batching, verification, rollback, preemption. No tensors.

scheduler        submit, plan, update: one step
request_queue    waiting and running requests, admission; share_policy: shares between holders
batching         from running requests to the passes of a step; spans: from one request to its next tokens
verification     what the result of a pass means for one request; commit: what it changes there
request_state    one live request; token_log, confirm_log and ngram_proposer are parts of it
spot_checks      checks of the certificate
policy           the limits of a schedule, and decisions as pure functions
"""
