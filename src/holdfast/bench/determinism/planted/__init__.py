"""Planted order changes: does the certification report an operation that is computed in another
order at some batch sizes?

One operation of a real backend is computed in another order at some batch sizes and left alone at
the others, as a library does (`switched.py`). The certification's own check of that operation runs
on it. Independently a search over inputs decides at which sizes some input gives other bits
(`search.py`). A change with such an input and without a report is a miss.

orders             GEMMs in another order of summation
c_mutations, torch_mutations, triton_mutations
                   changes of our kernels' sources; `mutants` builds or imports the changed copies
cases              what is planted: an operation, a shape, a dtype, a change
run, report        the cases of each backend; the table and the JSON file
"""
