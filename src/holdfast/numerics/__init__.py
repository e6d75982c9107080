"""How numbers are computed: recipes, kernels, and the certificate that says which shapes agree bit for bit."""
