"""`holdfast train` and `holdfast eval`."""
