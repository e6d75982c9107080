"""The command line: `holdfast generate | chat | score | certify | replay | doctor | bench`."""
