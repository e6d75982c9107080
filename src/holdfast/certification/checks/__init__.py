"""The checks a certificate is made of: each compares bits with the reference.

order_probes    inputs and weights whose results show the order of summation
probes          probe tokens among neighbours, and the comparison of bits
operations      checks of single operations and layers
synthetic       the operations that are checked for a shape
attention       check of attention over one request
passes          check of whole passes, on a GPU
"""
