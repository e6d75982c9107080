"""Fingerprints and receipts."""
