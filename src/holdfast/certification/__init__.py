"""Certificates: which batch sizes give the reference bits on this machine.

certificate      what a certificate is, and how it is kept on disk
canary           digests of the operations, at every build
certification    runs the checks of one, at once or in slices
certify          which checks those are: `plan_certification`
checks/          the comparisons with the reference: operations, attention, whole passes
gemm/            before weights are loaded: split-K and split-N of a GPU's GEMMs
"""
