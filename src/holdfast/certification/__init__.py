"""Certificates: which batch sizes give the reference bits on this machine.

certificate      what a certificate is, and how it is kept on disk
canary           digests of the operations, at every build
certify          makes one: `obtain_certificate`
checks/          the comparisons with the reference: operations, attention, whole passes
gemm/            before weights are loaded: split-K and split-N of a GPU's GEMMs
"""
