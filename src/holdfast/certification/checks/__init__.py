"""The checks a certificate is made of: each compares bits with the reference."""
