"""The command line: `holdfast generate | chat | certify | doctor | bench`."""
